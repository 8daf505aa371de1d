"""TensorRT's plans on GPUs that do everything late: all of this runs on stand-ins, and nothing of it on hardware."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from collected_answers import NoReply, plain
from fake_cupy import FakeCupy, fake_driver
from fake_gpu import FakeEvent, FakeGpus, Operation
from fake_tensorrt import FakeTensorRT
from google.protobuf import text_format

from trireme.engine.backends.interface import InstanceSpec, ModelFiles
from trireme.engine.backends.services import Services
from trireme.engine.backends.tensorrt import TensorRtBackend
from trireme.engine.backends.tensorrt.backend import TensorRtModel
from trireme.engine.backends.tensorrt.instance import TensorRtInstance
from trireme.engine.clock import SystemClock
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfig, ModelConfigMessage
from trireme.engine.errors import TriremeError
from trireme.engine.gpu.cupy_device import CupyDevices
from trireme.engine.gpu.device import DeviceStream
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.engine.validation import RequestValidator

DOUBLE = """
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""


class Machine:
    """A machine with GPUs, TensorRT, and one model.

    Attributes:
        files: of the model.
        loaded: it, when `load` has been called.
    """

    def __init__(self, files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = files
        self.gpus = FakeGpus(count=2)
        self.cupy = FakeCupy(self.gpus)
        self.trt = FakeTensorRT(self.gpus, self.cupy.cuda._current)
        monkeypatch.setitem(sys.modules, "tensorrt", self.trt)
        self.cupy_devices = CupyDevices(load=lambda: self.cupy, load_driver=lambda: fake_driver(self.gpus))
        self.loaded: TensorRtModel
        self._backend: TensorRtBackend | None = None

    def config(self, text: str = "max_batch_size: 8", tensors: str = DOUBLE, group: str = "gpus: [ 0 ]") -> ModelConfig:
        message = text_format.Parse(
            f'name: "m" backend: "tensorrt" platform: "tensorrt_plan" {tensors} {text} '
            f'instance_group {{ name: "m" kind: KIND_GPU count: 1 {group} }}',
            ModelConfigMessage(),
        )
        return model_config(message)

    def backend(self, options: Mapping[str, str] | None = None) -> TensorRtBackend:
        """One for all models, as in a server: TensorRT has one log a process."""
        if self._backend is None:
            self._backend = TensorRtBackend(options or {})
            self._backend.services = Services(gpus=self.cupy_devices)
        return self._backend

    def load(self, plan: bytes, config: ModelConfig | None = None, options: Mapping[str, str] | None = None) -> None:
        (self.files.version_directory / "model.plan").write_bytes(plan)
        self.loaded = self.backend(options).load(config or self.config(), self.files)

    def start(self, plan: bytes, config: ModelConfig | None = None, device: int = 0) -> Runner:
        """Load a model and make an instance of it."""
        config = config or self.config()
        self.load(plan, config)
        return Runner(self, config, self.loaded.create_instance(InstanceSpec("m_0", "KIND_GPU", device)))

    @contextmanager
    def held_up(self, stream: DeviceStream) -> Iterator[None]:
        """Let everything be done but for what is put into a stream meanwhile."""
        hindrance = FakeEvent(0)
        hindrance.pending = True
        self.gpus.enqueue(stream.handle, Operation("wait", lambda: None, 0, hindrance))
        try:
            yield
            self.gpus.run()
        finally:
            hindrance.pending = False

    def refusal(self, plan: bytes, config: ModelConfig | None = None, **options: Any) -> TriremeError:
        """Why a model cannot be loaded, or an instance of it be made."""
        try:
            self.load(plan, config, **options)
            self.loaded.create_instance(InstanceSpec("m_0", "KIND_GPU", 0))
        except TriremeError as error:
            return error
        raise AssertionError("it was loaded")


class Runner:
    """One instance, fed with numpy arrays."""

    def __init__(self, machine: Machine, config: ModelConfig, instance: TensorRtInstance) -> None:
        self.instance = instance
        self._machine = machine
        self._validator = RequestValidator(config)

    def launch(self, *requests: Sequence[Tensor], server: Mapping[str, Tensor] | None = None) -> Flying:
        """Launch requests as one batch.

        Args:
            server: inputs that clients do not send.
        """
        jobs = []
        for tensors in requests:
            request = InferenceRequest("m", inputs=list(tensors))
            inputs, rows = self._validator.check(request)
            jobs.append(Job(request, inputs | dict(server or {}), rows, "m", 1, NoReply()))
        batch = ExecutionBatch(jobs, "m_0", SystemClock())
        flying = Flying(self.instance, batch)
        flying.launched = self.instance.launch(batch, flying.land)
        return flying

    def run(self, *requests: Sequence[Tensor], **more: Any) -> list[Any]:
        """Execute requests as one batch, and let the device finish.

        Returns:
            For each request its outputs by name as arrays, or its error.
        """
        flying = self.launch(*requests, **more)
        self._machine.gpus.run()
        return flying.collect()


class Flying:
    """A batch that was launched."""

    def __init__(self, instance: TensorRtInstance, batch: ExecutionBatch) -> None:
        self.instance = instance
        self.batch = batch
        self._landed = threading.Event()
        self.launched: Any = None

    def land(self) -> None:
        """The device says that it has landed."""
        self._landed.set()

    def collect(self) -> list[Any]:
        assert self._landed.wait(10), "the batch has not landed"
        self.instance.collect(self.batch, self.launched)
        self.launched = None
        outcomes = {id(job): outcome for job, outcome, _ in self.batch.answers}
        return [plain(outcomes[id(job)]) for job in self.batch.jobs]


@pytest.fixture
def machine(models: Any, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(models.files, monkeypatch)
