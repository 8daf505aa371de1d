"""The backend `scripted`: what the scripts of `generate_models` do on the real Triton, for Trireme."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import BYTES, FP16, INT32
from trireme.engine.errors import InternalError, NotFoundError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.tensor import Tensor


def backends() -> BackendRegistry:
    """The installed backends, and this one."""
    return BackendRegistry(lambda _name: {}, {"scripted": ScriptedBackend})


class ScriptedBackend(Backend):
    name = "scripted"

    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        return _Scripted({"line": _line, "story": _story, "odd_names": _namesakes}.get(config.name, _echo))


class _Scripted(LoadedModel):
    def __init__(self, run: Callable[[Job], None]) -> None:
        self._run = run

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        return _Instance(self._run)


class _Instance(ModelInstance):
    def __init__(self, run: Callable[[Job], None]) -> None:
        self._run = run

    def execute(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            self._run(job)


def _echo(job: Job) -> None:
    given = sorted(job.inputs.items())
    shapes = " ".join(f"{name}{list(tensor.shape)}".replace(" ", "") for name, tensor in given)
    told = _strings("TOLD", [job.id, shapes, json.dumps(job.request.parameters, sort_keys=True)])
    job.respond(job.response([*(tensor.renamed(f"OUT_{name}", tensor.shape) for name, tensor in given), told]))


def _namesakes(job: Job) -> None:
    word = job.inputs["WORD"]
    job.respond(job.response([word.renamed(name, (1,)) for name in ("id", "model_name", "model_version")]))


def _line(job: Job) -> None:
    _say(job, _steps(job)[0].rstrip("!"), 0, final=True)


def _story(job: Job) -> None:
    for number, step in enumerate(_steps(job)):
        if step == "end":
            job.respond(None, final=True)
        else:
            _say(job, step.rstrip("!"), number, final=step.endswith("!"))


def _steps(job: Job) -> list[str]:
    return job.inputs["SCRIPT"].array.reshape(-1)[0].decode().split()


def _say(job: Job, verb: str, number: int, *, final: bool) -> None:
    match verb:
        case "fail":
            job.fail(InternalError("it failed"), final)
        case "missing":
            job.fail(NotFoundError("not here"), final)
        case "half":
            job.respond(job.response([Tensor("HALF", FP16, (1,), array=np.zeros(1, np.float16))]), final)
        case _:
            count = {"pair": 2, "empty": 0}.get(verb, 1)
            numbers = np.arange(number, number + count, dtype=np.int32)
            texts = _strings("TEXT", [f"said {number}"] * count)
            job.respond(job.response([texts, Tensor("NUMBER", INT32, (count,), array=numbers)]), final)


def _strings(name: str, texts: list[str]) -> Tensor:
    array = np.array([text.encode() for text in texts], dtype=object)
    return Tensor(name, BYTES, (len(texts),), array=array)
