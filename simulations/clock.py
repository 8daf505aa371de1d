"""Virtual time, as actors read it and as trio's loop runs by it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio

from .trio_internals import has_pending_callbacks, isolate


class VirtualClock:
    """The clock of a run without threads: decisions, measurements and the calendar are one and the same time, trio's,
    whichever clock trio runs by."""

    now_s = staticmethod(trio.current_time)

    @staticmethod
    def now_ns() -> int:
        return round(trio.current_time() * 1e9)

    @staticmethod
    def wall_ms() -> int:
        return round(trio.current_time() * 1e3)


STALLS = 100_000
"""How often trio may look at the clock, which it does whenever tasks have had their turns, and find it where it was."""


class StandstillError(BaseException):
    """Some task always has something to do, so that time cannot go on. No supervisor may take it for an actor's own
    error, so it is no `Exception`."""


class JumpingClock(trio.abc.Clock):
    """Time that stands still while anybody has something to do, and then jumps to the next deadline.

    It serves trio's loop (``trio.run(..., clock=clock)``) and the actors (as the engine's `Clock`) alike. A run with it
    has no I/O but ``run_sync_soon``. Why not
    ``trio.testing.MockClock``, which jumps as well? It asks the machine's clock at every reading, and goes through the
    loop twice, gathering statistics, at every jump. This one jumps when trio asks how long it may sleep, which it does
    only when no task can run. It also wakes sleepers of its own, in the order in which they are due and, at one
    instant, in which they went to sleep; that costs a tenth of a cancel scope with a deadline.

    Attributes:
        on_quiet: called before each jump: whatever was to happen at this instant has happened. Must not raise.
    """

    def __init__(self) -> None:
        self.on_quiet: Callable[[], None] = lambda: None
        self._now_s = 0.0
        self._now_ns = 0
        self._looks = 0
        self._sleepers: list[tuple[float, int, Sleeper]] = []
        self._numbers = count()

    # For actors.

    def now_s(self) -> float:
        return self._now_s

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ms(self) -> int:
        return round(self._now_s * 1e3)

    # For what is simulated.

    async def sleep(self, duration_s: float) -> None:
        sleeper = Sleeper(trio.lowlevel.current_task())
        self.wake_at(self._now_s + duration_s, sleeper)
        await trio.lowlevel.wait_task_rescheduled(sleeper.give_up)

    def wake_at(self, when_s: float, sleeper: Sleeper) -> None:
        """Wake a sleeper then, if it is still asleep."""
        heapq.heappush(self._sleepers, (when_s, next(self._numbers), sleeper))

    # For trio.

    def start_clock(self) -> None:
        """A run begins, at time zero."""
        isolate()
        self._token = trio.lowlevel.current_trio_token()

    def current_time(self) -> float:
        self._looks += 1
        if self._looks > STALLS and (trio.lowlevel.in_trio_task() or self._looks > 2 * STALLS):
            # Better in a task, for it and all others are then unwound; in trio's own loop it is the end of everything.
            self._looks = 0
            raise StandstillError(f"a task always has something to do at {self._now_s:g} s")
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        sleepers = self._sleepers
        when_s = min(deadline, sleepers[0][0]) if sleepers else deadline
        if when_s == math.inf:
            return when_s  # no task waits for time
        if when_s > self._now_s:
            if has_pending_callbacks(self._token):
                return 0.0
            self.on_quiet()
            self._now_s = when_s
            self._now_ns = round(when_s * 1e9)
            self._looks = 0
        while sleepers and sleepers[0][0] <= self._now_s:
            heapq.heappop(sleepers)[2].wake()
        return 0.0


class Sleeper:
    """A task that sleeps until it is woken, once, or cancelled."""

    __slots__ = ("_task",)

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self._task: trio.lowlevel.Task | None = task

    def wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
