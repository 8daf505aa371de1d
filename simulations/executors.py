"""Executors without threads: backends run in virtual time, on the event loop.

No thread may run under a mock clock that jumps (it would jump while the thread works), so loading work is called in
place, and a batch is simulated work that awaits virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from ..actors.executors import Executor, run_backend
from ..engine.backends.interface import ModelInstance
from ..engine.errors import FailureReason, InternalError, TriremeError
from ..engine.execution import ExecutionBatch, Phase
from .models import SimulatedInstance

T = TypeVar("T")


class VirtualExecutor:
    """An executor whose batches take the time that their simulated work says."""

    async def run(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    async def execute(self, instance: ModelInstance, batch: ExecutionBatch) -> None:
        assert isinstance(instance, SimulatedInstance), "only simulated models run in virtual time"
        batch.mark(Phase.COMPUTE_START)
        batch.mark(Phase.INFER_START)
        try:
            await instance.work(batch)
        except TriremeError as error:
            batch.finish(error)
            return
        except SimulatedFailure as error:
            batch.finish(InternalError(str(error), reason=FailureReason.BACKEND))
            return
        batch.mark(Phase.OUTPUT_START)
        run_backend(instance, batch)

    def close(self) -> None:
        """Nothing to give back."""


class SimulatedFailure(Exception):
    """What simulated work raises to play a backend that raises. Anything else kills the instance."""


class VirtualExecutors:
    """Virtual executors for everything."""

    def instance_executor(self, name: str) -> Executor:
        return VirtualExecutor()

    async def offload(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()
