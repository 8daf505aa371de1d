"""The backend `scripted`: what the scripts of `grpc_models.SCRIPTED_MODELS` do on the real Triton, for Trireme."""

from __future__ import annotations

import numpy as np

from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import INT32
from trireme.engine.errors import InternalError, NotFoundError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceResponse
from trireme.engine.tensor import Tensor


def backends() -> BackendRegistry:
    """The installed backends, and this one."""
    return BackendRegistry(lambda _name: {}, {"scripted": ScriptedBackend})


class ScriptedBackend(Backend):
    name = "scripted"

    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        return _Scripted({"moody": _Moody, "repeat": _Repeat}[config.name])


class _Scripted(LoadedModel):
    def __init__(self, kind: type[ModelInstance]) -> None:
        self._kind = kind

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        return self._kind()


class _Moody(ModelInstance):
    def execute(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            match _number(job, "MOOD"):
                case 1:
                    job.fail(InternalError("it failed"))
                case 2:
                    job.fail(NotFoundError("not here"))
                case mood:
                    job.respond(_answer(job, mood))


class _Repeat(ModelInstance):
    def execute(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            count, end = _number(job, "COUNT"), _number(job, "END")
            for index in range(count):
                job.respond(_answer(job, index), final=end == 1 and index == count - 1)
            if end == 2:
                job.fail(InternalError("it failed"))
            elif end == 0 or count == 0:
                job.respond(None, final=True)


def _number(job: Job, name: str) -> int:
    return int(job.inputs[name].array[0])


def _answer(job: Job, value: int) -> InferenceResponse:
    return job.response([Tensor("OUT", INT32, (1,), array=np.array([value], np.int32))])
