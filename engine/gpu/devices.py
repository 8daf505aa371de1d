"""Which GPUs there are to cupy and to torch: each made when it is first needed, and shared by all instances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from ..errors import UnavailableError
from ..memory.cuda import CudaDriver, CudaError
from ..plugins import import_package
from . import cupy_device, torch_device
from .cupy_device import CupyDevice
from .device import SickDeviceError
from .host_callback import HostCallbacks, load_driver
from .pinned_pool import Allocate, PinnedPool
from .shared import Captures
from .torch_device import TorchDevice

D = TypeVar("D")


class _Devices(Generic[D]):
    """Callable from any thread.

    Args:
        pinned: where all devices have their pinned host memory from; None for a pool of their own.
        device_bytes: most of each device's memory, by its number; for a device that is not there, as much as it has.
        load_driver: gives CUDA's driver library.
        captures: those of the process; None where nothing else captures.
    """

    def __init__(
        self,
        pinned: PinnedPool | None = None,
        device_bytes: Mapping[int, int] | None = None,
        load_driver: Callable[[], Any] = load_driver,
        captures: Captures | None = None,
    ) -> None:
        self._pool = pinned or PinnedPool()
        self._device_bytes = dict(device_bytes or {})
        self._load_driver = load_driver
        self._captures = captures or Captures()
        self._lock = threading.Lock()
        self._driver: Any = None
        self._callbacks: HostCallbacks | None = None
        self._allocate: Allocate | None = None
        self._devices: dict[int, D] = {}

    def close(self) -> None:
        """They are not used any more, but for what is still in flight."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.close()

    def _get(self, index: int, make: Callable[[int], D]) -> D:
        with self._lock:
            if index not in self._devices:
                self._devices[index] = make(index)
            return self._devices[index]

    def _shared(self, blocks: Callable[[], Allocate]) -> tuple[HostCallbacks, Allocate]:
        """What all devices share; its driver is `_driver`."""
        if self._callbacks is None or self._allocate is None:
            self._driver = self._load_driver()
            self._callbacks = HostCallbacks(self._driver)
            self._allocate = blocks()
        return self._callbacks, self._allocate


class CupyDevices(_Devices[CupyDevice]):
    """The GPUs by cupy; `load` gives the package. For the other arguments see `_Devices`."""

    def __init__(
        self,
        pinned: PinnedPool | None = None,
        device_bytes: Mapping[int, int] | None = None,
        load: Callable[[], Any] | None = None,
        load_driver: Callable[[], Any] = load_driver,
        captures: Captures | None = None,
    ) -> None:
        super().__init__(pinned, device_bytes, load_driver, captures)
        self._load = load or import_cupy

    def get(self, index: int) -> CupyDevice:
        """A GPU, always the same object.

        Raises:
            UnavailableError: cupy is not installed, or there is no such GPU.
            TriremeError: the GPU is sick.
        """
        return self._get(index, self._make)

    def _make(self, index: int) -> CupyDevice:
        cupy = self._load()
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise UnavailableError(f"GPU {index} cannot be used: {error}; is NVIDIA's driver installed?") from None
        if index not in range(count):
            raise UnavailableError(f"there is no GPU {index}: CUDA knows {count}, numbered from 0")
        callbacks, allocate = self._shared(lambda: cupy_device.pinned_blocks(cupy))
        return CupyDevice(
            cupy, index, self._pool, allocate, callbacks, self._captures, self._device_bytes.get(index, 0)
        )


class TorchDevices(_Devices[TorchDevice]):
    _cuda: CudaDriver | None = None

    def get(self, torch: Any, index: int) -> TorchDevice:
        """A GPU, always the same object.

        Raises:
            UnavailableError: torch finds no such GPU.
            SickDeviceError: it cannot be used.
        """
        return self._get(index, partial(self._make, torch))

    def _make(self, torch: Any, index: int) -> TorchDevice:
        if not torch.cuda.is_available():
            raise UnavailableError(
                f"torch {torch.__version__} finds none: is it built for CUDA, and NVIDIA's driver installed?"
            )
        count = torch.cuda.device_count()
        if index not in range(count):
            raise UnavailableError(f"there is no GPU {index}: torch knows {count}, numbered from 0")
        callbacks, allocate = self._shared(lambda: torch_device.pinned_blocks(torch))
        if self._cuda is None:
            try:
                self._cuda = CudaDriver(self._driver)
            except CudaError as error:
                raise SickDeviceError(f"torch has found a GPU, but the driver cannot be used: {error}") from error
        make_stream = partial(self._cuda.create_stream, index)
        limit_bytes = self._device_bytes.get(index, 0)
        return TorchDevice(torch, index, callbacks, self._pool, allocate, make_stream, self._captures, limit_bytes)


def import_cupy() -> Any:
    """The package; see `import_package`."""
    return import_package("cupy", "GPUs need", "gpu")
