"""The event loop of a planned run: one place where everything that wakes it comes together, in virtual time.

The loop's time is the clock. What it works on moves the clock; what becomes due meanwhile waits for the next wake-up,
as sockets do, and all that is due at a wake-up is heard in one turn, as the server's loop hears it. None of this takes
a task of trio's: as long as no task wants to run and no deadline of one is near, wake-ups follow each other in one call
(`JumpingClock.free_until_s`).

Timers of actors wake the loop as all else does, and later than they say: an event loop sleeps for whole milliseconds. A
loop that is awake by then, or is woken by something else, sees them at once.

A loop that sleeps is not awake in the moment in which a request wakes it: what comes until it is, is heard with it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from ...actors.actor import Turn
from ..clock import JumpingClock
from .cores import Cores, Ended
from .host import HostCosts

_Call = Callable[[Any], None]
_Due = tuple[float, int, _Call, Any, bool]

MOST_WAKES = 10_000
"""So many in a row before trio's loop has its turn, in which it looks whether it was interrupted."""


class PlannedLoop:
    """Wakes up when something is due.

    Args:
        costs: of the host; None for none.
        on_failure: called once, when there is a `failure`.
        most_cores: see `Cores`.

    Attributes:
        busy_s: seconds for which it worked.
        cores: what else competes with it for cores; None if there is enough for all, and nothing beside the loop.
        failure: what was raised by what a caller has given, so that the run is over.
    """

    def __init__(
        self, clock: JumpingClock, costs: HostCosts | None, on_failure: Callable[[], None], most_cores: float = 0.0
    ) -> None:
        self.failure: Exception | None = None
        self._on_failure = on_failure
        self.busy_s = 0.0
        shared = costs is not None and (costs.cores < math.inf or costs.front_ends > 0)
        self.cores = Cores(costs.cores, costs.loop_first, most_cores) if costs is not None and shared else None
        self._clock = clock
        self._costs = costs
        self._turn: Turn | None = None
        self._due: list[_Due] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._asked_s = math.inf  # when the clock is to call
        self._counted_s = 0.0  # until when the cores have been given out
        self._awake = False
        self._asleep_s = 0.0  # since when it sleeps

    def start(self, turn: Turn) -> None:
        """From now on. What comes is heard in turns."""
        self._turn = turn
        self._ask_clock()

    def at(self, when_s: float, call: _Call, what: Any, *, rouses: bool = False) -> None:
        """Have something heard by the loop that can be noticed from then on.

        Args:
            rouses: a loop that sleeps needs a while to wake up for it (`HostCosts.rouse`).
        """
        heapq.heappush(self._due, (when_s, next(self._numbers), call, what, rouses))
        if when_s < self._asked_s and not self._awake:
            self._ask_clock()

    def call_at(self, when_s: float, call: Callable[[], object]) -> None:
        """See `engine.clock.Timers`."""
        if self._costs is None:
            self._clock.call_at(when_s, call)
            return
        heapq.heappush(self._timers, (when_s, next(self._numbers), call))
        self.at(when_s + self._costs.timer_late(), _see_timers, None)

    def _timers_due(self, now: float) -> bool:
        return bool(self._timers) and self._timers[0][0] <= now

    def compute(self, seconds: float, cores: float, ended: Ended, what: Any) -> None:
        """Something takes cores from now on (`Cores.begin`), of which there are only so many."""
        assert self.cores is not None, "without a limit nothing has to be shared"
        self._catch_up()
        self.cores.begin(seconds, cores, ended, what)
        if not self._awake:
            self._ask_clock()

    def beside(self, when_s: float, call: Ended, what: Any) -> None:
        """Something happens at a time, without the loop (`Cores.at`)."""
        assert self.cores is not None, "there are front ends"
        self.cores.at(when_s, call, what)
        if when_s < self._asked_s and not self._awake:
            self._ask_clock()

    def work(self, seconds: float) -> None:
        """The loop works for so long."""
        if seconds <= 0.0:
            return
        self._catch_up()
        now = self._clock.now_s()
        then = now + seconds if self.cores is None else self.cores.work(now, seconds)
        self.busy_s += then - now
        self._move(then)
        if not self._awake and self.cores is not None:
            self._ask_clock()  # of what began beside it meanwhile

    def _move(self, then: float) -> None:
        """Until then the cores have been given out."""
        self._clock.move(then)
        self._counted_s = then

    def _catch_up(self) -> None:
        """Time has passed up to a timer of the server's, while the loop slept and the cores did not."""
        since, self._counted_s = self._counted_s, self._clock.now_s()
        if self.cores is not None and since < self._counted_s:
            self.cores.idle(since, self._counted_s)

    def _next_s(self) -> float:
        due, now = self._due, self._clock.now_s()
        when_s = due[0][0] if due else math.inf
        if self._timers_due(now):
            when_s = min(when_s, now)
        return when_s if self.cores is None else min(when_s, self.cores.next_s(now))

    def _ask_clock(self) -> None:
        self._catch_up()
        when_s = self._next_s()
        if when_s < self._asked_s and self._turn is not None:
            self._asked_s = when_s
            self._clock.call_at(when_s, self._called)

    def _called(self) -> None:
        if self._clock.now_s() < self._asked_s:
            return  # an earlier one was asked for meanwhile, and has come
        self._asked_s = math.inf
        self._awake = True
        try:
            self._wake_up()
        except Exception as error:  # noqa: BLE001 - a clock cannot raise: the task that plays does
            self.fail(error)
        self._awake = False
        if self.failure is None:
            self._ask_clock()

    def fail(self, error: Exception) -> None:
        """Something that the run was given has raised this; so `play` is to."""
        if self.failure is None:
            self.failure = error
            self._on_failure()

    def _wake_up(self) -> None:
        """As often as nothing else wants the time."""
        clock, due, turn, costs, cores = self._clock, self._due, self._turn, self._costs, self.cores
        assert turn is not None, "it has been started"
        for _ in range(MOST_WAKES):
            self._catch_up()
            now = clock.now_s()
            when_s = due[0][0] if due else math.inf
            if self._timers_due(now):
                when_s = min(when_s, now)
            if cores is not None:
                when_s = min(when_s, cores.next_s(now))
            if when_s > now:
                if when_s > clock.free_until_s():
                    break
                if cores is not None:
                    cores.idle(now, when_s)
                self._move(when_s)
                now = when_s
            elif cores is not None:  # what is done now, or within less than the clock can tell
                cores.idle(now, now)
            timers = self._timers_due(now)
            if not timers and (not due or due[0][0] > now):
                continue  # something has been computed, which the loop will hear of later
            if not timers and due[0][2] is _see_timers:
                heapq.heappop(due)
                continue  # they were seen before
            with turn:
                if costs is not None:
                    now = self._rouse(costs, now)
                while due and due[0][0] <= now:
                    _, _, call, what, _ = heapq.heappop(due)
                    call(what)
            if costs is not None:
                self.work(costs.settle())
            while self._timers_due(clock.now_s()):
                heapq.heappop(self._timers)[2]()
            self._asleep_s = clock.now_s()

    def _rouse(self, costs: HostCosts, now: float) -> float:
        """Wake up. What is due by the time that this returns is heard now."""
        rested_s = now - self._asleep_s
        late_s = 0.0
        if rested_s > 0 and self._due and self._due[0][4]:
            late_s = costs.rouse(rested_s)
            if self.cores is not None and self.cores.crowded:
                late_s += costs.crowded()
        if late_s > 0:
            if self.cores is not None:
                self.cores.idle(now, now + late_s)
            self._move(now + late_s)
            now += late_s
        self.work(costs.wake(count_due(self._due, now), rested_s))
        return now


def _see_timers(_nothing: object) -> None:
    """A wake-up for timers, which are looked at after each, outside of a turn."""


def count_due(heap: Sequence[tuple[Any, ...]], now: float) -> int:
    """How many entries of a heap are due, without a look at the others."""
    found, places = 0, [0]
    while places:
        place = places.pop()
        if place < len(heap) and heap[place][0] <= now:
            found += 1
            places += (2 * place + 1, 2 * place + 2)
    return found
