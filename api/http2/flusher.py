"""Writes for connections whose answers come from elsewhere: once each for all that a pass of the loop brings."""

from __future__ import annotations

from typing import Protocol

import trio


class Flushable(Protocol):
    """A connection, once `add`ed, is not added again before it was flushed."""

    def flush(self) -> None:
        """Write what there is. Does not wait, and does not raise."""
        ...


class Flusher:
    """One task for all connections of a service. What one pass of the event loop adds, the next one writes."""

    __slots__ = ("_dirty", "_task")

    def __init__(self) -> None:
        self._dirty: list[Flushable] = []
        self._task: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        return f"<Flusher: {len(self._dirty)} connections to write to>"

    def add(self, connection: Flushable) -> None:
        """The connection has something to write."""
        self._dirty.append(connection)
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    async def keep_flushing(self) -> None:
        """Writes until cancelled."""
        while True:
            while self._dirty:
                dirty, self._dirty = self._dirty, []
                for connection in dirty:
                    connection.flush()
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
