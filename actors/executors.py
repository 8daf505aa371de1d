"""Where backends run: the executor interface, and its implementation with one thread an instance.

An executor runs one thing at a time. `run` is for making and closing an instance, `execute` for its batches. What a
backend raises inside a batch is answered to that batch's requests and the executor lives on; anything else that goes
wrong is raised to the instance actor, which dies of it and is replaced by its supervisor.

A thread cannot be killed. When the task that waits for it is cancelled (a batch outlived the hang limit, or the
server's time to stop is up), the thread is abandoned: it ends by itself when the backend returns, and nobody listens.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeVar

import outcome
import trio

from ..engine.backends.interface import ExecutionMode, ModelInstance
from ..engine.errors import FailureReason, InternalError, TriremeError
from ..engine.execution import ExecutionBatch, Phase
from ..engine.placement import Placement
from .process_executor import ProcessExecutor

T = TypeVar("T")


class ExecutorDiedError(Exception):
    """The executor failed outside the backend's own error handling; its instance is lost."""


class Executor(Protocol):
    """Runs one instance's work, one thing at a time, but for batches of an instance that has credits for several."""

    begins: bool

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

    def instance_executor(self, name: str, mode: ExecutionMode) -> Executor:
        """For an instance that behaves like that."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run loading work (reading files, building models) without holding up the event loop."""
        ...


def run_backend(instance: ModelInstance, batch: ExecutionBatch) -> None:
    """Run a batch to its end on the calling thread: the backend's errors become the requests' answers."""
    try:
        instance.execute(batch)
    except TriremeError as error:
        batch.finish(error)
    except Exception as error:  # noqa: BLE001 - the boundary to foreign code: whatever it raises is its requests' answer
        batch.finish(InternalError(f"{type(error).__name__}: {error}", reason=FailureReason.BACKEND))
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

    def __init__(self, name: str) -> None:
        self.placement = Placement()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()  # bounded by the one caller, who waits for each result
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=_serve, args=(self._work, self._token), name=name, daemon=True)
        self._thread.start()

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        await life()

    async def run(self, work: Callable[[], T]) -> T:
        item = _Work(work, trio.lowlevel.current_task())
        self._work.put(item)
        return await trio.lowlevel.wait_task_rescheduled(item.abandon)

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
        except SystemExit as error:  # on its thread this ends the instance; here it must not end the server
            batch.finish(InternalError(f"the backend called exit ({error.code})", reason=FailureReason.BACKEND))
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
        self._work.put(None)

    def __repr__(self) -> str:
        return f"<ThreadExecutor {self._thread.name}{'' if self._thread.is_alive() else ' (ended)'}>"


class _Work:
    """One piece of work and the task that waits for it."""

    __slots__ = ("task", "work")

    def __init__(self, work: Callable[[], object], task: trio.lowlevel.Task) -> None:
        self.work = work
        self.task: trio.lowlevel.Task | None = task

    def abandon(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def done(self, result: outcome.Outcome[object]) -> None:
        """On the event loop: hand the result to the task, if it is still there."""
        if self.task is not None:
            trio.lowlevel.reschedule(self.task, result)


def _serve(queue: SimpleQueue[_Work | None], token: trio.lowlevel.TrioToken) -> None:
    """The thread: work until told to stop, or until the event loop is gone."""
    while (item := queue.get()) is not None:
        try:
            result: outcome.Outcome[object] = outcome.Value(item.work())
        except Exception as error:  # noqa: BLE001 - carried to the waiting task, which raises it
            result = outcome.Error(error)
        except SystemExit as error:  # a backend called sys.exit(): its instance is lost, the server is not
            result = outcome.Error(ExecutorDiedError(f"the backend ended its thread (exit status {error.code})"))
        try:
            token.run_sync_soon(item.done, result)
        except trio.RunFinishedError:
            return
        del item, result  # whoever waits for the next one does not hold on to the data of the last one


class ThreadExecutors:
    """Threads for everything but processes: the real server's executors.

    Args:
        load_threads: loads that may run at once.
    """

    def __init__(self, load_threads: int) -> None:
        self._limiter = trio.CapacityLimiter(load_threads)

    def instance_executor(self, name: str, mode: ExecutionMode) -> Executor:
        return ProcessExecutor(name) if mode is ExecutionMode.ENQUEUE else ThreadExecutor(name)

    async def offload(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._limiter)
