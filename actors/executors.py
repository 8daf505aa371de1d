"""Where backends run: the executor interface, and its implementations with a thread, or a process, an instance.

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

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import outcome
import trio

from ..engine.backends.interface import ModelInstance, ProcessInstance, SteppedInstance, StreamInstance
from ..engine.cancellation import Cancellation
from ..engine.errors import FailureReason, InternalError, TriremeError, backend_failure
from ..engine.instances.executing import Placement
from ..engine.job import COMPUTE_START, ExecutionBatch
from .actor import Turn
from .offload import Done, WorkThread, first_error, last_word, run_on, run_on_thread
from .socket_readiness import Readiness
from .step_executor import StepExecutor
from .stream_executor import StreamExecutor

T = TypeVar("T")

COPIED_IN_PLACE_BYTES = 256 << 10
"""Inputs of a batch that are copied on the event loop; more take a thread."""

_BURIAL_S = 10.0
"""A process that was killed is gone within this time, or is beyond help."""


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
            batch.mark(COMPUTE_START)
            run_backend(instance, batch)
        except BaseException as error:  # on its thread this ends the instance; here it must not end the server
            if isinstance(error, KeyboardInterrupt):  # not the backend's: the operator wants the server to end
                raise
            batch.finish(backend_failure(error))
        self.placement.measured(nbytes, batch.took_ns)
        done(batch)

    def _put(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        """Have the thread execute a batch."""
        batch.aside = True

        def execute() -> None:
            batch.mark(COMPUTE_START)
            run_backend(instance, batch)

        def executed(result: outcome.Outcome[None]) -> None:
            done(batch, cast(Exception, result.error) if isinstance(result, outcome.Error) else None)

        self._thread.put(execute, executed)

    def _measured(self, nbytes: int, done: Done, batch: ExecutionBatch, death: Exception | None = None) -> None:
        if death is None:
            self.placement.measured(nbytes, batch.took_ns)
        done(batch, death)

    async def end_instance(self, instance: ModelInstance) -> None:
        await self.call(instance.close)

    def close(self) -> None:
        self._thread.close()


class ProcessExecutor:
    """One process instance's executor. Executes as many batches at a time as the instance has credits.

    No thread waits for the process. The event loop gives it a batch, and one task for each of its descriptors (its
    socket, what it prints, its end) takes in what it says. When the process is lost, the instance dies of it as of
    anything else; and whatever it dies of, its process is ended, what it held is answered, and nothing of it is left.
    Threads are for what takes time: making a process, telling it to end, and copying large inputs.

    Args:
        readiness: where the process's descriptors are watched.
        turn: in which what the process says is heard.
    """

    def __init__(self, name: str, readiness: Readiness, turn: Turn) -> None:
        self._name = name
        self._turn = turn
        self._readiness = readiness
        self._nursery: trio.Nursery | None = None
        self._instance: ProcessInstance | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._executing: dict[ExecutionBatch, Done] = {}
        self._flushing = False
        self._started = False

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        error: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await life()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = first_error(group)
        finally:
            self._nursery = None
            await self._bury(error)
        if isinstance(error, TriremeError):
            error.__context__ = None  # neither it nor its traceback, which may be kept with a log record,
            raise error.with_traceback(None)  # is to hold on to the data of the last batch
        if error is not None:
            raise error

    async def call(self, work: Callable[[], T]) -> T:
        result = await run_on_thread(work)
        if isinstance(result, ProcessInstance):
            await self._start(result)
        return result

    async def _start(self, instance: ProcessInstance) -> None:
        assert self._nursery is not None, "an instance is made during its life"
        self._instance = instance
        instance.on_finished = self._finished
        instance.on_congestion = self._congested
        instance.on_returned = partial(_soon, trio.lowlevel.current_trio_token(), instance.give_back)
        instance.now_s = trio.current_time
        instance.later = partial(self._begin, _later)
        instance.aside = partial(self._begin, _aside)
        start_soon = self._nursery.start_soon
        for descriptor, act in instance.sources().items():
            start_soon(self._watch, instance, descriptor, act)
        for descriptor, read in instance.outputs().items():
            start_soon(_pass_on, descriptor, read)
        self._congested()
        with trio.move_on_after(instance.launch_limit_s) as limit:
            while not instance.up:
                await self._changed.park()
        if limit.cancelled_caught:
            raise InternalError(f"the process of instance '{self._name}' is not up after {instance.launch_limit_s:g} s")
        while not instance.started:
            await self._changed.park()
        self._started = True

    async def _watch(self, instance: ProcessInstance, descriptor: int, act: Callable[[], bool]) -> None:
        def hear() -> bool:
            going_on = act()
            if not self._started:
                self._changed.unpark_all()
            if instance.busy:
                self._readiness.give_way()
            return going_on

        answers = descriptor == instance.fileno()
        await self._readiness.keep_hearing(descriptor, hear, often=answers, ahead=answers)

    async def end_instance(self, instance: ModelInstance) -> None:
        assert isinstance(instance, ProcessInstance), "this executor has made it"
        instance.ask_to_end()
        await trio.to_thread.run_sync(instance.close, abandon_on_cancel=True)

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        made = cast(ProcessInstance, instance)  # asking an abstract class costs as much as what follows
        batch.mark(COMPUTE_START)
        self._executing[batch] = done
        if batch.nbytes > COPIED_IN_PLACE_BYTES:
            self._begin(self._prepare_on_thread, made, batch)
            return
        try:
            prepared = made.prepare(batch)
        except TriremeError as error:
            self._refuse(batch, error)
        else:
            self._give(made, batch, prepared)

    async def _prepare_on_thread(self, instance: ProcessInstance, batch: ExecutionBatch) -> None:
        try:
            prepared = await run_on_thread(instance.prepare, batch)
        except TriremeError as error:
            with self._turn:
                self._refuse(batch, error)
        else:
            self._give(instance, batch, prepared)

    def _refuse(self, batch: ExecutionBatch, error: TriremeError) -> None:
        """The inputs of a batch cannot be given to the process."""
        batch.finish(error)
        self._finished(batch)

    def _give(self, instance: ProcessInstance, batch: ExecutionBatch, prepared: Any) -> None:
        try:
            instance.begin(batch, prepared)
        except TriremeError:  # the process is gone, as the task that watches it is about to notice
            return

    def close(self) -> None:
        """What there is to give back is given back at the end of `around`."""

    def _finished(self, batch: ExecutionBatch) -> None:
        self._executing.pop(batch)(batch)

    def _congested(self) -> None:
        if not self._flushing:
            self._flushing = self._begin(self._flush)

    def _begin(self, act: Callable[..., Awaitable[None]], *arguments: Any) -> bool:
        """Begin a task, unless the instance is at its end: there may be no tasks any more, and the caller need not
        know."""
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            return False
        self._nursery.start_soon(act, *arguments)
        return True

    async def _flush(self) -> None:
        instance = self._instance
        assert instance is not None, "what does not exist has nothing to flush"
        try:
            while not instance.flush():
                await trio.lowlevel.wait_writable(instance.fileno())
        finally:
            self._flushing = False

    async def _bury(self, cause: BaseException | None) -> None:
        """End the process, if it has not ended, and give everything back."""
        instance, self._instance = self._instance, None
        self._executing.clear()
        if instance is None:
            return
        instance.kill()
        with trio.CancelScope(shield=True), trio.move_on_after(_BURIAL_S if instance.killable else 0.0):
            await trio.lowlevel.wait_readable(instance.ended)
        if not isinstance(cause, TriremeError):
            known = isinstance(cause, Exception)
            text = str(cause) if known else f"instance '{self._name}' has been stopped"
            cause = InternalError(text, reason=FailureReason.BACKEND)
        instance.abandon(cause)


async def _pass_on(descriptor: int, read: Callable[[float], float | None]) -> None:
    """Pass on what a process prints, no faster than it says: meanwhile the process waits at its full pipe."""
    pause_s: float | None = 0.0
    while pause_s is not None:
        await trio.lowlevel.wait_readable(descriptor)
        pause_s = read(trio.current_time())
        if pause_s:
            await trio.sleep(pause_s)


async def _later(seconds: float, act: Callable[[], None]) -> None:
    await trio.sleep(seconds)
    act()


async def _aside(work: Callable[[], Any], then: Callable[[Any], None]) -> None:
    then(await run_on_thread(work))


def _soon(token: trio.lowlevel.TrioToken, act: Callable[[], None]) -> None:
    """From any thread."""
    with contextlib.suppress(trio.RunFinishedError):
        token.run_sync_soon(act, idempotent=True)


class Executors:
    """Makes executors, and runs loading work: on threads, all but processes.

    Args:
        load_threads: loads that may run at once; and as many fetches.
        readiness: where the sockets of processes are watched.
    """

    def __init__(self, load_threads: int, readiness: Readiness) -> None:
        self._readiness = readiness
        self._limiter = trio.CapacityLimiter(load_threads)
        self._fetch_limiter = trio.CapacityLimiter(load_threads)

    def instance_executor(self, name: str, kind: type[ModelInstance], turn: Turn) -> Executor:
        """For an instance of that kind (`LoadedModel.instance_class`). Its batches are over in `turn`."""
        if issubclass(kind, ProcessInstance):
            return ProcessExecutor(name, self._readiness, turn)
        if issubclass(kind, StreamInstance):
            return StreamExecutor(name, WorkThread(name, turn), turn)
        if issubclass(kind, SteppedInstance):
            return StepExecutor(WorkThread(name, turn), partial(WorkThread, f"{name} aside", turn))
        return ThreadExecutor(name, turn)

    async def offload(self, work: Callable[[], T]) -> T:
        """Run loading work (reading files, building models) without holding up the event loop."""
        return await run_on_thread(_survive, work, limiter=self._limiter)

    async def offload_cancellable(self, work: Callable[[Cancellation], T], unwanted: Callable[[T], None]) -> T:
        """`offload`, for work that may hang. When this is cancelled, the work is told so, and not waited for; a result
        that it has all the same goes to `unwanted`, on the work's thread."""
        return await self._cancellable(work, unwanted, self._limiter)

    async def fetch(self, work: Callable[[Cancellation], T], unwanted: Callable[[T], None]) -> T:
        """`offload_cancellable` for work that brings files here, which may take long: it holds up no loads."""
        return await self._cancellable(work, unwanted, self._fetch_limiter)

    async def _cancellable(
        self, work: Callable[[Cancellation], T], unwanted: Callable[[T], None], limiter: trio.CapacityLimiter
    ) -> T:
        cancellation = Cancellation()
        made: list[T] = []

        def attempt() -> None:
            made.append(work(cancellation))
            if not cancellation.complete():
                unwanted(made.pop())

        try:
            await run_on_thread(_survive, attempt, limiter=limiter, abandon_on_cancel=True)
        except trio.Cancelled:
            if cancellation.cancel():
                raise
        return made.pop()

    async def look(self, work: Callable[[], T]) -> T:
        """Look at files, or ask a store. When this is cancelled, the thread is not waited for."""
        return await run_on_thread(_survive, work, abandon_on_cancel=True)

    async def briefly(self, work: Callable[[], T]) -> T:
        """Run short work with files without holding up the event loop, however many loads are under way."""
        return await run_on_thread(_survive, work)
