"""A run of trio's loop that nothing outside of it can reach.

At each of its turns trio asks the operating system what came in, and looks for instruments. In a simulation nothing
comes in, and no debugger looks on: a turn takes a fifth less without. These are private parts of trio as well, beside
those of `determinism`; what tasks see, and in which turn, stays what it was.
"""

from __future__ import annotations

from typing import Any

import trio

LOOKS_S = 0.1
"""How long a loop sleeps in which tasks wait for signals only, before it looks again."""


def isolate() -> None:
    """Cut the run that is about to begin off from the outside. To be called when its clock starts."""
    runner: Any = vars(trio._core._run)["GLOBAL_RUN_CONTEXT"].runner
    wakeup = runner.entry_queue.wakeup = _Wakeup(runner.entry_queue.wakeup)
    runner.io_manager = _NoIO(runner.io_manager, wakeup)
    runner.instruments = runner.instruments.data  # a plain dictionary, which is asked faster


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
        real: whom it stands for.
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
