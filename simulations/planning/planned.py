"""Models as a plan has them: a configuration, and how long batches take."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random

import numpy as np

from ...engine.backends.generation import asked
from ...engine.backends.interface import InstanceSpec
from ...engine.config.model import InstanceGroup, ModelConfig, ModelTensor, copy_message
from ...engine.datatypes import BYTES, INT64
from ...engine.errors import InvalidArgumentError
from ...engine.instances.executing import SHORT_NS
from ...engine.job import ExecutionBatch
from ...engine.logs.made_prompts import prompt_of, sampling_of
from ...engine.logs.request_log import LoggedRequest
from ...engine.request import InferenceRequest, InferenceResponse, RequestForm
from ...engine.tensor import Tensor
from ..models import BACKEND, SimulatedModel, StepWork
from .steps import ModelInSteps, PlannedSteps

ServiceTime = Callable[[int, int, Random], float]
"""Seconds that a batch takes while there are cores enough: of how many rows, with how many instances of the model busy
(its own included) when it begins, and with chance of the model's own."""

VARIABLE_DIM = 1
"""What a dimension of any size is taken for."""


class ExecutionPlace(enum.Enum):
    """Where a model's batches are executed.

    LOOP: on the event loop, always.
    PROVING: on a thread, until short batches have proved that the event loop can do it (`Placement`).
    THREAD: on the instance's thread.
    PROCESS: in the instance's process.
    DEVICE: where they take no core of the machine: on a GPU, or asleep.
    """

    __hash__ = object.__hash__

    LOOP = "loop"
    PROVING = "proving"
    THREAD = "thread"
    PROCESS = "process"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model.

    Attributes:
        config: complete, as `/config` would have it. Its files, backend and warm-up are of no meaning here.
        service: how long its batches take; None for an ensemble only.
        place: where they are executed.
        cores: that an execution uses.
        steps: of a model that generates text, in place of all these.
    """

    config: ModelConfig
    service: ServiceTime | None = None
    place: ExecutionPlace = ExecutionPlace.THREAD
    cores: float = 1.0
    steps: PlannedSteps | None = None

    @property
    def name(self) -> str:
        return self.config.name


def most_cores(models: Sequence[PlannedModel]) -> float:
    """That executions beside the event loop want, if all instances are at work."""
    return sum([_cores_beside(model) * _instances(model) for model in models])


def _cores_beside(model: PlannedModel) -> float:
    """That one execution wants; none if it is on the event loop."""
    if model.steps is not None:
        return 0.0 if model.steps.on_device else model.steps.cores
    if model.service is None or model.place in (ExecutionPlace.LOOP, ExecutionPlace.DEVICE):
        return 0.0
    proves = model.place is ExecutionPlace.PROVING and model.service(1, 1, Random(1)) * 1e9 < SHORT_NS
    return 0.0 if proves else model.cores


def _instances(model: PlannedModel) -> int:
    return sum([group.count for group in model.config.instance_group if not group.passive])


class PlannedSource(SimulatedModel):
    """A planned model in the server's repository.

    Args:
        in_steps: makes its instances, if it generates text.

    Raises:
        InvalidArgumentError: it is no ensemble, and nothing says how long its batches take.
    """

    def __init__(self, planned: PlannedModel, in_steps: ModelInSteps | None = None) -> None:
        config = planned.config
        if in_steps is not None:
            super().__init__(_playable(config), StepWork(in_steps.make))
            return
        if planned.service is None and not config.has_ensemble_scheduling:
            raise InvalidArgumentError(f"model '{config.name}' needs a service time")
        super().__init__(_playable(config), _no_work, answer=_Answers().give)


async def _no_work(_spec: InstanceSpec, _batch: ExecutionBatch) -> None:
    """What the executor of a plan never asks for."""


def _playable(config: ModelConfig) -> ModelConfig:
    """The configuration for a server without backends, GPUs and files."""
    if config.has_ensemble_scheduling:
        return config
    groups = tuple(
        InstanceGroup(group.name, "KIND_CPU", group.count * max(1, len(group.gpus)), passive=group.passive)
        for group in config.instance_group
    )
    message = config.message
    if message is not None:
        message = copy_message(message)
        message.ClearField("model_warmup")
    return replace(
        config, platform="", backend=BACKEND, runtime="", instance_group=groups, response_cache=False, message=message
    )


class _Answers:
    """A model's answers: zeros of the right shape, made once for each number of rows, and changed no more."""

    def __init__(self) -> None:
        self._whole: dict[int, InferenceResponse] = {}

    def give(self, config: ModelConfig, batch: ExecutionBatch) -> None:
        """As `ModelInstance.execute`."""
        whole = self._whole
        for job in batch.jobs:
            if job.is_null:
                continue
            response = whole.get(job.rows)
            if response is None:
                tensors = _tensors(config.output, job.rows if config.max_batch_size else 0)
                response = whole[job.rows] = InferenceResponse(config.name, job.model_version, "", tensors)
            if job.requested_outputs:
                response = job.response([each for each in response.outputs if job.wants(each.name)])
            job.respond(response)


class Requests:
    """The requests of a log as the server gets them: one object for all that are alike, changed no more.

    Args:
        configs: of the models, by name.
    """

    def __init__(self, configs: Mapping[str, ModelConfig]) -> None:
        self._configs = configs
        self._alike: dict[tuple[str, int, int, int, int], InferenceRequest] = {}
        self._inputs: dict[tuple[str, int], tuple[list[Tensor], RequestForm]] = {}
        self._prompts = count()

    def of(self, logged: LoggedRequest) -> InferenceRequest:
        """The request that a line of a log tells of."""
        if logged.prompt_tokens:
            return self._generation(logged, next(self._prompts))
        key = (logged.model, logged.rows, logged.priority, logged.timeout_us, logged.version)
        request = self._alike.get(key)
        if request is None or logged.sequence:
            request = self._make(logged)
            if not logged.sequence:
                self._alike[key] = request
        return request

    def _generation(self, logged: LoggedRequest, number: int) -> InferenceRequest:
        """For generated text, which is answered in the end (`steps`, rule 2)."""
        tokens = np.array(prompt_of(logged, number), np.int64)
        given = json.dumps({**sampling_of(logged), "temperature": 0}).encode()
        inputs = [
            Tensor(asked.TOKENS, INT64, tokens.shape, array=tokens),
            Tensor(asked.PARAMETERS, BYTES, (1,), array=np.array([given], object)),
        ]
        model, version = logged.model, logged.version
        return InferenceRequest(
            model, version, inputs=inputs, priority=logged.priority, timeout_us=logged.timeout_us, form=RequestForm()
        )

    def _make(self, logged: LoggedRequest) -> InferenceRequest:
        made = self._inputs.get((logged.model, logged.rows))
        if made is None:
            config = self._configs.get(logged.model)
            tensors = [] if config is None else _tensors(config.input, logged.rows if config.max_batch_size else 0)
            made = self._inputs[logged.model, logged.rows] = tensors, RequestForm()
        tensors, form = made
        return InferenceRequest(
            logged.model,
            logged.version,
            inputs=tensors,
            priority=logged.priority,
            timeout_us=logged.timeout_us,
            correlation_id=logged.sequence,
            sequence_start=logged.start,
            sequence_end=logged.end,
            form=form,
        )


def _tensors(wanted: tuple[ModelTensor, ...], rows: int) -> list[Tensor]:
    """Zeros for these tensors, in front of them a batch dimension unless `rows` is 0. Their memory is not touched."""
    tensors = []
    for each in wanted:
        dims = tuple(VARIABLE_DIM if dim < 0 else dim for dim in each.dims)
        shape = (rows, *dims) if rows else dims
        array = np.zeros(shape, each.datatype.storage)
        if each.datatype is BYTES:
            array.fill(b"")
        tensors.append(Tensor(each.name, each.datatype, shape, array=array))
    return tensors
