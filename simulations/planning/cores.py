"""The cores for which everything competes: the event loop, front ends, threads and processes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Any

_ALMOST = 1e-12
"""Of a second: less than that is left of what has been done."""

_SOME = 0.5
"""Of a core: what wants no more leaves it to others."""

Ended = Callable[[float, Any], None]
"""Told when something was done, and what."""


def may_be_crowded(most: float, cores: float) -> bool:
    """Whether executions that want so many cores at most may take all that there are."""
    return most >= cores - _SOME


class _Group:
    """Those who compute at the same rate.

    Work is measured by what each of them has been given since the beginning, which is the same for all: so what is
    done first stays first, whatever comes and goes.

    Attributes:
        wanted: cores, by all of them together.
        given_s: see above.
        ends: what each was given when it is done, the first to be done first.
    """

    __slots__ = ("ends", "given_s", "wanted")

    def __init__(self) -> None:
        self.wanted = 0.0
        self.given_s = 0.0
        self.ends: list[tuple[float, int, float, Ended, Any]] = []

    def left_s(self, rate: float) -> float:
        """Until the first of them is done, at this rate; infinite for never."""
        left_s = self.ends[0][0] - self.given_s
        if left_s <= 0.0:
            return 0.0
        return left_s / rate if rate > 0.0 else math.inf


class Cores:
    """Shares cores among what computes at one time: each gets the same part of what it wants. What happens beside the
    event loop at a time that is known is told here as well (`at`).

    Args:
        cores: how many there are.
        loop_first: the event loop and front ends go first (`HostCosts`).
        most: cores that executions want at most, if all that there may be go on at once.

    Attributes:
        busy_s: seconds of cores that were given, but for the event loop's.
    """

    def __init__(self, cores: float, loop_first: bool = True, most: float = 0.0) -> None:
        self.busy_s = 0.0
        self._cores = cores
        self._loop_first = loop_first
        self._crowd = max(_SOME, cores - 1 - _SOME) if may_be_crowded(most, cores) else math.inf
        self._woken, self._others = _Group(), _Group()
        self._timed: list[tuple[float, int, Ended, Any]] = []
        self._numbers = count()

    @property
    def crowded(self) -> bool:
        """Executions compute on all cores but one at least, and there may be as many as cores: who wakes up now may
        find that each is taken, since the one that is left is the event loop's, and its clients'."""
        return self._others.wanted >= self._crowd

    def begin(self, seconds: float, cores: float, ended: Ended, what: Any, *, first: bool = False) -> None:
        """Something computes from now on.

        Args:
            seconds: that it takes with all the `cores` that it wants.
            first: as the event loop does, it goes before the others.
        """
        group = self._woken if first else self._others
        group.wanted += cores
        heapq.heappush(group.ends, (group.given_s + seconds, next(self._numbers), cores, ended, what))

    def at(self, when_s: float, call: Ended, what: Any) -> None:
        """Have something called at a time, or as soon as can be after it, without the event loop."""
        heapq.heappush(self._timed, (when_s, next(self._numbers), call, what))

    def _rates(self, loop: int) -> tuple[float, float]:
        """How fast goes who has woken up, and how fast the others, while the event loop works (1) or sleeps (0)."""
        woken, others = self._woken.wanted + loop, self._others.wanted
        wanted = woken + others
        if wanted <= self._cores:
            return 1.0, 1.0
        if woken and self._loop_first:
            own = min(1.0, self._cores / woken)
            return own, max(0.0, self._cores - own * woken) / others if others else 1.0
        return self._cores / wanted, self._cores / wanted

    def _next(self, now: float, rates: tuple[float, float]) -> tuple[float, _Group | None]:
        """In how many seconds something happens if nothing comes before, and who is done then: None for what has its
        time (`at`), or for nothing, which is infinitely far away."""
        found: _Group | None = None
        passed_s = max(0.0, self._timed[0][0] - now) if self._timed else math.inf
        if self._woken.ends and (left_s := self._woken.left_s(rates[0])) < passed_s:
            passed_s, found = left_s, self._woken
        if self._others.ends and (left_s := self._others.left_s(rates[1])) < passed_s:
            passed_s, found = left_s, self._others
        return passed_s, found

    def next_s(self, now: float) -> float:
        """When something happens if nothing comes before and the event loop sleeps; infinite for never."""
        return now + self._next(now, self._rates(0))[0]

    def idle(self, now: float, until: float) -> None:
        """Time passes while the event loop sleeps."""
        while True:
            rates = self._rates(0)
            passed_s, group = self._next(now, rates)
            if not now + passed_s <= until:
                break
            now += passed_s
            self._happen(now, passed_s, rates, group)
        self._give(until - now, rates)

    def work(self, now: float, seconds: float) -> float:
        """The event loop works: for so long, if it has a core to itself.

        Returns:
            When it is done.
        """
        while True:
            rates = self._rates(1)
            passed_s, group = self._next(now, rates)
            if not passed_s * rates[0] <= seconds:
                break
            now += passed_s
            seconds -= passed_s * rates[0]
            self._happen(now, passed_s, rates, group)
        passed_s = max(0.0, seconds) / rates[0]
        self._give(passed_s, rates)
        return now + passed_s

    def _give(self, seconds: float, rates: tuple[float, float]) -> None:
        woken, others = self._woken, self._others
        woken_s, others_s = seconds * rates[0], seconds * rates[1]
        woken.given_s += woken_s
        others.given_s += others_s
        self.busy_s += woken_s * woken.wanted + others_s * others.wanted

    def _happen(self, now: float, passed_s: float, rates: tuple[float, float], group: _Group | None) -> None:
        """What is next: the first of a group is done, and with it what would be in less than `_ALMOST`."""
        self._give(passed_s, rates)
        if group is None:
            _, _, call, what = heapq.heappop(self._timed)
            call(now, what)
            return
        ends = group.ends
        group.given_s = max(group.given_s, ends[0][0])  # whatever rounding has left of it
        while ends and ends[0][0] <= group.given_s + _ALMOST:
            _, _, cores, ended, what = heapq.heappop(ends)
            group.wanted -= cores
            ended(now, what)
        if not ends:
            group.wanted = 0.0
