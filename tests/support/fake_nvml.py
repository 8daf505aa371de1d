"""A stand-in for pynvml that is as strict as the library: nothing works before it is initialised, with a handle that
it did not give, or after it was shut down. Written after NVML's reference, not against a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """Any error of the library."""


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801 - the library's name
    """There is no driver."""


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801 - the library's name
    """There is a library, but no GPU that it could drive."""


@dataclass
class FakeGpu:
    """Attributes: what it says, in NVML's units; `silent` names the functions that end in an error; `parts` are those
    that it is divided into, None for a GPU that is not."""

    uuid: str
    utilization_percent: int = 0
    total_bytes: int = 0
    used_bytes: int = 0
    power_mw: int = 0
    limit_mw: int = 0
    energy_mj: int = 0
    capability: tuple[int, int] = (9, 0)
    name: str = "NVIDIA Test"
    silent: set[str] = field(default_factory=set)
    parts: tuple[FakePart | None, ...] | None = None


@dataclass
class FakePart:
    """A part of a GPU (MIG), by its place among those that there may be: NVML has a handle for it that it does not
    take everywhere."""

    uuid: str
    instances: tuple[int, int] = (1, 0)
    total_bytes: int = 0
    used_bytes: int = 0
    name: str = "NVIDIA Test MIG 1g.5gb"
    silent: frozenset[str] = frozenset(
        {"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"}
    )


class FakeNvml:
    """What `sys.modules["pynvml"]` may be.

    Attributes:
        gpus: by index.
        init_error: what initialising ends with.
        open: how often it has been initialised, less how often it was shut down.
    """

    NVMLError = NVMLError
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded

    def __init__(self, *gpus: FakeGpu, init_error: NVMLError | None = None) -> None:
        self.gpus = gpus
        self.init_error = init_error
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's names, here and below
        if self.init_error is not None:
            raise self.init_error
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check_open()
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check_open()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        self._check_open()
        if index not in range(len(self.gpus)):
            raise NVMLError("Invalid Argument")
        return self._answer("nvmlDeviceGetHandleByIndex", self.gpus[index], lambda gpu: gpu)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        self._check_open()
        parts: list[Any] = [part for gpu in self.gpus for part in gpu.parts or () if part]
        for each in (*self.gpus, *parts):
            if each.uuid == uuid:
                return self._answer("nvmlDeviceGetHandleByUUID", each, lambda found: found)
        raise NVMLError("Not Found")

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:  # noqa: N802
        def modes(gpu: FakeGpu) -> list[int]:
            if not isinstance(gpu, FakeGpu):
                raise NVMLError("Not Supported")
            return [int(gpu.parts is not None)] * 2

        return self._answer("nvmlDeviceGetMigMode", handle, modes)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:  # noqa: N802
        return self._answer("nvmlDeviceGetMaxMigDeviceCount", handle, lambda gpu: len(gpu.parts or ()))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakePart:  # noqa: N802
        def part(gpu: FakeGpu) -> FakePart:
            found = (gpu.parts or ())[index]
            if found is None:
                raise NVMLError("Not Found")
            return found

        return self._answer("nvmlDeviceGetMigDeviceHandleByIndex", handle, part)

    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:  # noqa: N802
        return self._answer("nvmlDeviceGetGpuInstanceId", handle, lambda part: part.instances[0])

    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:  # noqa: N802
        return self._answer("nvmlDeviceGetComputeInstanceId", handle, lambda part: part.instances[1])

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:  # noqa: N802
        return self._answer("nvmlDeviceGetName", handle, lambda gpu: gpu.name)

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return self._answer("nvmlDeviceGetCudaComputeCapability", handle, lambda gpu: gpu.capability)

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        return self._answer("nvmlDeviceGetUUID", handle, lambda gpu: gpu.uuid)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return self._answer(
            "nvmlDeviceGetUtilizationRates", handle, lambda gpu: SimpleNamespace(gpu=gpu.utilization_percent, memory=0)
        )

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return self._answer(
            "nvmlDeviceGetMemoryInfo",
            handle,
            lambda gpu: SimpleNamespace(
                total=gpu.total_bytes, used=gpu.used_bytes, free=gpu.total_bytes - gpu.used_bytes
            ),
        )

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:  # noqa: N802
        return self._answer("nvmlDeviceGetPowerUsage", handle, lambda gpu: gpu.power_mw)

    def nvmlDeviceGetPowerManagementLimit(self, handle: FakeGpu) -> int:  # noqa: N802
        return self._answer("nvmlDeviceGetPowerManagementLimit", handle, lambda gpu: gpu.limit_mw)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeGpu) -> int:  # noqa: N802
        return self._answer("nvmlDeviceGetTotalEnergyConsumption", handle, lambda gpu: gpu.energy_mj)

    def _check_open(self) -> None:
        if self.open < 1:
            raise NVMLError("Uninitialized")

    def _answer(self, name: str, handle: Any, say: Callable[[Any], Any]) -> Any:
        self._check_open()
        parts = [part for gpu in self.gpus for part in gpu.parts or ()]
        if not any(handle is known for known in (*self.gpus, *parts)):
            raise NVMLError("Invalid Argument")
        if name in handle.silent:
            raise NVMLError("GPU is lost")
        return say(handle)
