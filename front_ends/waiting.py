"""Those who wait for room in a link, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")


class WaitingLine:
    """Tasks that wait until something can be done: it is done for them, first for who came first, when `serve` is
    called. A task that is cancelled leaves the line."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[trio.lowlevel.Task, Callable[[], Any]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, attempt: Callable[[], T | None]) -> T:
        """What `attempt` gives or raises; None if it is to be tried again, later."""
        done = None if self._waiting else attempt()
        if done is not None:
            return done
        place = trio.lowlevel.current_task(), attempt
        self._waiting.append(place)

        def leave(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._waiting.remove(place)
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(leave)

    def serve(self) -> None:
        """Something may be possible now."""
        while self._waiting:
            task, attempt = self._waiting[0]
            result = outcome.capture(attempt)
            if isinstance(result, outcome.Value) and result.value is None:
                return
            self._waiting.popleft()
            trio.lowlevel.reschedule(task, result)
