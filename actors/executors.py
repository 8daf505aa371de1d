"""Where backends run: the executor interface, and its implementation with one thread an instance.

Rules:
 1. `call` is for making and closing an instance, `begin` for its batches. There are never more batches begun and not
    over than the instance has credits.
 2. A batch that was begun is over when its `done` is called, on the event loop and in a turn: before `begin` returns if
    it was executed in place, later if a thread, a process or a device executes it. By then ``batch.finish`` was called.
 3. What a backend raises inside a batch is answered to that batch's requests, and the executor lives on. Anything else
    that goes wrong costs the instance: it is given to `done`, or raised by `begin` or by `around`.
 4. When the instance has died, `done` may still be called, to no effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar, cast

import outcome
import trio

from ..engine.backends.interface import ModelInstance, ProcessInstance, StreamInstance
from ..engine.cancellation import Cancellation
from ..engine.errors import InternalError, backend_failure
from ..engine.instances.executing import Placement
from ..engine.job import ExecutionBatch, Phase
from .actor import Turn
from .offload import Done, WorkThread, last_word, run_on, run_on_thread
from .process_executor import ProcessExecutor
from .socket_readiness import Readiness
from .stream_executor import StreamExecutor

T = TypeVar("T")


class Executor(Protocol):
    """Runs one instance's work."""

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        """Run the life of the instance, during which the rest is called, and whatever must go on beside it. Raises what
        the life raises; or `ExecutorDiedError` or `TriremeError` when the instance is lost, and its life cancelled."""
        ...

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` where the instance lives and give back its result; what it raises is raised here."""
        ...

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        """Begin a batch (rule 2).

        Raises:
            Exception: the instance cannot go on.
        """
        ...

    async def end_instance(self, instance: ModelInstance) -> None:
        """Close an instance that executes no more."""
        ...

    def close(self) -> None:
        """No more work will come. Does not wait."""
        ...


def _survive(work: Callable[[], T]) -> T:
    """Do loading work. A model's code that calls ``sys.exit()``, or worse, ends its load, not the server."""
    try:
        return work()
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise InternalError(f"the model's code ended its thread ({last_word(error)})") from error


def run_backend(instance: ModelInstance, batch: ExecutionBatch) -> None:
    """Run a batch to its end on the calling thread: the backend's errors become the requests' answers."""
    try:
        instance.execute(batch)
    except Exception as error:  # noqa: BLE001 - the boundary to foreign code: whatever it raises is its requests' answer
        batch.finish(backend_failure(error))
    else:
        batch.finish()


class ThreadExecutor:
    """One dedicated daemon thread; short batches of instances that allow it are executed in place (`placement`)."""

    def __init__(self, name: str, turn: Turn) -> None:
        self.placement = Placement()
        self._thread = WorkThread(name, turn)

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        await life()

    async def call(self, work: Callable[[], T]) -> T:
        return await run_on(self._thread, work)

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        if instance.thread_bound:
            self._put(instance, batch, done)
            return
        nbytes = batch.nbytes
        if not self.placement.in_place(nbytes):
            self._put(instance, batch, partial(self._measured, nbytes, done))
            return
        try:
            batch.mark(Phase.COMPUTE_START)
            run_backend(instance, batch)
        except BaseException as error:  # on its thread this ends the instance; here it must not end the server
            if isinstance(error, KeyboardInterrupt):  # not the backend's: the operator wants the server to end
                raise
            batch.finish(backend_failure(error))
        self._measured(nbytes, done, batch)

    def _put(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        """Have the thread execute a batch."""

        def execute() -> None:
            batch.mark(Phase.COMPUTE_START)
            run_backend(instance, batch)

        def executed(result: outcome.Outcome[None]) -> None:
            done(batch, cast(Exception, result.error) if isinstance(result, outcome.Error) else None)

        self._thread.put(execute, executed)

    def _measured(self, nbytes: int, done: Done, batch: ExecutionBatch, death: Exception | None = None) -> None:
        if death is None:
            self.placement.measured(nbytes, batch.marks[Phase.COMPUTE_END] - batch.marks[Phase.COMPUTE_START])
        done(batch, death)

    async def end_instance(self, instance: ModelInstance) -> None:
        await self.call(instance.close)

    def close(self) -> None:
        self._thread.close()


class Executors:
    """Makes executors, and runs loading work: on threads, all but processes.

    Args:
        load_threads: loads that may run at once.
        readiness: where the sockets of processes are watched.
    """

    def __init__(self, load_threads: int, readiness: Readiness) -> None:
        self._readiness = readiness
        self._limiter = trio.CapacityLimiter(load_threads)

    def instance_executor(self, name: str, kind: type[ModelInstance], turn: Turn) -> Executor:
        """For an instance of that kind (`LoadedModel.instance_class`). Its batches are over in `turn`."""
        if issubclass(kind, ProcessInstance):
            return ProcessExecutor(name, self._readiness, turn)
        if issubclass(kind, StreamInstance):
            return StreamExecutor(name, WorkThread(name, turn), turn)
        return ThreadExecutor(name, turn)

    async def offload(self, work: Callable[[], T]) -> T:
        """Run loading work (reading files, building models) without holding up the event loop."""
        return await run_on_thread(_survive, work, limiter=self._limiter)

    async def offload_cancellable(self, work: Callable[[Cancellation], T], unwanted: Callable[[T], None]) -> T:
        """`offload`, for work that may hang. When this is cancelled, the work is told so, and not waited for; a result
        that it has all the same goes to `unwanted`, on the work's thread."""
        cancellation = Cancellation()
        made: list[T] = []

        def attempt() -> None:
            made.append(work(cancellation))
            if not cancellation.complete():
                unwanted(made.pop())

        try:
            await run_on_thread(_survive, attempt, limiter=self._limiter, abandon_on_cancel=True)
        except trio.Cancelled:
            if cancellation.cancel():
                raise
        return made.pop()

    async def briefly(self, work: Callable[[], T]) -> T:
        """Run short work with files without holding up the event loop, however many loads are under way."""
        return await run_on_thread(_survive, work)
