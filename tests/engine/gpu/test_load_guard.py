"""No instance is made on a GPU whose memory is taken (``--model-load-gpu-limit``)."""

from __future__ import annotations

import sys

import pytest
from fake_nvml import FakeGpu, FakeNvml, NVMLError

from trireme.engine.backends.interface import InstanceSpec, LoadedModel, ModelInstance, StreamInstance
from trireme.engine.errors import UnavailableError
from trireme.engine.gpu.discovery import Gpu, Gpus, LoadGuard, memory_in_use
from trireme.engine.gpu.pinned_pool import GpuLimits

GPUS = Gpus((Gpu(0, "GPU-a"), Gpu(1, "GPU-b")))


def spec(gpu: int, kind: str = "KIND_GPU") -> InstanceSpec:
    return InstanceSpec(f"m_{gpu}", kind, gpu)


class Copies(LoadedModel):
    """Makes nothing, and remembers for whom."""

    def __init__(self) -> None:
        self.made: list[InstanceSpec] = []
        self.closed = False

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        return StreamInstance

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        self.made.append(spec)
        return None  # type: ignore[return-value]

    def close(self) -> None:
        self.closed = True


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
    model = Copies()
    model.guard = guard(used, gpu0=0.5).check
    model.new_instance(spec(0))
    used["GPU-a"] = 51
    with pytest.raises(UnavailableError):
        model.new_instance(spec(0))
    model.new_instance(spec(1))
    assert model.made == [spec(0), spec(1)]


def test_memory_in_use_is_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """By UUID: NVML's numbers may be others than CUDA's."""
    library = FakeNvml(FakeGpu("GPU-b", total_bytes=8), FakeGpu("GPU-a", total_bytes=100, used_bytes=30))
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    assert memory_in_use(Gpu(0, "GPU-a")) == (30, 100)
    assert memory_in_use(Gpu(0, "GPU-x")) is None
    library.init_error = NVMLError("gone")
    assert memory_in_use(Gpu(0, "GPU-a")) is None
    assert library.open == 0
