"""A whole server on sockets whose one model executes when the test says so."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
from trireme.engine.job import ExecutionBatch, Job
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
        jobs: those whose execution has begun, in order.
    """

    server: InferenceServer
    http: HttpService
    metrics: HttpService
    gate: threading.Event
    jobs: list[Job]

    @property
    def begun(self) -> list[str]:
        """IDs of the requests whose execution has begun, in order."""
        return [job.id for job in self.jobs]

    @property
    def cancelled(self) -> list[str]:
        """IDs of those that are cancelled. A connection ends before its requests are."""
        return [job.id for job in self.jobs if job.cancelled]

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
    dims: int = 1,
    **options: Any,
) -> AsyncIterator[GatedServer]:
    config = CONFIG.replace("dims: [ 1 ]", f"dims: [ {dims} ]") + queue
    for name in models:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    gate = threading.Event()
    jobs: list[Job] = []
    backends = BackendRegistry(lambda _name: {}, {"gated": gated_backend(gate, jobs)})
    settings = ServerOptions(model_repository=(repository,), **options)
    try:
        with trio.fail_after(PATIENCE_S):
            async with InferenceServer(settings, backends=backends) as server, trio.open_nursery() as nursery:
                bind = ServiceOptions(("127.0.0.1:0",))
                http = HttpService(HttpApplication(server, front or HttpOptions()), bind)
                metrics = HttpService(MetricsApplication(ServerCollector(server, lambda: HostReadings(0))), bind)
                for service in (http, metrics):
                    await nursery.start(service.serve)
                yield GatedServer(server, http, metrics, gate, jobs)
                gate.set()
                for service in (http, metrics):
                    service.close()
    finally:
        gate.set()


def gated_backend(gate: threading.Event, jobs: list[Job]) -> type[Backend]:
    class Instance(ModelInstance):
        def execute(self, batch: ExecutionBatch) -> None:
            jobs.extend(batch.jobs)
            gate.wait(PATIENCE_S)
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
