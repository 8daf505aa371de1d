"""A GPU, by cupy: for frameworks that take addresses of memory and handles of streams, and have neither to offer.

Rules:
 1. The device is current while anything is asked of it, and whatever was current before is so again afterwards: the
    thread may belong to others.
 2. Memory goes back to cupy's pool as soon as nothing refers to it, whatever the device still does with it (cupy's
    pool knows one stream only, the current one, which is never ours). So arrays are held until the streams that use
    them are done.
 3. What CUDA reports as out of memory fails a batch; what can only be a wrong call of ours, or of a library, likewise.
    Of all else a stream is asked, twice, because the first answer may still be about that call: if both answers are
    errors, the device is sick, for as long as the process lives. A thread that captures does not ask (`Captures`, rule
    3): what it captured has failed, and the next call tells.
 4. Functions are not called by cupy, whose way is Python on the driver's thread, but as `host_callback` does it.

Written after cupy's reference and sources (14) and tested against a stand-in for it; no GPU has seen it yet.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..errors import FailureReason, InternalError, TriremeError, UnavailableError
from ..plugins import import_package
from .cuda_device import CudaDevice, CudaGraph, CudaStream, Devices, HostSide, check_number
from .device import DeviceArray, OutOfDeviceMemoryError, SickDeviceError
from .host_callback import CallRefusedError
from .pinned_pool import AllocatePinned

logger = logging.getLogger("trireme.gpu")

_SUCCESS, _INVALID_VALUE, _MEMORY_ALLOCATION, _INVALID_HANDLE, _NOT_READY = 0, 1, 2, 400, 600  # cudaError_t
_CAPTURE_ERRORS = range(900, 909)
_WRONG_CALLS = {_INVALID_VALUE, _INVALID_HANDLE, _NOT_READY, *_CAPTURE_ERRORS}


class CupyStream(CudaStream):
    """A ``cupy.cuda.Stream``."""

    _device: CupyDevice

    def active(self) -> _Active:
        return self._device.active()

    def upload(self, host: np.ndarray) -> DeviceArray:
        if not host.flags.c_contiguous:
            raise InternalError("only an array without gaps can be copied to a GPU")
        with self._device.active():
            array = self._device.empty(host.shape, host.dtype)
            array.data.copy_from_host_async(host.ctypes.data, host.nbytes, self.raw)
        return array

    def download(self, array: DeviceArray) -> np.ndarray:
        if not array.flags.c_contiguous:
            raise InternalError("only an array without gaps can be copied from a GPU")
        with self._device.active():
            host = self._device.pinned(array.shape, array.dtype)
            array.data.copy_to_host_async(host.ctypes.data, host.nbytes, self.raw)
        return host

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        if not (source.flags.c_contiguous and target.flags.c_contiguous and source.nbytes == target.nbytes):
            raise InternalError("only arrays without gaps, of equal size, can be copied to one another")
        with self._device.active():
            target.data.copy_from_device_async(source.data, source.nbytes, self.raw)


class CupyDevice(CudaDevice[CupyStream]):
    """A `Device`.

    Args:
        cupy: the package, or what behaves like it.
        memory_limit_bytes: most that the arrays made here take together; 0 for as much as there is.

    Raises:
        TriremeError: there is no such device, or it is sick.
    """

    def __init__(self, cupy: Any, index: int, host: HostSide, memory_limit_bytes: int = 0) -> None:
        super().__init__(index, host, cupy.cuda.Event)
        self._cupy = cupy
        self._pool = cupy.cuda.MemoryPool()
        self._probe: Any = None
        with self.active():
            self._probe = self.new_stream(0)
            self._pool.set_limit(size=memory_limit_bytes)

    def active(self) -> _Active:
        """Rule 1; and CUDA's errors become ours (rule 3)."""
        return _Active(self)

    errors = active

    def refused(self, error: CallRefusedError) -> TriremeError:
        return self.failure(error.status, error.message)

    def new_stream(self, priority: int) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True, priority=priority)

    def wrap(self, raw: Any) -> CupyStream:
        return CupyStream(self, raw, raw.ptr)

    def is_reached(self, event: Any) -> bool:
        # `event.done` would be False for ever where the device has failed.
        with self.active():
            status = self._cupy.cuda.runtime.eventQuery(event.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            failure = self.failure(status, f"cudaEventQuery reports error {status}")
            if isinstance(failure, SickDeviceError):
                raise failure
        return status == _SUCCESS  # or the device is well, and the next answer counts

    def elapsed_ms(self, event: Any, later: Any) -> float:
        return self._cupy.cuda.get_elapsed_time(event, later)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> DeviceArray:
        dtype = np.dtype(dtype)
        with self.active():
            memory = self._pool.malloc(math.prod(shape) * dtype.itemsize)
            return self._cupy.ndarray(tuple(shape), dtype, memory)

    def address(self, array: DeviceArray) -> int:
        return array.data.ptr

    def view(self, address: int, shape: Sequence[int], dtype: np.dtype, owner: object) -> DeviceArray:
        """Memory that a library has allocated on this device as an array, which keeps `owner` alive."""
        dtype = np.dtype(dtype)
        with self.active():
            memory = self._cupy.cuda.UnownedMemory(address, math.prod(shape) * dtype.itemsize, owner, self.index)
            return self._cupy.ndarray(tuple(shape), dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def capture(self, stream: Any, work: Callable[[], None]) -> CudaGraph:
        """See `device.Device.capture`. What the work uses must live as long as the graph."""
        with self.captures.one(), self.active(), self.captures.underway():
            stream.raw.begin_capture()
            with ExitStack() as failed:
                failed.callback(self._abandon_capture, stream)
                work()
                failed.pop_all()
            return CudaGraph(self, stream.raw.end_capture().launch)

    def _abandon_capture(self, stream: Any) -> None:
        """The stream must leave its capture, whatever became of that, or it is of no use any more."""
        try:
            stream.raw.end_capture()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            logger.debug("GPU %d: the end of a capture that had failed: %s", self.index, error)

    def failure(self, status: int, text: str) -> TriremeError:
        """The error that one of CUDA's is (rule 3)."""
        if status == _MEMORY_ALLOCATION:
            return OutOfDeviceMemoryError(f"GPU {self.index}, or the host's memory that it can reach: {text}")
        if status in _WRONG_CALLS or self.captures.here or not self._is_sick():
            return InternalError(f"GPU {self.index}: {text}", reason=FailureReason.BACKEND)
        return SickDeviceError(f"GPU {self.index} has failed: {text}; what was in flight there is lost")

    def _is_sick(self) -> bool:
        """Rule 3."""
        if self._probe is None:
            return True  # it cannot even be used for the first time
        cuda = self._cupy.cuda
        try:
            with cuda.Device(self.index):
                answers = [cuda.runtime.streamQuery(self._probe.ptr) for _ in range(2)]
        except cuda.runtime.CUDARuntimeError:
            return True
        return answers[1] not in (_SUCCESS, _NOT_READY)


class _Active:
    """See `CupyDevice.active`. A generator would be shorter; this is entered a dozen times for each batch."""

    __slots__ = ("_current", "_device")

    def __init__(self, device: CupyDevice) -> None:
        self._device = device
        self._current: Any = None

    def __enter__(self) -> None:
        cuda = self._device._cupy.cuda
        try:
            self._current = cuda.Device(self._device.index)
            self._current.__enter__()
        except cuda.runtime.CUDARuntimeError as error:
            raise self._device.failure(error.status, str(error)) from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        cuda = self._device._cupy.cuda
        failed: Any = error
        try:
            self._current.__exit__(None, None, None)
        except cuda.runtime.CUDARuntimeError as lost:
            failed = failed or lost
        if isinstance(failed, cuda.memory.OutOfMemoryError):
            raise OutOfDeviceMemoryError(f"GPU {self._device.index}: {failed}") from None
        if isinstance(failed, cuda.runtime.CUDARuntimeError):
            raise self._device.failure(failed.status, str(failed)) from None


class CupyDevices(Devices[CupyDevice]):
    """The GPUs by cupy."""

    make = CupyDevice

    def import_framework(self) -> Any:
        return import_package("cupy", "GPUs need", "gpu")

    def check(self, framework: Any, index: int) -> None:
        runtime = framework.cuda.runtime
        try:
            check_number(index, runtime.getDeviceCount(), "CUDA")
        except runtime.CUDARuntimeError as error:
            raise UnavailableError(f"GPU {index} cannot be used: {error}; is NVIDIA's driver installed?") from None

    def pinned_blocks(self, framework: Any) -> AllocatePinned:
        portable = framework.cuda.runtime.hostAllocPortable
        return lambda nbytes: framework.cuda.PinnedMemory(nbytes, portable)
