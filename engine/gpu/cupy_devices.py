"""Which GPUs there are to cupy: each made when it is first needed, and shared by all instances."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UnavailableError
from .captures import Captures
from .cupy_device import CupyDevice, pinned_blocks
from .host_callback import HostCallbacks, load_driver
from .pinned_pool import Pinned, PinnedPool


class CupyDevices:
    """Callable from any thread.

    Args:
        pinned: where all devices have their pinned host memory from; None for a pool of their own.
        device_bytes: most of each device's memory, by its number; for a device that is not there, as much as it has.
        load: gives the package.
        load_driver: gives CUDA's driver library.
        captures: those of the process; None where nothing else captures.
    """

    def __init__(
        self,
        pinned: PinnedPool | None = None,
        device_bytes: Mapping[int, int] | None = None,
        load: Callable[[], Any] | None = None,
        load_driver: Callable[[], Any] = load_driver,
        captures: Captures | None = None,
    ) -> None:
        self._pool = pinned or PinnedPool()
        self._device_bytes = dict(device_bytes or {})
        self._load = load or import_cupy
        self._load_driver = load_driver
        self._captures = captures or Captures()
        self._lock = threading.Lock()
        self._callbacks: HostCallbacks | None = None
        self._pinned: Pinned | None = None
        self._devices: dict[int, CupyDevice] = {}

    def get(self, index: int) -> CupyDevice:
        """A GPU, always the same object.

        Raises:
            UnavailableError: cupy is not installed, or there is no such GPU.
            TriremeError: the GPU is sick.
        """
        with self._lock:
            if index not in self._devices:
                self._devices[index] = self._make(index)
            return self._devices[index]

    def close(self) -> None:
        """They are not used any more, but for what is still in flight."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.close()

    def _make(self, index: int) -> CupyDevice:
        cupy = self._load()
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise UnavailableError(f"GPU {index} cannot be used: {error}; is NVIDIA's driver installed?") from None
        if index not in range(count):
            raise UnavailableError(f"there is no GPU {index}: CUDA knows {count}, numbered from 0")
        if self._pinned is None or self._callbacks is None:
            self._pinned = Pinned(self._pool, pinned_blocks(cupy))
            self._callbacks = HostCallbacks(self._load_driver())
        limit_bytes = self._device_bytes.get(index, 0)
        return CupyDevice(cupy, index, self._pinned, self._callbacks, self._captures, limit_bytes)


def import_cupy() -> Any:
    """The package.

    Raises:
        UnavailableError: it is not installed, or does not find CUDA's libraries.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise UnavailableError(f"GPUs need the package cupy: pip install trireme[gpu] ({error})") from error
