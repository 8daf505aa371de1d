"""Virtual time, as actors read it and as trio's loop runs by it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from random import Random

import trio

from .trio_internals import LoopView, isolate


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

MOST_CALLS = 10_000
"""So many calls in a row are made before trio's loop has its turn, in which it looks whether it was interrupted."""


class StandstillError(BaseException):
    """Some task always has something to do, so that time cannot go on. No supervisor may take it for an actor's own
    error, so it is no `Exception`."""


class JumpingClock(trio.abc.Clock):
    """Time that stands still while anybody has something to do, and then jumps to the next deadline.

    It serves trio's loop (``trio.run(..., clock=clock)``) and the actors (as the engine's `Clock`) alike. A run with it
    has no I/O but ``run_sync_soon``. Why not
    ``trio.testing.MockClock``, which jumps as well? It asks the machine's clock at every reading, and goes through the
    loop twice, gathering statistics, at every jump. This one jumps when trio asks how long it may sleep, which it does
    only when no task can run. It also has a calendar of its own, of calls to make, in the order in which they are due
    and, at one instant, in which they were asked for. They are made without a task, from there; and as long as no task
    can run afterwards, it jumps on without going back to trio's loop.

    Args:
        chance: puts the calls of one instant into any order; None to leave them in theirs.

    Attributes:
        on_quiet: called before each jump: whatever was to happen at this instant has happened. Must not raise.
    """

    def __init__(self, chance: Random | None = None) -> None:
        self.on_quiet: Callable[[], None] = lambda: None
        self._chance = chance
        self._now_s = 0.0
        self._now_ns = 0
        self._looks = 0
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
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
        self.call_at(self._now_s + duration_s, sleeper.wake)
        await trio.lowlevel.wait_task_rescheduled(sleeper.give_up)

    def call_at(self, when_s: float, call: Callable[[], object]) -> None:
        """Have something called then, outside of any task. It must not raise."""
        heapq.heappush(self._calls, (when_s, next(self._numbers), call))

    def free_until_s(self) -> float:
        """Until when nothing else wants the time: no task can run, and nothing is due earlier. Minus infinity if
        something is to happen at this instant."""
        free_s, calls = self._loop.free_until_s(), self._calls
        return calls[0][0] if calls and calls[0][0] < free_s else free_s

    @property
    def is_crowded(self) -> bool:
        """Whether tasks are to run at this instant."""
        return self._loop.is_busy

    def move(self, when_s: float) -> None:
        """Let time pass, for who has asked whether others want it, or keeps them waiting."""
        self._now_s = when_s
        self._now_ns = round(when_s * 1e9)
        self._looks = 0

    # For trio.

    def start_clock(self) -> None:
        """A run begins, at time zero."""
        isolate()
        self._loop = LoopView()
        self._token = trio.lowlevel.current_trio_token()

    def current_time(self) -> float:
        self._looks += 1
        if self._looks > STALLS and (trio.lowlevel.in_trio_task() or self._looks > 2 * STALLS):
            # Better in a task, for it and all others are then unwound; in trio's own loop it is the end of everything.
            self._stand_still()
        return self._now_s

    def _stand_still(self) -> None:
        self._looks = 0
        raise StandstillError(f"a task always has something to do at {self._now_s:g} s")

    def deadline_to_sleep_time(self, deadline: float) -> float:
        calls, loop = self._calls, self._loop
        for _ in range(MOST_CALLS):
            when_s = min(deadline, calls[0][0]) if calls else deadline
            if when_s == math.inf:
                return when_s  # no task waits for time
            if when_s > self._now_s:
                if loop.is_busy:
                    break
                self.on_quiet()
                self.move(when_s)
            elif not calls or calls[0][0] > self._now_s:
                break
            due: list[Callable[[], object]] = []
            while calls and calls[0][0] <= self._now_s:
                due.append(heapq.heappop(calls)[2])
            if self._chance is not None and len(due) > 1:
                self._chance.shuffle(due)
            for call in due:  # what they ask for at this instant comes after the tasks that they wake
                call()
            self._looks += len(due)
            if self._looks > STALLS:
                self._token.run_sync_soon(self._stand_still)
                break
            deadline = loop.free_until_s()
            if deadline < self._now_s:
                break
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
