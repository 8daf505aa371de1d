"""Where instances live that compute their batches together, step by step (`SteppedInstance`).

Rules:
 1. One step is under way at a time, on the instance's own thread. What it computes is decided on the event loop, as
    late as can be: when the one before is over, or a batch comes while there is none. What a step has brought is
    answered while the next one is computed. If the instance has left a step for the thread that may follow (`follow`),
    this goes on with it at once: neither waits for the other.
 2. What a step raises is answered to the requests in it, and the instance lives on. What ends its thread (`SystemExit`)
    ends the instance, whether it has batches or not; so does a device that has failed for good (`SickDeviceError`).
 3. What would hold up the steps for long is done aside, by a thread that is there when it is needed first. Its end may
    begin a step.
 4. Once the executor is closed no step begins; the end of the last one, and of what is done aside, changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import outcome
import trio

from ..engine.backends.interface import ModelInstance, SteppedInstance
from ..engine.errors import backend_failure
from ..engine.gpu.device import SickDeviceError
from ..engine.job import COMPUTE_START, ExecutionBatch
from .offload import Done, ExecutorDiedError, Worker, first_error, run_on

T = TypeVar("T")


@dataclass(slots=True)
class _StepRun:
    """A step of an instance.

    Attributes:
        followed: the thread goes on with another one; set before the event loop is told that this one is over.
    """

    instance: SteppedInstance
    step: Any
    followed: bool = False


class StepExecutor:
    """One stepped instance's executor.

    Args:
        worker: the instance's thread.
        second: makes the thread for what is done aside; None to have the first one do it, between steps.

    Attributes:
        stepping: a step is under way.
        steps: that have been carried out, or have failed; and what has been done aside.
    """

    def __init__(self, worker: Worker, second: Callable[[], Worker] | None = None) -> None:
        self.stepping = False
        self.steps = 0
        self._worker = worker
        self._second = second
        self._aside: Worker | None = None
        self._executing: dict[ExecutionBatch, Done] = {}
        self._closed = False
        self._death: Exception | None = None
        self._died = trio.Event()

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        error: BaseException
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._raise_death)
                await life()
                nursery.cancel_scope.cancel()
            return
        except BaseExceptionGroup as group:
            error = first_error(group)
        error.__context__ = None  # it may be kept with a log record, and is not to hold on to the data of a batch
        raise error.with_traceback(None)

    async def _raise_death(self) -> None:
        """Whatever is being executed: the clients of all that was in the last step may have left."""
        await self._died.wait()
        assert self._death is not None
        raise self._death

    async def call(self, work: Callable[[], T]) -> T:
        return await run_on(self._worker, work)

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        assert isinstance(instance, SteppedInstance), "this executor has made it"
        batch.mark(COMPUTE_START)
        self._executing[batch] = done
        instance.aside = partial(self._do_aside, instance)
        try:
            instance.admit(batch, partial(self._over, batch))
        except Exception as error:  # noqa: BLE001 - the boundary to foreign code, as in `executors`
            batch.finish(backend_failure(error))
            self._over(batch)
            return
        self._go_on(instance)

    def _over(self, batch: ExecutionBatch) -> None:
        done = self._executing.pop(batch, None)
        if done is not None:
            batch.finish()
            done(batch)

    def _do_aside(self, instance: SteppedInstance, work: Callable[[], Any], then: Callable[[Any], object]) -> None:
        """Rule 3."""
        if self._aside is None:
            self._aside = self._worker if self._second is None else self._second()
        self._aside.put(work, partial(self._done_aside, instance, then))

    def _done_aside(
        self, instance: SteppedInstance, then: Callable[[Any], object], result: outcome.Outcome[Any]
    ) -> None:
        if self._closed:
            return
        self.steps += 1
        if isinstance(result, outcome.Error):
            self._die(cast(Exception, result.error))
            return
        then(cast(outcome.Value[Any], result).value)
        self._go_on(instance)

    def _go_on(self, instance: SteppedInstance) -> None:
        """Rule 1."""
        if self.stepping or self._closed:
            return
        step = instance.begin_step(trio.current_time())
        if step is not None:
            self.stepping = True
            self._put(_StepRun(instance, step))

    def _put(self, run: _StepRun) -> None:
        """From the event loop, or from the thread when it has carried out the step before."""
        self._worker.put(
            partial(run.instance.compute, run.step), partial(self._computed, run), partial(self._follow, run)
        )

    def _follow(self, run: _StepRun, result: outcome.Outcome[Any]) -> None:
        """On the thread."""
        if isinstance(result, outcome.Value):
            step = run.instance.follow(run.step, result.value)
            if step is not None:
                run.followed = True
                self._put(_StepRun(run.instance, step))

    def _computed(self, run: _StepRun, result: outcome.Outcome[Any]) -> None:
        instance, step = run.instance, run.step
        self.stepping = run.followed
        if self._closed:
            return
        self.steps += 1
        if isinstance(result, outcome.Error):
            if isinstance(result.error, ExecutorDiedError | SickDeviceError):
                self._die(result.error)
                return
            instance.fail_step(step, backend_failure(result.error))
        else:
            instance.end_step(step, cast(outcome.Value[Any], result).value)
        self._go_on(instance)
        instance.answer()

    def _die(self, death: Exception) -> None:
        self._closed = True
        self._death = death
        self._died.set()

    async def end_instance(self, instance: ModelInstance) -> None:
        await self.call(instance.close)

    def close(self) -> None:
        self._closed = True
        self._executing.clear()
        self._worker.close()
        if self._aside is not None and self._aside is not self._worker:
            self._aside.close()
