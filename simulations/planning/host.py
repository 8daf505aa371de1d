"""What a host's own work costs: the event loop's, and the cores for which everything competes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Any

from ...engine.logs.request_log import LoggedRequest
from .planned import PlannedModel

_ALMOST = 1e-12
"""Of a second: less than that is left of what has been done."""


class HostCosts:
    """Seconds that things take beside the batches themselves: none, unless a subclass says otherwise.

    `wake`, `admit`, `begin`, `over`, `answer` and `settle` are work of the event loop, which does nothing else then.
    `rouse`, `start`, `notice`, `timer_late`, `way_in` and `way_out` pass beside it.

    Attributes:
        cores: which the event loop, threads and processes share, possibly with a fraction: when more are wanted, all
            that compute are slowed down alike.
        loop_first: while the event loop works it has a core to itself, as who has just woken up has, and the others
            share the rest. False: it is slowed down as they are.
    """

    cores: float = math.inf
    loop_first: bool = True

    def rouse(self, rested_s: float) -> float:
        """From when a request could be heard until a loop is awake that has slept for so long. Asked before `wake`."""
        return 0.0

    def wake(self, events: int, rested_s: float) -> float:
        """The loop wakes up, for so many events, and has slept for so long."""
        return 0.0

    def settle(self) -> float:
        """All that was heard is done: the loop looks what is next, and goes to sleep. Asked once after each `wake`."""
        return 0.0

    def admit(self, request: LoggedRequest) -> float:
        """A request is read, decoded, checked and handed in."""
        return 0.0

    def begin(self, model: PlannedModel, requests: int, rows: int) -> float:
        """A batch is formed and handed to its executor."""
        return 0.0

    def start(self, model: PlannedModel, requests: int, rows: int) -> float:
        """From then until the computing begins, on a thread, in a process or on a device."""
        return 0.0

    def notice(self, model: PlannedModel, requests: int, rows: int) -> float:
        """From the end of the computing until the loop can hear of it."""
        return 0.0

    def over(self, model: PlannedModel, requests: int, rows: int) -> float:
        """The loop takes the end of a batch in."""
        return 0.0

    def answer(self, model: PlannedModel, rows: int, well: bool) -> float:
        """An answer, or an error, of the model that was asked is encoded and written."""
        return 0.0

    def token(self, model: str, texts: int) -> float:
        """A generated token is written to the clients of so many texts."""
        return 0.0

    def timer_late(self) -> float:
        """How late the loop wakes up for a timer, if nothing else wakes it meanwhile."""
        return 0.0

    def way_in(self, request: LoggedRequest) -> float:
        """From a client's call until the loop's socket can be read."""
        return 0.0

    def way_out(self, model: PlannedModel, well: bool) -> float:
        """From the loop's write until the client has its answer."""
        return 0.0


Ended = Callable[[float, Any], None]
"""Told when something was done, and what."""


class Cores:
    """Shares cores among what computes at one time: each gets the same part of what it wants.

    Work is measured by what each of those who compute has been given since the beginning (`_given_s`), which is the
    same for all: so what is done first stays first, whatever comes and goes.

    Args:
        cores: how many there are.
        loop_first: see `HostCosts`.

    Attributes:
        busy_s: seconds of cores that were given, but for the event loop's.
    """

    def __init__(self, cores: float, loop_first: bool = True) -> None:
        self.busy_s = 0.0
        self._cores = cores
        self._loop_first = loop_first
        self._wanted = 0.0
        self._given_s = 0.0
        self._ends: list[tuple[float, int, float, Ended, Any]] = []
        self._numbers = count()

    def begin(self, seconds: float, cores: float, ended: Ended, what: Any) -> None:
        """Something computes from now on.

        Args:
            seconds: that it takes with all the `cores` that it wants.
        """
        self._wanted += cores
        heapq.heappush(self._ends, (self._given_s + seconds, next(self._numbers), cores, ended, what))

    def _rates(self, loop: int) -> tuple[float, float]:
        """How fast the event loop goes, and how fast what computes, while the loop works (1) or sleeps (0)."""
        wanted = self._wanted + loop
        if wanted <= self._cores:
            return 1.0, 1.0
        if loop and self._loop_first:
            own = min(1.0, self._cores)
            return own, max(0.0, self._cores - own) / self._wanted if self._wanted else 1.0
        return self._cores / wanted, self._cores / wanted

    def _give(self, seconds: float) -> None:
        self._given_s += seconds
        self.busy_s += seconds * self._wanted

    def next_end_s(self, now: float) -> float:
        """When the first of them is done if nothing comes before; infinite for never."""
        if not self._ends:
            return math.inf
        return now + max(0.0, self._ends[0][0] - self._given_s) / self._rates(0)[1]

    def idle(self, now: float, until: float) -> None:
        """Time passes while the event loop sleeps."""
        while self._ends and (end_s := self.next_end_s(now)) <= until:
            now = max(now, end_s)
            self._end(now)
        self._give((until - now) * self._rates(0)[1])

    def work(self, now: float, seconds: float) -> float:
        """The event loop works: for so long, if it has a core to itself.

        Returns:
            When it is done.
        """
        while self._ends:
            own, others = self._rates(1)
            left_s = max(0.0, self._ends[0][0] - self._given_s)
            if left_s * own > seconds * others:
                break
            passed_s = left_s / others if others else 0.0
            now += passed_s
            seconds -= passed_s * own
            self._end(now)
        own, others = self._rates(1)
        passed_s = max(0.0, seconds) / own
        self._give(passed_s * others)
        return now + passed_s

    def _end(self, now: float) -> None:
        """The first is done, and with it what would be in less than `_ALMOST`."""
        ends = self._ends
        self._give(max(0.0, ends[0][0] - self._given_s))
        while ends and ends[0][0] <= self._given_s + _ALMOST:
            _, _, cores, ended, what = heapq.heappop(ends)
            self._wanted -= cores
            ended(now, what)
        if not ends:
            self._wanted = 0.0
