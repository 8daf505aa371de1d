"""A whole server on sockets whose one model executes when the test says so."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from http_sockets import PATIENCE_S

from trireme.actors import InferenceServer
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.metrics.collector import MetricsApplication, ServerCollector
from trireme.api.sockets.service import ServiceOptions
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.job import ExecutionBatch
from trireme.engine.metrics.families import HostReadings
from trireme.engine.metrics.statistics import ModelStatistics
from trireme.engine.options import ServerOptions
from trireme.engine.tensor import Tensor

CONFIG = """
backend: "gated"
max_batch_size: 1
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""
"""One request a batch, one batch at a time."""


@dataclass
class GatedServer:
    """A server with the model `gated`: OUT is IN, as soon as the gate is open.

    Attributes:
        gate: closed at first.
        begun: IDs of the requests whose execution has begun, in order.
        cancelled: IDs of those that the backend saw to be cancelled when it came to answering.
    """

    server: InferenceServer
    http: HttpService
    metrics: HttpService
    gate: threading.Event
    begun: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    @property
    def statistics(self) -> ModelStatistics:
        (entry,) = self.server.statistics("gated")
        return entry.statistics


@asynccontextmanager
async def gated_server(
    repository: Path,
    models: Sequence[str] = ("gated",),
    queue: str = "dynamic_batching { }",
    front: HttpOptions | None = None,
    **options: Any,
) -> AsyncIterator[GatedServer]:
    for name in models:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG + queue)
    gate = threading.Event()
    begun: list[str] = []
    cancelled: list[str] = []
    backends = BackendRegistry(lambda _name: {}, {"gated": gated_backend(gate, begun, cancelled)})
    settings = ServerOptions(model_repository=(repository,), **options)
    try:
        with trio.fail_after(PATIENCE_S):
            async with InferenceServer(settings, backends=backends) as server, trio.open_nursery() as nursery:
                bind = ServiceOptions(("127.0.0.1:0",))
                http = HttpService(HttpApplication(server, front or HttpOptions()), bind)
                metrics = HttpService(MetricsApplication(ServerCollector(server, lambda: HostReadings(0))), bind)
                for service in (http, metrics):
                    await nursery.start(service.serve)
                yield GatedServer(server, http, metrics, gate, begun, cancelled)
                gate.set()
                for service in (http, metrics):
                    service.close()
    finally:
        gate.set()


def gated_backend(gate: threading.Event, begun: list[str], cancelled: list[str]) -> type[Backend]:
    class Instance(ModelInstance):
        def execute(self, batch: ExecutionBatch) -> None:
            begun.extend(job.id for job in batch.jobs)
            gate.wait(PATIENCE_S)
            cancelled.extend(job.id for job in batch.jobs if job.cancelled)
            for job in batch.jobs:
                tensor = job.inputs["IN"]
                job.respond(job.response([Tensor("OUT", FP32, tensor.shape, array=tensor.array)]))

    class Loaded(LoadedModel):
        def create_instance(self, spec: InstanceSpec) -> ModelInstance:
            return Instance()

    class Gated(Backend):
        name = "gated"

        def __init__(self, options: Mapping[str, str]) -> None:
            super().__init__(options)

        def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
            return Loaded()

    return Gated
