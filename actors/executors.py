"""Where backends run: the executor interface, and its implementation with one thread an instance.

An executor runs one thing at a time. `run` is for making and closing an instance, `execute` for its batches. What a
backend raises inside a batch is answered to that batch's requests and the executor lives on; anything else that goes
wrong is raised to the instance actor, which dies of it and is replaced by its supervisor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import trio

from ..engine.backends.interface import ModelInstance, ProcessInstance, StreamInstance
from ..engine.cancellation import Cancellation
from ..engine.errors import InternalError, backend_failure
from ..engine.execution import ExecutionBatch, Phase
from ..engine.placement import Placement
from .offload import run_on_thread
from .process_executor import ProcessExecutor
from .socket_readiness import Readiness
from .stream_executor import StreamExecutor
from .work_thread import WorkThread, last_word, run_on

T = TypeVar("T")


class Executor(Protocol):
    """Runs one instance's work, one thing at a time, but for batches of an instance that has credits for several.

    Attributes:
        begins: batches may be begun in place (`begin_now`).
        prompt: then one is better begun at once than together with what comes in the same breath.
    """

    begins: bool
    prompt: bool

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        """Run the life of the instance, during which the rest is called, and whatever must go on beside it.

        Raises:
            ExecutorDiedError, TriremeError: the instance is lost; its life is cancelled.
            Exception: what its life raises.
        """
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` where the instance lives and give back its result; what it raises is raised here."""
        ...

    async def execute(self, instance: ModelInstance, batch: ExecutionBatch) -> None:
        """Execute a batch; when this returns, ``batch.finish`` has been called.

        Raises:
            ExecutorDiedError: the instance cannot go on.
        """
        ...

    def execute_now(self, instance: ModelInstance, batch: ExecutionBatch) -> bool:
        """Execute a short batch in place, on the event loop; False, with nothing done, if it is to be awaited."""
        ...

    def begin_now(
        self, instance: ModelInstance, batch: ExecutionBatch, on_over: Callable[[ExecutionBatch], None]
    ) -> bool:
        """Begin a batch in place, which is over when `on_over` is called, later; False, with nothing done, if it is to
        be awaited. Only where `begins` says that this can be."""
        ...

    async def end(self, instance: ModelInstance) -> None:
        """Close an instance that executes no more."""
        ...

    def close(self) -> None:
        """No more work will come. Does not wait."""
        ...


class Executors(Protocol):
    """Makes executors, and runs loading work; injected into the server."""

    def instance_executor(self, name: str, kind: type[ModelInstance]) -> Executor:
        """For an instance of that kind (`LoadedModel.instance_class`)."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run loading work (reading files, building models) without holding up the event loop."""
        ...

    async def offload_cancellable(self, work: Callable[[Cancellation], T], unwanted: Callable[[T], None]) -> T:
        """`offload`, for work that may hang. When this is cancelled, the work is told so, and nobody waits for it; a
        result that it has all the same goes to `unwanted`, on the work's thread."""
        ...

    async def briefly(self, work: Callable[[], T]) -> T:
        """Run short work with files without holding up the event loop, however many loads are under way."""
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


def _execute(instance: ModelInstance, batch: ExecutionBatch) -> None:
    batch.mark(Phase.COMPUTE_START)
    run_backend(instance, batch)


class ThreadExecutor:
    """One dedicated daemon thread; short batches of instances that allow it are executed in place.

    Attributes:
        placement: decides which batches those are.
    """

    begins = False
    prompt = False

    def __init__(self, name: str) -> None:
        self.placement = Placement()
        self._thread = WorkThread(name)

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        await life()

    async def run(self, work: Callable[[], T]) -> T:
        return await run_on(self._thread, work)

    async def execute(self, instance: ModelInstance, batch: ExecutionBatch) -> None:
        await self.run(partial(_execute, instance, batch))
        if not instance.thread_bound:
            self._measure(batch, batch.nbytes)

    def execute_now(self, instance: ModelInstance, batch: ExecutionBatch) -> bool:
        if instance.thread_bound:
            return False
        nbytes = batch.nbytes
        if not self.placement.in_place(nbytes):
            return False
        try:
            _execute(instance, batch)
        except BaseException as error:  # on its thread this ends the instance; here it must not end the server
            if isinstance(error, KeyboardInterrupt):  # not the backend's: somebody wants the server to end
                raise
            batch.finish(backend_failure(error))
        self._measure(batch, nbytes)
        return True

    def begin_now(
        self, instance: ModelInstance, batch: ExecutionBatch, on_over: Callable[[ExecutionBatch], None]
    ) -> bool:
        return False  # either it is over at once, or it is awaited

    async def end(self, instance: ModelInstance) -> None:
        await self.run(instance.close)

    def _measure(self, batch: ExecutionBatch, nbytes: int) -> None:
        self.placement.measured(nbytes, batch.marks[Phase.COMPUTE_END] - batch.marks[Phase.COMPUTE_START])

    def close(self) -> None:
        self._thread.close()

    def __repr__(self) -> str:
        return f"<ThreadExecutor on {self._thread!r}>"


class ThreadExecutors:
    """Threads for everything but processes: the real server's executors.

    Args:
        load_threads: loads that may run at once.
        readiness: where the sockets of processes are watched.
    """

    def __init__(self, load_threads: int, readiness: Readiness) -> None:
        self._readiness = readiness
        self._limiter = trio.CapacityLimiter(load_threads)

    def instance_executor(self, name: str, kind: type[ModelInstance]) -> Executor:
        if issubclass(kind, ProcessInstance):
            return ProcessExecutor(name, self._readiness)
        if issubclass(kind, StreamInstance):
            return StreamExecutor(name, WorkThread(name))
        return ThreadExecutor(name)

    async def offload(self, work: Callable[[], T]) -> T:
        return await run_on_thread(_survive, work, limiter=self._limiter)

    async def offload_cancellable(self, work: Callable[[Cancellation], T], unwanted: Callable[[T], None]) -> T:
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
        return await run_on_thread(_survive, work)
