"""Models whose instances work on a `FakeDevice`, which does nothing before the test lets its time pass.

OUTPUT0 is INPUT0 plus one. What a request's parameter ``act`` says is done with its batch:

    raise, exit, sick   launching raises a `ValueError`, calls ``sys.exit``, raises a `SickDeviceError`
    oom                 the computation asks for more memory than there is
    early               the batch lands before its launch has returned
    slow                launching waits until the test sets `Streaming.gate`
    badly, quit         collecting raises a `ValueError`, calls ``sys.exit``
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from fake_device import FakeArray, FakeDevice

from trireme.actors import InferenceServer
from trireme.engine.backends.interface import (
    Backend,
    InstanceSpec,
    LoadedModel,
    ModelFiles,
    ModelInstance,
    StreamInstance,
)
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.gpu.device import DeviceStream, SickDeviceError
from trireme.engine.gpu.pipeline import Flight, GpuPipeline
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.simulations.models import BACKEND, SimulatedModel, SimulatedRepository

PATIENCE_S = 20.0
FLOAT = np.dtype(np.float32)


class Streaming:
    """The test's hands on the models.

    Attributes:
        device: that instances which are made from now on work on.
        gate: see ``slow``.
        threads: names of the threads that each of an instance's methods was called on.
        launched: batches that were launched.
        asked: how often an instance was asked after a batch.
        instances: that were made.
    """

    def __init__(self) -> None:
        self.device = FakeDevice()
        self.gate = threading.Event()
        self.threads: dict[str, set[str]] = {}
        self.launched = 0
        self.asked = 0
        self.instances: list[StreamingInstance] = []

    def called(self, method: str) -> None:
        self.threads.setdefault(method, set()).add(threading.current_thread().name)

    def backends(self) -> BackendRegistry:
        streaming = self

        class Loaded(LoadedModel):
            def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
                return StreamInstance

            def create_instance(self, spec: InstanceSpec) -> ModelInstance:
                streaming.called("create")
                streaming.instances.append(StreamingInstance(streaming))
                return streaming.instances[-1]

        class StreamingBackend(Backend):
            name = BACKEND

            def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
                return Loaded()

        return BackendRegistry(lambda _name: {}, {BACKEND: StreamingBackend})

    @asynccontextmanager
    async def serving(self, *models: SimulatedModel, **options: Any) -> AsyncIterator[InferenceServer]:
        """A server of these models (their simulated work does not matter), with real threads and in real time."""
        source = SimulatedRepository(models)
        server = InferenceServer(ServerOptions(**options), source=source, backends=self.backends())
        async with server:
            yield server


class StreamingInstance(StreamInstance):
    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming
        self.device = streaming.device
        self._pipeline = GpuPipeline(self.device)

    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> Flight:
        self._streaming.called("launch")
        act = acting(batch)
        match act:
            case "raise":
                raise ValueError("it cannot be launched")
            case "exit":
                sys.exit(3)
            case "sick":
                raise SickDeviceError("it has a cold")
            case "slow":
                assert self._streaming.gate.wait(PATIENCE_S)
        inputs = self.device.pinned((batch.rows, 4), FLOAT)
        np.concatenate([job.inputs["INPUT0"].array for job in batch.jobs], out=inputs)

        def compute(stream: DeviceStream, arrays: Sequence[FakeArray]) -> Sequence[FakeArray]:
            if act == "oom":
                self.device.empty((1 << 40,), FLOAT)
            (source,) = arrays
            result = self.device.empty(source.shape, FLOAT)
            self.device.stream_of(stream.handle).kernel(lambda x, y: np.add(x, 1, out=y), source, result)
            return [result]

        flight = self._pipeline.launch([inputs], compute, on_landed)
        self._streaming.launched += 1
        if act == "early":
            self.device.run()
        return flight

    def collect(self, batch: ExecutionBatch, launched: Flight) -> None:
        self._streaming.called("collect")
        (outputs,) = launched.collect(batch)
        match acting(batch):
            case "badly":
                raise ValueError("it cannot be collected")
            case "quit":
                sys.exit(4)
        at = 0
        for job in batch.jobs:
            rows = outputs[at : at + job.rows]
            at += job.rows
            job.respond(job.response([Tensor("OUTPUT0", FP32, rows.shape, array=rows)]))

    def healthy(self, launched: Flight) -> None:
        self._streaming.called("healthy")
        self._streaming.asked += 1
        launched.reached()

    def close(self) -> None:
        self._streaming.called("close")


def acting(batch: ExecutionBatch) -> str:
    return str(batch.jobs[0].request.parameters.get("act", ""))


def request(value: float, act: str = "", model: str = "m") -> InferenceRequest:
    array = np.full((1, 4), value, np.float32)
    asked = InferenceRequest(model, inputs=[Tensor("INPUT0", FP32, array.shape, array=array)])
    return replace(asked, parameters={"act": act}) if act else asked
