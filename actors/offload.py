"""Work on threads.

The loop serves all clients, so what takes time in proportion to a client's bytes (JSON, compression, copies of shared
memory) is done on a thread once there are many. A thread alone does not help where one C call holds the interpreter's
lock all the time; such work is done in pieces as well, one piece of all such works at a time (`piecework`).

An instance has a thread of its own (`WorkThread`). A thread cannot be killed: when it is not waited for any more (a
batch outlived the hang limit, or the server's time to stop is up), it is abandoned. It ends by itself when the backend
returns, and its result is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, TypeVarTuple

import numpy as np
import outcome
import trio

from ..engine.errors import TriremeError, unframed
from ..engine.job import ExecutionBatch
from ..engine.tensor import Buffer, joined, memory_for
from .actor import Turn
from .piecework import Piecework

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREADS = 4
_PIECEWORK_THREADS = 16
"""More, since all but one of them wait: a document of 300 KiB is not to wait for four of 64 MiB."""
LARGE_ARRIVAL_BYTES = 1 << 20
"""Most that is received at once of a large body, so that other connections get their turn meanwhile."""

_READY_BYTES = 8 << 20
_PAGE_BYTES = 4096


def copied_in_pieces(data: Buffer) -> memoryview:
    """A copy of bytes, made without the interpreter's lock."""
    return joined([data])


def _attempt(function: Callable[[*Ts], T], args: tuple[*Ts]) -> outcome.Outcome[T]:
    """Call a function. An error that trio brings from a thread refers to a frame of trio's, and that to the error. So
    the arguments, which may be a client's body, would stay in memory until the garbage collector comes: after they
    have left the budget."""
    try:
        return outcome.Value(function(*args))
    except (TriremeError, trio.Cancelled) as error:
        return outcome.Error(unframed(error))


async def run_on_thread(
    function: Callable[[*Ts], T],
    *args: *Ts,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """Run a function on a thread. An error for a client that it raises keeps nothing of what it worked with.

    Args:
        limiter: of how many threads may be at it; trio's own if there is none.
        abandon_on_cancel: cancelling this does not wait for the thread, which counts for the limiter until its end.

    Raises:
        Exception: what the function raises.
    """
    work = trio.to_thread.run_sync(_attempt, function, args, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
    return (await work).unwrap()  # not kept here: an error and this frame would refer to each other


def body_memory(nbytes: int) -> memoryview:
    """Memory for a body, not zeroed: what is only announced costs none."""
    return memory_for(nbytes)


class ArrivingBytes:
    """Memory for bytes of a known number that arrive bit by bit.

    The event loop receives them. Memory that the system has not given out before takes up to 5 ms for each
    huge page, when it is first written to, on machines that are virtual. So a thread writes to it before; to the next
    few megabytes, when those before them have arrived: what a client only announces costs no memory. If there are no
    more, the first megabyte is not worth a thread.

    Attributes:
        whole: all of it, not zeroed.
    """

    def __init__(self, nbytes: int, memory: Callable[[int], memoryview] = body_memory) -> None:
        self.whole = memory(nbytes)
        self._ready = LARGE_ARRIVAL_BYTES if nbytes <= _READY_BYTES else 0

    async def begin(self, pieces: list[Buffer]) -> int:
        """Put what has arrived already at the beginning; how many bytes that is."""
        if not self._ready:
            await self._make_ready(0)
        begun = b"".join(pieces)
        self.whole[: len(begun)] = begun
        return len(begun)

    async def place(self, filled: int) -> memoryview:
        """Where what comes next belongs; so much of it may be received at once."""
        if filled >= self._ready:
            await self._make_ready(filled)  # what is before has arrived: it must not be written to
        return self.whole[filled : min(filled + LARGE_ARRIVAL_BYTES, self._ready)]

    async def _make_ready(self, start: int) -> None:
        self._ready = start + _READY_BYTES
        await run_on_thread(_write_to, self.whole[start : self._ready])


def _write_to(memory: memoryview) -> None:
    np.frombuffer(memory, np.uint8)[::_PAGE_BYTES] = 0


class Offload:
    """A bounded number of threads, which one server owns; who comes when all are at work waits.

    Called with a function and its arguments, it runs the function on a thread and gives back what it returns or raises.
    A caller that is cancelled leaves when the function has returned.

    Attributes:
        piecework: whose turn it is, of what is done `in_pieces`.
    """

    __slots__ = ("_limiter", "_nursery", "_piecework_limiter", "piecework")

    def __init__(self, threads: int = _THREADS) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self.piecework = Piecework()
        self._piecework_limiter = trio.CapacityLimiter(_PIECEWORK_THREADS)
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery) -> None:
        """Let `later` run its tasks in a nursery, which ends with the server."""
        self._nursery = nursery

    def later(self, function: Callable[[], T], done: Callable[[T], None], *, in_pieces: bool = False) -> None:
        """Run a function on a thread, for who is no task. `done` gets what it returns, on the event loop, unless the
        server ends before. Both must not raise."""
        assert self._nursery is not None, "the server is open"
        self._nursery.start_soon(self._run_later, function, done, in_pieces)

    async def _run_later(self, function: Callable[[], T], done: Callable[[T], None], in_pieces: bool) -> None:
        done(await (self.in_pieces(function) if in_pieces else self(function)))

    async def __call__(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await run_on_thread(function, *args, limiter=self._limiter)

    async def in_pieces(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """The same for a function that asks for its turn before each piece of work (`piecework`). A caller that is
        cancelled leaves after the piece that is being done."""
        with self.piecework.loop.observed():
            return await run_on_thread(self.piecework.do, function, *args, limiter=self._piecework_limiter)


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


Outcomes = Callable[[outcome.Outcome[Any]], object]
"""Is given what a piece of work has returned or raised."""


class Worker(Protocol):
    """Does pieces of work, one after the other, while the event loop goes on."""

    def put(self, work: Callable[[], object], done: Outcomes, then: Outcomes | None = None) -> None:
        """Have `work` done. What it returns or raises is given to `done`, on the event loop, in a turn, later; and to
        `then` before, by the worker itself, to which more work may be given there. Both must not raise."""
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

    def put(self, work: Callable[[], object], done: Outcomes, then: Outcomes | None = None) -> None:
        self._pieces.put((work, done, then))

    def close(self) -> None:
        self._pieces.put(None)


_Piece = tuple[Callable[[], object], Outcomes, Outcomes | None]


def _serve(pieces: SimpleQueue[_Piece | None], turn: Turn) -> None:
    """The thread: work until told to stop, or until the event loop is gone."""
    while (piece := pieces.get()) is not None:
        work, done, then = piece
        result = result_of(work)
        if then is not None:
            then(result)
        try:
            turn.call_from_thread(done, result)
        except trio.RunFinishedError:
            return
        del piece, work, done, then, result  # while waiting for the next one, the data of the last one is not held


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
