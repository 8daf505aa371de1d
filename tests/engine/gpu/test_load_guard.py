"""No instance is made on a GPU whose memory is taken (``--model-load-gpu-limit``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from fake_nvml import FakeGpu, FakeNvml, NVMLError
from valued_models import CONFIG, valued_request, write_model

from trireme.actors import InferenceServer
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.errors import UnavailableError
from trireme.engine.gpu.discovery import Gpu, Gpus, LoadGuard, memory_in_use
from trireme.engine.gpu.pinned_pool import GpuLimits
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ServerOptions
from trireme.engine.repository.loading import LoadedInstances
from trireme.engine.tensor import Tensor

GPUS = Gpus((Gpu(0, "GPU-a"), Gpu(1, "GPU-b")))


def spec(gpu: int, kind: str = "KIND_GPU") -> InstanceSpec:
    return InstanceSpec(f"m_{gpu}", kind, gpu)


@dataclass(frozen=True, slots=True)
class Copies(LoadedModel):
    """Remembers for whom it makes instances. Nothing can be set on it, and nothing has to be."""

    make: Callable[[], Any] = lambda: None
    made: list[InstanceSpec] = field(default_factory=list)

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        self.made.append(spec)
        return self.make()


class Doubling(ModelInstance):
    def execute(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            tensor = job.inputs["IN"]
            outputs = [Tensor(name, FP32, tensor.shape, array=2 * tensor.array) for name in ("OUT", "BY")]
            job.respond(job.response(outputs), final=True)


def loaded_with(guard: LoadGuard) -> LoadedInstances:
    core: Any = None  # nothing is asked to be executed
    return LoadedInstances(ModelConfig("m"), {}, Copies(), guard, core)


def guard(used: dict[str, int], **fractions: float) -> LoadGuard:
    limits = GpuLimits(load_fractions={int(key[3:]): value for key, value in fractions.items()})
    return LoadGuard(limits, GPUS, lambda gpu: (used[gpu.uuid], 100))


def test_an_instance_is_refused_while_more_is_in_use_than_may_be() -> None:
    used = {"GPU-a": 41, "GPU-b": 99}
    look = guard(used, gpu0=0.4)
    with pytest.raises(UnavailableError) as caught:
        look.check([spec(1), spec(0)])
    assert str(caught.value) == (
        "can not create model 'm_0': memory limit set for GPU 0 has exceeded, model loading is rejected."
    )
    used["GPU-a"] = 40
    look.check([spec(1), spec(0)])


def test_only_instances_on_that_gpu_are_refused() -> None:
    guard({"GPU-a": 100}, gpu0=0.1).check([spec(1), spec(0, "KIND_CPU"), spec(0, "KIND_MODEL")])


def test_a_gpu_that_does_not_tell_refuses_no_instance() -> None:
    limits = GpuLimits(load_fractions={0: 0.0, 9: 0.0})
    LoadGuard(limits, GPUS, lambda _gpu: None).check([spec(0), spec(9)])


def test_each_instance_is_looked_at_when_it_is_made() -> None:
    used = {"GPU-a": 0}
    loaded = loaded_with(guard(used, gpu0=0.5))
    loaded.new_instance(spec(0))
    used["GPU-a"] = 51
    with pytest.raises(UnavailableError):
        loaded.new_instance(spec(0))
    loaded.new_instance(spec(1))
    assert cast(Copies, loaded.model).made == [spec(0), spec(1)]


async def test_a_model_to_which_nothing_can_be_added_is_served(tmp_path: Path) -> None:
    class Frozen(Backend):
        name = "valued"

        def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
            return Copies(make=Doubling)

    write_model(tmp_path, "m", {1: 0}, CONFIG)
    registry = BackendRegistry(lambda _name: {}, {"valued": Frozen})
    async with InferenceServer(ServerOptions(model_repository=(tmp_path,)), backends=registry) as server:
        response = await server.infer(valued_request("m", 21.0))
        assert response.outputs[0].array.tolist() == [42.0]


def test_memory_in_use_is_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """By UUID: NVML's numbers may be others than CUDA's."""
    library = FakeNvml(FakeGpu("GPU-b", total_bytes=8), FakeGpu("GPU-a", total_bytes=100, used_bytes=30))
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    assert memory_in_use(Gpu(0, "GPU-a")) == (30, 100)
    assert memory_in_use(Gpu(0, "GPU-x")) is None
    library.init_error = NVMLError("gone")
    assert memory_in_use(Gpu(0, "GPU-a")) is None
    assert library.open == 0
