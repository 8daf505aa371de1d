"""Which GPUs there are to torch: each made when it is first needed, and shared by all instances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..cuda_memory import CudaDriver, CudaError
from ..errors import UnavailableError
from .captures import Captures
from .device import SickDeviceError
from .host_callback import HostCallbacks, load_driver
from .pinned_pool import Pinned, PinnedPool
from .torch_device import TorchDevice, pinned_blocks


class TorchDevices:
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
        self._lock = threading.Lock()
        self._captures = captures or Captures()
        self._driver: CudaDriver | None = None
        self._callbacks: HostCallbacks | None = None
        self._pinned: Pinned | None = None
        self._devices: dict[int, TorchDevice] = {}

    def get(self, torch: Any, index: int) -> TorchDevice:
        """A GPU, always the same object.

        Raises:
            UnavailableError: torch finds no such GPU.
            SickDeviceError: it cannot be used.
        """
        with self._lock:
            if index not in self._devices:
                self._devices[index] = self._make(torch, index)
            return self._devices[index]

    def close(self) -> None:
        """They are not used any more, but for what is still in flight."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.close()

    def _make(self, torch: Any, index: int) -> TorchDevice:
        if not torch.cuda.is_available():
            raise UnavailableError(
                f"torch {torch.__version__} finds none: is it built for CUDA, and NVIDIA's driver installed?"
            )
        count = torch.cuda.device_count()
        if index not in range(count):
            raise UnavailableError(f"there is no GPU {index}: torch knows {count}, numbered from 0")
        if self._callbacks is None or self._driver is None:
            library = self._load_driver()
            self._driver = _driver(library)
            self._callbacks = HostCallbacks(library)
        if self._pinned is None:
            self._pinned = Pinned(self._pool, pinned_blocks(torch))
        limit_bytes = self._device_bytes.get(index, 0)
        make_stream = partial(self._driver.create_stream, index)
        return TorchDevice(torch, index, self._callbacks, self._pinned, make_stream, self._captures, limit_bytes)


def _driver(library: Any) -> CudaDriver:
    try:
        return CudaDriver(library)
    except CudaError as error:
        raise SickDeviceError(f"torch has found a GPU, but the driver cannot be used: {error}") from error
