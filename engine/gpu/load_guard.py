"""Refuses instances on GPUs whose memory is taken (``--model-load-gpu-limit``,
docs/reference/model-configuration.md#instance-groups).

Looked at before the backend loads a model and before each of its instances is made, since either may take memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..backends.interface import InstanceSpec, LoadedModel, ModelInstance
from ..errors import UnavailableError
from ..metrics.statistics import MemoryUsage
from .discovery import Gpu, Gpus, opened_nvml
from .pinned_pool import GpuLimits

MemoryInUse = Callable[[Gpu], tuple[int, int] | None]
"""How many bytes of a GPU's memory are in use, by any process, and how many it has; None if that is unknown."""


def memory_in_use(gpu: Gpu) -> tuple[int, int] | None:
    """A `MemoryInUse` that asks NVML."""
    with opened_nvml("a limit of a GPU's memory cannot be looked after") as nvml:
        if nvml is None:
            return None
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        except nvml.NVMLError:
            return None
        return memory.used, memory.total


class LoadGuard:
    """Looks at the limits.

    Args:
        gpus: those that instances may be on.
    """

    def __init__(self, limits: GpuLimits, gpus: Gpus, in_use: MemoryInUse = memory_in_use) -> None:
        self._fractions = limits.load_fractions
        self._gpus = {gpu.index: gpu for gpu in gpus.found if gpu.index in limits.load_fractions}
        self._in_use = in_use

    def check(self, specs: Iterable[InstanceSpec]) -> None:
        """See whether these instances may be made.

        Raises:
            UnavailableError: one may not: too much of its GPU's memory is in use already.
        """
        seen: set[int] = set()
        for spec in specs:
            gpu = None if spec.gpu is None or spec.gpu in seen else self._gpus.get(spec.gpu)
            if gpu is None:
                continue
            seen.add(gpu.index)
            memory = self._in_use(gpu)
            if memory is not None and memory[0] > memory[1] * self._fractions[gpu.index]:
                raise UnavailableError(
                    f"can not create model '{spec.name}': memory limit set for GPU {gpu.index} has exceeded, model "
                    "loading is rejected."
                )

    def around(self, model: LoadedModel) -> LoadedModel:
        """The model, whose instances are checked before they are made; itself, if there is nothing to look at."""
        return _Guarded(model, self) if self._gpus else model


class _Guarded(LoadedModel):
    def __init__(self, model: LoadedModel, guard: LoadGuard) -> None:
        self._model = model
        self._guard = guard

    @property
    def memory_usage(self) -> tuple[MemoryUsage, ...]:  # type: ignore[override]
        return self._model.memory_usage

    @property
    def input_gpu(self) -> int | None:
        return self._model.input_gpu

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        return self._model.instance_class(spec)

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        self._guard.check((spec,))
        return self._model.create_instance(spec)

    def close(self) -> None:
        self._model.close()
