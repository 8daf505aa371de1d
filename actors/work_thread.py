"""A thread of an instance's own: one piece of work after the other, results back on the event loop.

A thread cannot be killed. When it is not waited for any more (a batch outlived the hang limit, or the server's time to
stop is up), it is abandoned: it ends by itself when the backend returns, and its result is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import outcome
import trio

from ..engine.job import ExecutionBatch
from .actor import Turn

T = TypeVar("T")


class ExecutorDiedError(Exception):
    """The executor failed outside the backend's own error handling; its instance is lost."""


def first_error(group: BaseExceptionGroup) -> BaseException:
    """An exception in it that is an `Exception`: one is enough, and the others often say the same. The group itself if
    there is none."""
    errors = group.subgroup(Exception)
    first: BaseException = errors or group
    while errors is not None and isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


class Worker(Protocol):
    """Does pieces of work, one after the other, while the event loop goes on."""

    def put(self, work: Callable[[], object], done: Callable[[outcome.Outcome[Any]], object]) -> None:
        """Have `work` done. What it returns or raises is given to `done`, on the event loop, in a turn, later; `done`
        must not raise."""
        ...

    def close(self) -> None:
        """Nothing more will come. Does not wait."""
        ...


class Done(Protocol):
    """Called when a batch is over (`executors`, rule 2), or its instance has died meanwhile of `death`: then the batch
    is not finished."""

    def __call__(self, batch: ExecutionBatch, death: Exception | None = None, /) -> None: ...


class WorkThread:
    """A worker with a daemon thread.

    Args:
        turn: in which pieces are done.
    """

    def __init__(self, name: str, turn: Turn) -> None:
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()  # bounded by its callers: a batch for each credit
        self._thread = threading.Thread(target=_serve, args=(self._pieces, turn), name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], object], done: Callable[[outcome.Outcome[Any]], object]) -> None:
        self._pieces.put((work, done))

    def close(self) -> None:
        self._pieces.put(None)

    def __repr__(self) -> str:
        return f"<WorkThread {self._thread.name}{'' if self._thread.is_alive() else ' (ended)'}>"


_Piece = tuple[Callable[[], object], Callable[[outcome.Outcome[Any]], object]]


def _serve(pieces: SimpleQueue[_Piece | None], turn: Turn) -> None:
    """The thread: work until told to stop, or until the event loop is gone."""
    while (piece := pieces.get()) is not None:
        work, done = piece
        result = result_of(work)
        try:
            turn.call_from_thread(done, result)
        except trio.RunFinishedError:
            return
        del piece, work, done, result  # while waiting for the next one, the data of the last one is not held


def result_of(work: Callable[[], object]) -> outcome.Outcome[Any]:
    """Do a piece of work."""
    try:
        return outcome.Value(work())
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
    waiting = [trio.lowlevel.current_task()]

    def done(result: outcome.Outcome[Any]) -> None:
        if waiting:
            trio.lowlevel.reschedule(waiting.pop(), result)

    def abandon(_raise_cancel: object) -> trio.lowlevel.Abort:
        waiting.clear()
        return trio.lowlevel.Abort.SUCCEEDED

    worker.put(work, done)
    return await trio.lowlevel.wait_task_rescheduled(abandon)
