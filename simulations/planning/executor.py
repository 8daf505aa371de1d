"""The executors of a planned run: they call back when a batch's time is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TypeVar

import trio

from ...actors.actor import Turn
from ...actors.executors import Executor, Executors, run_backend
from ...actors.offload import Done
from ...engine.backends.interface import ModelInstance, SteppedInstance
from ...engine.cancellation import Cancellation
from ...engine.instances.executing import Placement
from ...engine.job import COMPUTE_START, INFER_START, OUTPUT_START, ExecutionBatch
from ..clock import JumpingClock
from ..models import SimulatedInstance
from .event_loop import PlannedLoop
from .host import HostCosts
from .notes import Notes
from .planned import ExecutionPlace, PlannedModel
from .step_executor import PlannedStepExecutor

T = TypeVar("T")


class ModelAtWork:
    """What the instances of one model share.

    Attributes:
        busy: how many of them execute.
    """

    def __init__(self, planned: PlannedModel, index: int, seed: int) -> None:
        assert planned.service is not None, "ensembles are executed by their members"
        self.planned = planned
        self.index = index
        self.service = planned.service
        self.chance = Random(f"{seed} {planned.name}")
        self.busy = 0
        self.instances = 0


class _Execution:
    """A batch that was begun."""

    __slots__ = ("batch", "done", "instance", "number")

    def __init__(self, instance: ModelInstance, batch: ExecutionBatch, done: Done, number: int) -> None:
        self.instance = instance
        self.batch = batch
        self.done = done
        self.number = number


class PlannedExecutor:
    """One instance's.

    Args:
        models: by name.
    """

    def __init__(
        self,
        models: Mapping[str, ModelAtWork],
        loop: PlannedLoop,
        clock: JumpingClock,
        costs: HostCosts | None,
        notes: Notes,
    ) -> None:
        self._models = models
        self._loop = loop
        self._clock = clock
        self._costs = costs
        self._notes = notes
        self._model: ModelAtWork  # from when the instance is made

    def _made(self, instance: SimulatedInstance) -> None:
        model = self._model = self._models[instance.config.name]
        place = model.planned.place
        self._number = model.instances
        model.instances += 1
        self._placement = Placement() if place is ExecutionPlace.PROVING else None
        self._on_loop = place is ExecutionPlace.LOOP
        self._cores = self._loop.cores if place is not ExecutionPlace.DEVICE and model.planned.cores > 0 else None

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        await life()

    async def call(self, work: Callable[[], T]) -> T:
        result = work()
        if isinstance(result, SimulatedInstance):
            self._made(result)
        return result

    async def end_instance(self, instance: ModelInstance) -> None:
        instance.close()

    def close(self) -> None:
        """Nothing to give back."""

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        try:
            self._begin(instance, batch, done)
        except Exception as error:
            self._loop.fail(error)
            raise

    def _begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        model, costs, clock, loop = self._model, self._costs, self._clock, self._loop
        model.busy += 1
        rows, requests = batch.rows, len(batch.jobs)
        begun_s = clock.now_s()
        if costs is not None:
            loop.work(costs.begin(model.planned, requests, rows))
        seconds = model.service(rows, model.busy, model.chance)
        number = self._notes.batch_begun_at(batch, model.index, self._number, begun_s)
        execution = _Execution(instance, batch, done, number)
        placement = self._placement
        if self._on_loop or (placement is not None and placement.in_place(batch.nbytes)):
            self._notes.batch_started[number] = clock.now_s()
            batch.mark(COMPUTE_START)
            loop.work(seconds)
            self._notes.batch_ended[number] = clock.now_s()
            self._over(execution)
            return
        delay_s = costs.start(model.planned, requests, rows) if costs is not None else 0.0
        start_s = self._notes.batch_started[number] = clock.now_s() + delay_s
        if self._cores is None:
            self._computed(start_s + seconds, execution)
        else:  # whose core is awaited is as good as taken
            loop.compute(delay_s + seconds, self._model.planned.cores, self._computed, execution)

    def _computed(self, end_s: float, execution: _Execution) -> None:
        self._notes.batch_ended[execution.number] = end_s
        costs = self._costs
        if costs is not None:
            batch = execution.batch
            end_s += costs.notice(self._model.planned, len(batch.jobs), batch.rows)
        self._loop.at(end_s, self._heard, execution)

    def _heard(self, execution: _Execution) -> None:
        costs, batch = self._costs, execution.batch
        if costs is not None:
            self._loop.work(costs.over(self._model.planned, len(batch.jobs), batch.rows))
        self._over(execution)

    def _over(self, execution: _Execution) -> None:
        """The loop knows: as after a batch of an executor with a thread."""
        self._model.busy -= 1
        batch, notes, number = execution.batch, self._notes, execution.number
        started_ns, ended_ns = round(notes.batch_started[number] * 1e9), round(notes.batch_ended[number] * 1e9)
        notes.batch_heard[number] = self._clock.now_s()
        marks = batch.marks
        marks[COMPUTE_START] = marks[INFER_START] = started_ns
        marks[OUTPUT_START] = ended_ns
        run_backend(execution.instance, batch)
        if self._placement is not None:
            self._placement.measured(batch.nbytes, ended_ns - started_ns)
        execution.done(batch)


class PlannedExecutors(Executors):
    """Makes them. Loading takes no time.

    Args:
        make_stepped: of an instance that goes by steps.
    """

    def __init__(self, make: Callable[[], PlannedExecutor], make_stepped: Callable[[], PlannedStepExecutor]) -> None:
        self._make = make
        self._make_stepped = make_stepped

    def instance_executor(self, name: str, kind: type[ModelInstance], turn: Turn) -> Executor:
        return self._make_stepped() if issubclass(kind, SteppedInstance) else self._make()

    async def offload(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    async def offload_cancellable(self, work: Callable[[Cancellation], T], unwanted: Callable[[T], None]) -> T:
        return await self.offload(lambda: work(Cancellation()))

    async def briefly(self, work: Callable[[], T]) -> T:
        return await self.offload(work)

    async def look(self, work: Callable[[], T]) -> T:
        return await self.offload(work)
