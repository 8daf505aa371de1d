"""Where instances live that compute their batches together, step by step (`SteppedInstance`).

Rules:
 1. One step is under way at a time, on the instance's own thread. What it computes is decided on the event loop, as
    late as can be: when the one before is over, or a batch comes while there is none. What a step has brought is
    answered while the next one is computed.
 2. What a step raises is answered to the requests in it, and the instance lives on. What ends its thread (`SystemExit`)
    ends the instance.
 3. Once the executor is closed no step begins; the end of the last one changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

import outcome
import trio

from ..engine.backends.interface import ModelInstance, SteppedInstance
from ..engine.errors import backend_failure
from ..engine.job import COMPUTE_START, ExecutionBatch
from .offload import Done, ExecutorDiedError, Worker, run_on

T = TypeVar("T")


class StepExecutor:
    """One stepped instance's executor.

    Args:
        worker: the instance's thread.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._executing: dict[ExecutionBatch, Done] = {}
        self._stepping = False
        self._closed = False

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        await life()

    async def call(self, work: Callable[[], T]) -> T:
        return await run_on(self._worker, work)

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        assert isinstance(instance, SteppedInstance), "this executor has made it"
        batch.mark(COMPUTE_START)
        self._executing[batch] = done
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

    def _go_on(self, instance: SteppedInstance) -> None:
        """Rule 1."""
        if self._stepping or self._closed:
            return
        step = instance.begin_step(trio.current_time())
        if step is not None:
            self._stepping = True
            self._worker.put(partial(instance.compute, step), partial(self._computed, instance, step))

    def _computed(self, instance: SteppedInstance, step: Any, result: outcome.Outcome[Any]) -> None:
        self._stepping = False
        if self._closed:
            return
        if isinstance(result, outcome.Error):
            if isinstance(result.error, ExecutorDiedError):
                self._die(result.error)
                return
            instance.fail_step(step, backend_failure(result.error))
        else:
            instance.end_step(step, cast(outcome.Value[Any], result).value)
        self._go_on(instance)
        instance.answer()

    def _die(self, death: Exception) -> None:
        self._closed = True
        for batch, done in list(self._executing.items()):
            done(batch, death)

    async def end_instance(self, instance: ModelInstance) -> None:
        await self.call(instance.close)

    def close(self) -> None:
        self._closed = True
        self._executing.clear()
        self._worker.close()
