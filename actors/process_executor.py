"""Where instances live that have a process of their own: nothing waits for one on a thread.

The event loop gives a batch to the process, and one task for each of its descriptors (its socket, what it prints, its
end) takes in what it says. When the process is lost, the instance dies of it as of anything else; and whatever it dies
of, its process is ended, what it held is answered, and nothing of it is left.

Making a process and telling it to end take time, and so do large inputs, which have to be copied: those are done on
threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

import trio

from ..engine.backends.interface import ModelInstance, ProcessInstance
from ..engine.errors import FailureReason, InternalError, TriremeError
from ..engine.job import ExecutionBatch, Phase
from .actor import Turn
from .offload import Done, first_error, run_on_thread
from .socket_readiness import Readiness

T = TypeVar("T")

COPIED_IN_PLACE_BYTES = 256 << 10
"""Inputs of a batch that are copied on the event loop; more take a thread."""

_BURIAL_S = 10.0
"""A process that was killed is gone within this time, or is beyond help."""


class ProcessExecutor:
    """One process instance's executor. Executes as many batches at a time as the instance has credits.

    Args:
        readiness: where the process's socket is watched, which speaks most; the others are left to trio.
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

    async def _watch(self, instance: ProcessInstance, descriptor: int, act: Callable[[], bool]) -> None:
        def hear() -> bool:
            going_on = act()
            if self._changed:  # asking is cheaper than waking no task
                self._changed.unpark_all()
            if instance.busy:
                self._readiness.give_way()
            return going_on

        if descriptor == instance.fileno():
            await self._readiness.keep_hearing(descriptor, hear)
            return
        going_on = True
        while going_on:
            await trio.lowlevel.wait_readable(descriptor)
            with self._turn:
                going_on = hear()

    async def end_instance(self, instance: ModelInstance) -> None:
        assert isinstance(instance, ProcessInstance), "this executor has made it"
        instance.ask_to_end()
        await trio.to_thread.run_sync(instance.close, abandon_on_cancel=True)

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        made = cast(ProcessInstance, instance)  # asking an abstract class costs as much as what follows
        batch.mark(Phase.COMPUTE_START)
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
        with contextlib.suppress(TriremeError):  # the process is gone, as the task that watches it is about to notice
            instance.begin(batch, prepared)

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
