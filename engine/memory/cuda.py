"""Parts of a GPU's memory that a client shares with the server (docs/reference/shared-memory.md#regions), through
CUDA's driver API.

A client sends a handle of 64 bytes that it got for its allocation, from the runtime API (``cudaIpcGetMemHandle``) or
the driver API: they are the same. The server opens it and copies inputs out of that memory, outputs into it. The driver
is enough for that (``libcuda``, which every machine with a GPU has), so there is no package to install.

Rules:
 1. Every call has a context: the device's primary one, which is made current for the call and put back afterwards.
 2. A region is no longer than the allocation that the handle opens, and a copy no longer than the region.
 3. A region is closed when its last holder has let it go.

Written after the driver's reference and tested against a stand-in for it; no GPU has seen it yet.
"""

from __future__ import annotations

import ctypes
import enum
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import InternalError, InvalidArgumentError
from ..tensor import Buffer

HANDLE_BYTES = 64

LIBRARY = "libcuda.so.1"
_LAZY_ENABLE_PEER_ACCESS = 1
_STREAM_NON_BLOCKING = 1
_INVALID = "failed to register shared memory region: invalid args"


class IpcMemHandle(ctypes.Structure):
    """``CUipcMemHandle``, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class CudaError(Exception):
    """A call of the driver failed. The text names the call and CUDA's error."""


class CudaDriver:
    """The driver, initialised. Every method, and making one, raises `CudaError` if a call of the driver fails.

    Args:
        library: ``libcuda``, or what behaves like it.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._call("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if not count.value:
            raise CudaError("cuDeviceGetCount: there are no GPUs")

    def open(self, device_id: int, handle: bytes) -> tuple[int, int]:
        """Map an allocation of another process.

        Returns:
            Its address and its size in bytes.
        """
        address, base, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
        opened = IpcMemHandle.from_buffer_copy(handle)
        with self._current(device_id):
            self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), opened, ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS))
            try:
                self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
            except CudaError:
                self._call("cuIpcCloseMemHandle", address)
                raise
        return address.value, base.value + size.value - address.value

    def close(self, device_id: int, address: int) -> None:
        """Take a mapping away."""
        with self._current(device_id):
            self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def read(self, device_id: int, address: int, into: bytearray) -> None:
        """Copy memory of the GPU."""
        target = (ctypes.c_ubyte * len(into)).from_buffer(into)
        with self._current(device_id):
            there = ctypes.c_void_p(ctypes.addressof(target))
            self._call("cuMemcpyDtoH_v2", there, ctypes.c_uint64(address), ctypes.c_size_t(len(into)))

    def write(self, device_id: int, address: int, data: Buffer) -> None:
        """Copy into memory of the GPU."""
        source = np.frombuffer(data, np.uint8)
        with self._current(device_id):
            here = ctypes.c_void_p(source.ctypes.data)
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), here, ctypes.c_size_t(source.nbytes))

    def copy_on(self, device_id: int, stream: int, target: int, source: int, nbytes: int) -> None:
        """Enqueue a copy within the GPU's memory on a stream."""
        with self._current(device_id):
            self._call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(stream),
            )

    def create_stream(self, device_id: int, priority: int) -> int:
        """The handle of a new stream, which does not wait for the default one. It is never destroyed.

        Args:
            priority: 0, or less to come before others; the driver takes the nearest that it has.
        """
        stream = ctypes.c_void_p()
        with self._current(device_id):
            self._call(
                "cuStreamCreateWithPriority",
                ctypes.byref(stream),
                ctypes.c_uint(_STREAM_NON_BLOCKING),
                ctypes.c_int(priority),
            )
        return stream.value or 0

    @contextmanager
    def _current(self, device_id: int) -> Iterator[None]:
        """Rule 1."""
        context = self._contexts.get(device_id)
        if context is None:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_id))
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device_id] = context
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudaError(f"{name}: {error_text(self._library, status)}")


def error_text(library: Any, status: int) -> str:
    """What an error of the driver is called, and its number."""
    text = ctypes.c_char_p()
    library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
    return f"{(text.value or b'error').decode()} ({status})"


def find_cuda() -> CudaDriver | None:
    """The machine's driver; None where there is none, or no GPU."""
    try:
        return CudaDriver(ctypes.CDLL(LIBRARY))
    except (OSError, CudaError):
        return None


class RegionKind(enum.Enum):
    """Whose memory a region is in."""

    SYSTEM = "system"
    CUDA = "cuda"


class CudaRegion:
    """A registered part of a GPU's memory.

    Args:
        handle: of the allocation, `HANDLE_BYTES` long; the region begins where the allocation does.

    Raises:
        InvalidArgumentError: the handle cannot be opened on that device, or the allocation is shorter.
    """

    kind = RegionKind.CUDA

    def __init__(self, driver: CudaDriver, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        self.name = name
        self.device_id = device_id
        self.byte_size = byte_size
        self._driver = driver
        if len(handle) != HANDLE_BYTES or device_id not in range(1 << 31):
            raise InvalidArgumentError(_INVALID)
        try:
            self._address, size = driver.open(device_id, handle)
        except CudaError as error:
            raise InvalidArgumentError(_INVALID) from error
        if not 0 < byte_size <= size:
            _close(driver, device_id, self._address)
            raise InvalidArgumentError(_INVALID)
        weakref.finalize(self, _close, driver, device_id, self._address)

    def read(self, start: int, end: int) -> memoryview:
        """A copy of the bytes from `start` to `end`.

        Raises:
            InternalError: CUDA cannot read them; here and below.
        """
        into = bytearray(end - start)
        with self._failing("read"):
            self._driver.read(self.device_id, self._address + start, into)
        return memoryview(into).toreadonly()

    def write(self, start: int, data: Buffer) -> None:
        """Put bytes there."""
        if len(data):
            with self._failing("write"):
                self._driver.write(self.device_id, self._address + start, data)

    def copy_to(self, start: int, nbytes: int, stream: int, target: int) -> None:
        """Enqueue a copy of bytes from `start` to an address on the same GPU. The region must be held until then."""
        with self._failing("read"):
            self._driver.copy_on(self.device_id, stream, target, self._address + start, nbytes)

    def copy_from(self, start: int, nbytes: int, stream: int, source: int) -> None:
        """Enqueue a copy the other way round."""
        with self._failing("write"):
            self._driver.copy_on(self.device_id, stream, self._address + start, source, nbytes)

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        try:
            yield
        except CudaError as error:
            raise InternalError(f"unable to {doing} shared memory region '{self.name}': {error}") from error


def _close(driver: CudaDriver, device_id: int, address: int) -> None:
    try:
        driver.close(device_id, address)
    except CudaError:
        return  # the GPU, or its driver, has gone before: so has the mapping
