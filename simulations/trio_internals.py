"""trio's private parts that simulations need. Nothing else in Trireme touches them, and each is looked at before it is
used: a version of trio that lacks one is refused with its number.

1. A switch for a task order that is a function of a seed (`deterministic_scheduling`). trio shuffles the tasks that are
   ready to run. For Hypothesis it can do so from a generator that can be seeded, after sorting the tasks by their age.
   What stays unordered even so:

   * Timers of one instant all expire before any task runs, in the order of their addresses. Tasks that just sleep
     cannot tell (they are sorted again), a callback that runs at the moment of cancellation can.
   * A cancelled scope tells its tasks in the order of a set.

   So what runs in a simulation has callbacks of cancellation that commute, and decides nothing by iterating over a set,
   or by ``id`` or ``hash``.

2. The queue behind ``TrioToken.run_sync_soon`` (`has_pending_callbacks`), the tasks that can run, and the earliest
   deadline (`LoopView`). What stands in the queue is still to happen at this instant, although no task can run: a clock
   that jumps must know.

3. Where the loop asks the operating system what came in, and looks for instruments (`isolate`). In a simulation nothing
   comes in, and no debugger looks on: a turn takes a fifth less without. What tasks see, and in which turn, stays what
   it was.

The tests of this module are the canary: ``pyproject.toml`` allows the versions of trio that they were run on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from random import Random
from typing import Any

import trio

SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"
GENERATOR = "_r"

LOOKS_S = 0.1
"""How long a loop sleeps in which tasks wait for signals only, before it looks again."""


class UnknownTrioError(Exception):
    """This version of trio lacks a private part where this module looks for it."""

    def __init__(self, names: str) -> None:
        super().__init__(f"trio {trio.__version__} has no {names}; simulations need a version that has them")


def _part(owner: Any, path: str) -> Any:
    """What is at a path of private names.

    Raises:
        UnknownTrioError: it is not there.
    """
    found = owner
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise UnknownTrioError(f"{path} in {owner!r}")
    return found


@contextmanager
def deterministic_scheduling(seed: int) -> Iterator[None]:
    """Make the task order of a ``trio.run`` within this block a function of the seed, and of what the tasks do.

    On leaving, the switch and the generator are as they were.

    Raises:
        UnknownTrioError: trio's private names are not what they were.
    """
    module = trio._core._run
    generator_before = getattr(module, GENERATOR, None)
    if not isinstance(getattr(module, SWITCH, None), bool) or not isinstance(generator_before, Random):
        raise UnknownTrioError(f"{SWITCH} and {GENERATOR} in trio._core._run")
    switch_before = getattr(module, SWITCH)
    setattr(module, SWITCH, True)
    setattr(module, GENERATOR, SeededOrder(seed))
    try:
        yield
    finally:
        setattr(module, SWITCH, switch_before)
        setattr(module, GENERATOR, generator_before)


class SeededOrder(Random):
    """Chance for trio's loop, which shuffles at each of its turns what can run: mostly one task, or none."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        if len(x) > 1:
            super().shuffle(x)


def has_pending_callbacks(token: trio.lowlevel.TrioToken) -> bool:
    """Whether callbacks given to its ``run_sync_soon`` are still to be called. `isolate` has looked at the names."""
    queue = token._reentry_queue
    return bool(queue.queue or queue.idempotent_queue)


class LoopView:
    """What a clock that jumps has to know of the run that is about to begin. To be made when its clock starts.

    Raises:
        UnknownTrioError: trio's private names are not what they were.
    """

    def __init__(self) -> None:
        runner = _part(trio._core._run, "GLOBAL_RUN_CONTEXT.runner")
        self._runnable = _part(runner, "runq")
        self._calls = _part(runner, "entry_queue.queue")
        self._idempotent_calls = _part(runner, "entry_queue.idempotent_queue")
        self._next_deadline = _part(runner, "deadlines.next_deadline")

    @property
    def is_busy(self) -> bool:
        """Whether something is to happen at this instant: a task can run, or a callback waits."""
        return bool(self._runnable or self._calls or self._idempotent_calls)

    def free_until_s(self) -> float:
        """The earliest deadline of a cancel scope, infinite for none; minus infinity if the loop is busy."""
        if self._runnable or self._calls or self._idempotent_calls:
            return -math.inf
        return self._next_deadline()


def isolate() -> None:
    """Cut the run that is about to begin off from the outside. To be called when its clock starts.

    Raises:
        UnknownTrioError: trio's private names are not what they were.
    """
    runner = _part(trio._core._run, "GLOBAL_RUN_CONTEXT.runner")
    for path in ("entry_queue.wakeup.wait_woken", "entry_queue.wakeup.wakeup_thread_and_signal_safe"):
        _part(runner, path)
    for path in ("queue", "idempotent_queue"):
        _part(runner.entry_queue, path)
    for path in ("io_manager.get_events", "io_manager.process_events", "io_manager.close"):
        _part(runner, path)
    instruments = _part(runner, "instruments.data")
    wakeup = runner.entry_queue.wakeup = _Wakeup(runner.entry_queue.wakeup)
    runner.io_manager = _NoIO(runner.io_manager, wakeup)
    runner.instruments = instruments  # a plain dictionary, which is asked faster


class _Wakeup:
    """Wakes the task that makes the calls of ``run_sync_soon``, as trio's pair of sockets does.

    Args:
        sockets: that pair.

    Attributes:
        called: there are calls to make.
    """

    def __init__(self, sockets: Any) -> None:
        self.called = False
        self._sockets = sockets
        self._sleeper: trio.lowlevel.Task | None = None

    def wakeup_thread_and_signal_safe(self) -> None:
        self.called = True

    async def wait_woken(self) -> None:
        self._sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._give_up)
        self.called = False

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED

    @property
    def is_due(self) -> bool:
        return self.called and self._sleeper is not None

    def wake(self) -> None:
        task, self._sleeper = self._sleeper, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def close(self) -> None:
        self._sockets.close()


class _NoIO:
    """Stands for what trio reads events from: there is only one.

    Args:
        real: what it stands for.
    """

    def __init__(self, real: Any, wakeup: _Wakeup) -> None:
        self._real = real
        self._wakeup = wakeup

    def get_events(self, timeout: float) -> object:
        """Something that is true if there is anything for `process_events`."""
        wakeup = self._wakeup
        if timeout and not wakeup.is_due:
            self._real.get_events(min(timeout, LOOKS_S))
        return wakeup.called and wakeup.is_due

    def process_events(self, events: object) -> None:
        if events:
            self._wakeup.wake()

    def close(self) -> None:
        self._real.close()
