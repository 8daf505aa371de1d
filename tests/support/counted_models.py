"""Models that count how often they are executed: OUT is twice IN, N is the number of requests so far.

A request with the parameter ``gate`` is answered when the test opens that gate; one with the parameter ``fail``, with
that error; one with the parameter ``die`` ends its instance. IN of 99 is an error, too.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import trio

from trireme.actors import InferenceServer
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32, INT32
from trireme.engine.errors import InternalError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.metrics.statistics import ModelStatistics
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor

PATIENCE_S = 60.0

CONFIG = """
backend: "counted"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "N" data_type: TYPE_INT32 dims: [ 1 ] }
"""
CACHED = CONFIG + "response_cache { enable: true }\n"

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "N" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step { model_name: "m" model_version: -1
  input_map { key: "IN" value: "IN" }
  output_map { key: "OUT" value: "OUT" } output_map { key: "N" value: "N" } } }
"""

LOCAL = {"local": {"size": "1000000"}}


class Counter:
    """The test's hands on the models.

    Attributes:
        executed: requests executed, all models together.
        given: the outputs of each of them.
        batches: who executed what: the instance, and the ids of the batch's requests.
        inputs: what each request brought.
    """

    def __init__(self) -> None:
        self.executed = 0
        self.given: list[list[Tensor]] = []
        self.batches: list[tuple[str, list[str]]] = []
        self.inputs: list[Mapping[str, Tensor]] = []
        self._gates: dict[str, threading.Event] = defaultdict(threading.Event)

    def open(self, gate: str) -> None:
        self._gates[gate].set()

    def execute(self, job: Job) -> None:
        self.executed += 1
        self.inputs.append(job.inputs)
        if job.request.parameters.get("die"):
            raise SystemExit(1)
        number = self.executed
        gate = job.request.parameters.get("gate")
        assert gate is None or self._gates[str(gate)].wait(PATIENCE_S)
        failure = job.request.parameters.get("fail")
        if failure is not None:
            job.fail(InternalError(str(failure)))
            return
        tensor = job.inputs["IN"]
        if tensor.array.flat[0] == 99:
            job.fail(InternalError("too warm"))
            return
        made = [
            Tensor("OUT", FP32, tensor.shape, array=tensor.array * np.float32(2)),
            Tensor("N", INT32, (tensor.shape[0], 1), array=np.full((tensor.shape[0], 1), number, np.int32)),
        ]
        outputs = [output for output in made if job.wants(output.name)]
        self.given.append(outputs)
        job.respond(job.response(outputs))

    def backends(self) -> BackendRegistry:
        counter = self

        class Instance(ModelInstance):
            def execute(self, batch: ExecutionBatch) -> None:
                counter.batches.append((batch.instance_name, [job.id for job in batch.jobs]))
                for job in batch.jobs:
                    counter.execute(job)

        class Loaded(LoadedModel):
            def create_instance(self, spec: InstanceSpec) -> ModelInstance:
                return Instance()

        class Counted(Backend):
            name = "counted"

            def __init__(self, options: Mapping[str, str]) -> None:
                super().__init__(options)

            def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
                return Loaded()

        return BackendRegistry(lambda _name: {}, {"counted": Counted})


@asynccontextmanager
async def counted_server(
    repository: Path,
    counter: Counter,
    models: Mapping[str, str],
    cache: Mapping[str, Mapping[str, str]] = LOCAL,
    **options: object,
) -> AsyncIterator[InferenceServer]:
    """A server on models with these configurations."""
    for name, config in models.items():
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
        (repository / name / "config.pbtxt").write_text(config)
    settings = ServerOptions(model_repository=(repository,), cache_config=cache, **options)  # type: ignore[arg-type]
    async with InferenceServer(settings, backends=counter.backends()) as server:
        yield server


def counted_request(
    values: Sequence[float] = (1.0,), shape: tuple[int, ...] | None = None, *, name: str = "m", **fields: object
) -> InferenceRequest:
    """IN holds `values`, as one row if no shape is given."""
    array = np.array(values, np.float32)
    tensor = Tensor("IN", FP32, shape or (1, len(array)), array=array.reshape(shape or (1, -1)))
    return InferenceRequest(name, inputs=[tensor], **fields)  # type: ignore[arg-type]


def number_of(response: InferenceResponse) -> int:
    """Which execution made it."""
    return int(response.output("N").array.flat[0])


def statistics_of(server: InferenceServer, name: str = "m") -> ModelStatistics:
    (entry,) = server.statistics(name)
    return entry.statistics


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens on another thread."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it is not announced
            await trio.sleep(0.001)
