"""A thread of an instance's own: one piece of work after the other, results back on the event loop.

A thread cannot be killed. When it is not waited for any more (a batch outlived the hang limit, or the server's time to
stop is up), it is abandoned: it ends by itself when the backend returns, and its result is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeVar

import outcome
import trio

from ..engine.execution import ExecutionBatch
from .turn import Turn

T = TypeVar("T")


class ExecutorDiedError(Exception):
    """The executor failed outside the backend's own error handling; its instance is lost."""


class Piece(Protocol):
    """A piece of work."""

    def work(self) -> object:
        """Done by the worker; what it raises becomes its result."""
        ...

    def done(self, result: outcome.Outcome[object]) -> None:
        """Told on the event loop, in a turn, later. Must not raise."""
        ...


class Worker(Protocol):
    """Does pieces of work, one after the other, while the event loop goes on."""

    def put(self, piece: Piece) -> None: ...

    def close(self) -> None:
        """Nothing more will come. Does not wait."""
        ...


class Done(Protocol):
    """Called when a batch is over; see `executors`, rule 2."""

    def __call__(self, batch: ExecutionBatch, death: Exception | None = None, /) -> None:
        """Take a batch back.

        Args:
            death: what the instance has died of meanwhile; then the batch is not finished.
        """
        ...


class WorkThread:
    """A worker with a daemon thread.

    Args:
        turn: in which pieces are done.
    """

    def __init__(self, name: str, turn: Turn) -> None:
        self._pieces: SimpleQueue[Piece | None] = SimpleQueue()  # bounded by its callers: a batch for each credit
        self._thread = threading.Thread(target=_serve, args=(self._pieces, turn), name=name, daemon=True)
        self._thread.start()

    def put(self, piece: Piece) -> None:
        self._pieces.put(piece)

    def close(self) -> None:
        self._pieces.put(None)

    def __repr__(self) -> str:
        return f"<WorkThread {self._thread.name}{'' if self._thread.is_alive() else ' (ended)'}>"


def _serve(pieces: SimpleQueue[Piece | None], turn: Turn) -> None:
    """The thread: work until told to stop, or until the event loop is gone."""
    while (piece := pieces.get()) is not None:
        result = result_of(piece)
        try:
            turn.call_from_thread(piece.done, result)
        except trio.RunFinishedError:
            return
        del piece, result  # while waiting for the next one, the data of the last one is not held


def result_of(piece: Piece) -> outcome.Outcome[object]:
    """Do a piece of work."""
    try:
        return outcome.Value(piece.work())
    except Exception as error:  # noqa: BLE001 - carried to the task that waits for it
        return outcome.Error(error)
    except BaseException as error:  # noqa: BLE001 - a backend called sys.exit(), or worse: that is its instance's end
        return outcome.Error(ExecutorDiedError(f"the backend ended its thread ({last_word(error)})"))


def last_word(error: BaseException) -> str:
    """What ended a thread that goes on after every `Exception`: an exit, or what its raiser calls no error (a panic in
    an extension's own language, for one)."""
    return f"exit status {error.code}" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"


async def run_on(worker: Worker, work: Callable[[], T]) -> T:
    """Have `work` done and wait for its result; what it raises is raised here. Cancelling this abandons it."""
    piece = _Awaited(work, trio.lowlevel.current_task())
    worker.put(piece)
    return await trio.lowlevel.wait_task_rescheduled(piece.abandon)


@dataclass(slots=True, eq=False)
class _Awaited:
    """One piece of work and the task that waits for it."""

    _work: Callable[[], object]
    _task: trio.lowlevel.Task | None

    def work(self) -> object:
        return self._work()

    def abandon(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def done(self, result: outcome.Outcome[object]) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task, result)
