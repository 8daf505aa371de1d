"""Batches of PyTorch instances on GPUs that do everything late."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fake_cuda import Allocation, FakeCuda
from fake_torch_cuda import FakeTorch

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.backends.pytorch.backend import PyTorchStreamInstance
from trireme.engine.clock import SystemClock
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.errors import TriremeError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.memory.cuda import CudaDriver
from trireme.engine.memory.regions import Regions, RegionSlice
from trireme.engine.memory.tensors import RegionTensor
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

PATIENCE_S = 10

ROWS = "max_batch_size: 8 "
PYTHON = ROWS + 'runtime: "model.py" '

LINEAR = """
import torch

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.linear.weight.data.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.linear.bias.data.zero_()

    def forward(self, x):
        return self.linear(x){}
"""


def write(models: Any, source: str) -> None:
    (models.files.version_directory / "model.py").write_text(source)


class Launched:
    """A batch that was launched.

    Args:
        requests: inputs of each.
        places: where each wants its outputs, if anywhere.
    """

    def __init__(
        self,
        instance: PyTorchStreamInstance,
        requests: Sequence[dict[str, Tensor]],
        states: Any,
        places: Sequence[Mapping[str, RegionSlice] | None] = (),
    ) -> None:
        self.jobs = []
        for at, inputs in enumerate(requests):
            rows, *rest = next(iter(inputs.values())).shape
            rows = rows if rest else 1
            request = InferenceRequest("m", output_places=places[at] if places else None)
            self.jobs.append(Job(request, inputs, rows, "m", 1, None))  # type: ignore[arg-type]
            self.jobs[-1].state = states[at] if states else None
        self.instance = instance
        self.batch = ExecutionBatch(self.jobs, "m_0", SystemClock(), gpu=0)
        self._landed = threading.Event()
        self.launched: Any = instance.launch(self.batch, self._landed.set)

    def collect(self) -> list[dict[str, Any]]:
        """The answers, when it has landed."""
        assert self._landed.wait(PATIENCE_S)
        self.instance.collect(self.batch, self.launched)
        self.launched = None
        outcomes: dict[int, Any] = {id(job): outcome for job, outcome, _ in self.batch.answers}
        answers = []
        for job in self.jobs:
            outcome = outcomes[id(job)]
            if isinstance(outcome, TriremeError):
                raise outcome
            answers.append({tensor.name: tensor.array for tensor in outcome.outputs})
        self.batch.answers.clear()
        return answers


class Gpu:
    """Instances on the first GPU, and how far it is."""

    def __init__(self, fake: FakeTorch, files: Any) -> None:
        self.fake = fake
        self._files = files
        self._models: list[Any] = []

    def start(self, config: ModelConfig, index: int = 0, kind: str = "KIND_GPU") -> Any:
        loaded = PyTorchBackend({}).load(config, self._files)
        self._models.append(loaded)
        spec = InstanceSpec("m_0", kind, index)
        instance = loaded.create_instance(spec)
        assert type(instance) is loaded.instance_class(spec)
        return instance

    def launch(self, instance: Any, *requests: dict[str, Tensor], states: Any = None, places: Any = ()) -> Launched:
        return Launched(instance, requests, states, places)

    def run(self, instance: Any, *requests: dict[str, Tensor], states: Any = None) -> list[dict[str, Any]]:
        launched = self.launch(instance, *requests, states=states)
        self.fake.gpus.run()
        return launched.collect()


def x(*rows: Sequence[float]) -> dict[str, Tensor]:
    array = np.array(rows, np.float32)
    return {"X": Tensor("X", FP32, array.shape, array.tobytes())}


class Shared:
    """Memory of a GPU that clients share with the server, in one region after the other."""

    def __init__(self, driver: FakeCuda, gpu: int = 0) -> None:
        self.regions = Regions(lambda: CudaDriver(driver))
        self._driver = driver
        self._gpu = gpu
        self._count = 0

    def tensor(self, name: str, array: np.ndarray) -> RegionTensor:
        """A tensor of FP32 there."""
        self._count += 1
        allocation = self._driver.allocate(bytes(16) + array.tobytes(), self._gpu)
        region = f"region {self._count}"
        self.regions.register_cuda(region, allocation.handle, self._gpu, 16 + array.nbytes)
        return RegionTensor(name, FP32, array.shape, self.regions.slice(region, 16, array.nbytes))

    def x(self, *rows: Sequence[float]) -> dict[str, Tensor]:
        return {"X": self.tensor("X", np.array(rows, np.float32))}

    def place(self, nbytes: int) -> tuple[Allocation, RegionSlice]:
        """Room for an output there, and what the client sees of its memory: 16 bytes, then that room."""
        self._count += 1
        allocation = self._driver.allocate(bytes(16 + nbytes), self._gpu)
        region = f"region {self._count}"
        self.regions.register_cuda(region, allocation.handle, self._gpu, 16 + nbytes)
        return allocation, self.regions.slice(region, 16, nbytes)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '
