"""Models that exist only in memory, and a backend that takes virtual time.

A `SimulatedModel` is a repository entry without files: a configuration, and a `Work` that says what a batch does to the
clock. Unless told otherwise its backend answers every wanted output with zeros of the right shape, which is all that
scheduling can tell apart.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import trio

from ..engine.backends.interface import (
    Backend,
    Completion,
    InstanceSpec,
    LoadedModel,
    ModelFiles,
    ModelInstance,
    SteppedInstance,
    StreamInstance,
)
from ..engine.backends.registry import BackendRegistry
from ..engine.config.model import DynamicBatching, InstanceGroup, ModelConfig, ModelInput, ModelOutput
from ..engine.datatypes import FP32
from ..engine.errors import InternalError, TriremeError, UnsupportedError
from ..engine.gpu.discovery import NO_GPUS, Gpus
from ..engine.job import ExecutionBatch
from ..engine.metrics.statistics import MemoryUsage
from ..engine.options import ServerOptions
from ..engine.repository.agents import AgentRegistry
from ..engine.repository.source import ModelSource, Scan
from ..engine.request import InferenceRequest
from ..engine.tensor import Tensor
from .stream_models import SimulatedStreamInstance, StreamWork

BACKEND = "simulated"

Work = Callable[[InstanceSpec, ExecutionBatch], Awaitable[None]]
"""What executing a batch on an instance takes: awaits virtual time, may raise what a backend would raise."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Makes the instances of a model that goes by steps: they say themselves what a step takes (`ThreadTime`)."""

    make: Callable[[InstanceSpec], SteppedInstance]


Answering = Callable[[ModelConfig, ExecutionBatch], None]
"""How a batch is answered when its work is done; as `ModelInstance.execute`."""


def answer_with_zeros(config: ModelConfig, batch: ExecutionBatch) -> None:
    """Every wanted output of every job, of the right shape."""
    for job in batch.jobs:
        outputs = []
        for output in config.output:
            if job.wants(output.name):
                dims = tuple(max(1, dim) for dim in output.dims)
                shape = (job.rows, *dims) if config.max_batch_size else dims
                array = np.zeros(shape, output.datatype.storage)
                outputs.append(Tensor(output.name, output.datatype, shape, array=array))
        job.respond(job.response(outputs))


@dataclass(frozen=True, slots=True)
class Profile:
    """Work that takes ``fixed_s + per_row_s * rows`` seconds."""

    fixed_s: float
    per_row_s: float = 0.0

    async def __call__(self, spec: InstanceSpec, batch: ExecutionBatch) -> None:
        await trio.sleep(self.fixed_s + self.per_row_s * batch.rows)


class Ends(enum.Enum):
    """How the event loop learns that batches are over.

    ALONE: each in a turn of its own.
    THREADS: as of threads: all that end until the loop's next pass in one turn, in the order of their ends. A thread
        that is given up still says when its batch is over.
    PROCESSES: as of processes, whose sockets are read in one turn: the same, in the order of the instances.
    """

    ALONE = "alone"
    THREADS = "threads"
    PROCESSES = "processes"


class SimulatedModel(ModelSource):
    """A model in memory; its backend must be `BACKEND`.

    Args:
        work: what its batches do; on a GPU, which may be by its number, the stream of an instance does it; of a model
            that goes by steps, its instances.
        on_start: called for each instance that is to be made; what it raises is why it cannot.
        in_place: whether a batch takes no time, and is executed in place.
        ends: how it becomes known that a batch is over.
        check: called for each instance that was made, by its name: what asks it whether it is ready; None if its
            instances do not say that.
        reads_regions: see `LoadedModel.reads_regions`.

    Attributes:
        is_broken: it cannot be loaded; of an ensemble, which is loaded without a backend, that means nothing.
        is_gone: the repository does not have it any more.
        nbytes: of memory that each version takes when it is loaded; 0 if it does not say.
        copies: of versions that are in memory now.
    """

    def __init__(
        self,
        config: ModelConfig,
        work: Work | StreamWork | Mapping[int, StreamWork] | StepWork,
        versions: Sequence[int] = (1,),
        answer: Answering = answer_with_zeros,
        on_start: Callable[[InstanceSpec], None] = lambda _spec: None,
        in_place: Callable[[ExecutionBatch], bool] = lambda _batch: False,
        ends: Ends = Ends.ALONE,
        check: Callable[[str], Callable[[Callable[[TriremeError | None], None]], None]] | None = None,
        reads_regions: bool = False,
    ) -> None:
        super().__init__(config.name)
        self.config = config
        self._versions = tuple(versions)
        self.work = work
        self.answer = answer
        self.on_start = on_start
        self.in_place = in_place
        self.ends = ends
        self.check = check
        self.reads_regions = reads_regions
        self.is_broken = self.is_gone = False
        self.nbytes = self.copies = 0
        self._changes = self._touches = 0

    def estimated_bytes(self) -> int:
        return self.nbytes * len(self._versions)

    def touch(self) -> None:
        """Change it, so that it is loaded again when that is asked for."""
        self.is_broken = False
        self._changes += 1
        self._touches += 1

    def damage(self) -> None:
        """Change it, so that it cannot be loaded."""
        self.touch()
        self.is_broken = True

    def resize(self, instances: int) -> None:
        """Let its only instance group have so many, which can be done in place."""
        (group,) = self.config.instance_group
        self.config = replace(self.config, instance_group=(replace(group, count=instances),))
        self._changes += 1

    def modified_ns(self) -> int:
        return -1 if self.is_gone else self._changes

    def contents(self) -> int:
        return self._touches

    def open(
        self, options: ServerOptions, config_json: str | None, agents: AgentRegistry
    ) -> tuple[ModelSource, ModelConfig]:
        if config_json is not None:
            raise UnsupportedError(f"the configuration of model '{self.name}' cannot be replaced")
        return self, self.config

    def versions(self, config: ModelConfig) -> tuple[int, ...]:
        return self._versions

    def place(self, config: ModelConfig, gpus: Gpus) -> ModelConfig:
        return config

    def prepare(self, config: ModelConfig, completion: Completion | None, gpus: Gpus = NO_GPUS) -> ModelConfig:
        return config

    def files(self, version: int) -> ModelFiles:
        return ModelFiles(Path(self.name), version)


def simple_model(
    name: str,
    work: Work | StreamWork,
    *,
    instances: int = 1,
    max_batch_size: int = 8,
    batching: DynamicBatching | None = None,
) -> SimulatedModel:
    """A model with one FP32[4] input, INPUT0, and one FP32[4] output, OUTPUT0."""
    config = ModelConfig(
        name=name,
        backend=BACKEND,
        max_batch_size=max_batch_size,
        input=(ModelInput("INPUT0", FP32, (4,)),),
        output=(ModelOutput("OUTPUT0", FP32, (4,)),),
        instance_group=(InstanceGroup(name, "KIND_CPU", instances),),
        dynamic_batching=batching,
    )
    return SimulatedModel(config, work)


def simple_request(model: str, rows: int = 1, *, priority: int = 0, timeout_us: int = 0) -> InferenceRequest:
    """A request to a `simple_model`."""
    tensor = Tensor("INPUT0", FP32, (rows, 4), array=np.zeros((rows, 4), np.float32))
    return InferenceRequest(model, inputs=[tensor], priority=priority, timeout_us=timeout_us)


class SimulatedRepository:
    """A `RepositorySource` of models in memory."""

    def __init__(self, models: Sequence[SimulatedModel]) -> None:
        self._models = tuple(sorted(models, key=lambda model: model.name))
        self._looked_at = trio.lowlevel.ParkingLot()

    def scan(self) -> Scan:
        self._looked_at.unpark_all()
        return Scan(tuple(model for model in self._models if not model.is_gone))

    async def followed(self) -> None:
        """Wait until a look that begins from now on has been acted on, by who looks all the time."""
        await self._looked_at.park()
        await self._looked_at.park()

    def backends(self) -> BackendRegistry:
        """A registry that knows only the simulated backend, bound to these models."""
        models = {model.name: model for model in self._models}

        class SimulatedBackend(Backend):
            name: ClassVar[str] = BACKEND

            def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
                if models[config.name].is_broken:
                    raise InternalError(f"'{config.name}' cannot be loaded")
                return _SimulatedLoadedModel(config, models[config.name])

        return BackendRegistry(lambda _name: {}, {BACKEND: SimulatedBackend})


class _SimulatedLoadedModel(LoadedModel):
    def __init__(self, config: ModelConfig, model: SimulatedModel) -> None:
        self.config = config
        self._model = model
        model.copies += 1
        if model.nbytes:
            self.memory_usage = (MemoryUsage("CPU", 0, model.nbytes),)

    def close(self) -> None:
        self._model.copies -= 1

    @property
    def reads_regions(self) -> bool:
        return self._model.reads_regions

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        work = self._model.work
        if isinstance(work, StepWork):
            return SteppedInstance
        return StreamInstance if isinstance(work, StreamWork | Mapping) else ModelInstance

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        self._model.on_start(spec)
        work, answer = self._model.work, self._model.answer
        if isinstance(work, Mapping):
            work = work[spec.device_id]
        if isinstance(work, StepWork):
            return work.make(spec)
        if isinstance(work, StreamWork):
            return SimulatedStreamInstance(self.config, work, answer)
        return SimulatedInstance(self.config, spec, work, answer, self._model)


class SimulatedInstance(ModelInstance):
    """Answers as its model says; `work` is what the virtual executor awaits before.

    Attributes:
        in_place, ends: see `SimulatedModel`.
        splits_time: only a part of the work is the inference; not so if the model has answered meanwhile.
    """

    def __init__(
        self,
        config: ModelConfig,
        spec: InstanceSpec,
        work: Work,
        answer: Answering,
        model: SimulatedModel,
    ) -> None:
        self.config = config
        self._answer = answer
        self.in_place = model.in_place
        self.ends = model.ends
        self.splits_time = not config.decoupled
        self.work = partial(work, spec)
        self.checks_itself = model.check is not None
        self._check = model.check(spec.name) if model.check is not None else None

    def ask_ready(self) -> None:
        assert self._check is not None, "only instances that check themselves are asked"
        self._check(self.on_ready)

    def execute(self, batch: ExecutionBatch) -> None:
        self._answer(self.config, batch)
