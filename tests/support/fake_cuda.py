"""A stand-in for CUDA's driver library, as strict as the driver: wrong types are a bug of the caller, and anything
before ``cuInit``, without a current context, or outside of a mapping is an error code. Written after the driver's
reference, not against a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trireme.engine.memory.cuda import IpcMemHandle

SUCCESS, INVALID_VALUE, NOT_INITIALIZED, NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT = 0, 1, 3, 100, 101, 201
INVALID_HANDLE, ILLEGAL_ADDRESS = 400, 700
EARLY = 0x5A
"""What another process finds where a copy on a stream goes, until it has been done."""
_TEXTS = {
    1: b"invalid argument",
    3: b"initialization error",
    100: b"no CUDA-capable device",
    201: b"invalid context",
    400: b"invalid resource handle",
    700: b"an illegal memory access was encountered",
}
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@dataclass
class Allocation:
    """Another process's memory on a GPU, which is opened by `handle`."""

    device_id: int
    memory: bytearray
    handle: bytes


@dataclass
class FakeCuda:
    """What ``ctypes.CDLL("libcuda.so.1")`` may be.

    Attributes:
        devices: how many GPUs there are.
        allocations: what there is to open.
        mapped: addresses of what is open, and how often each was opened.
        current: stack of current contexts.
        streams: by handle, what enqueues something on a stream and returns the driver's status.
        copy_on: enqueues, on a stream, a copy to an address on a GPU, of what is read then, and so many bytes.
        copy_off: enqueues, on a stream, a copy from an address on a GPU, of so many bytes, to what writes them then.
        make_stream: gives the handle of a new stream of a device, with a priority.
    """

    devices: int = 1
    init_status: int = SUCCESS
    allocations: list[Allocation] = field(default_factory=list)
    mapped: dict[int, Allocation] = field(default_factory=dict)
    current: list[int] = field(default_factory=list)
    streams: dict[int, Callable[[Callable[[], None]], int]] = field(default_factory=dict)
    make_stream: Callable[[int, int], int] | None = None
    copy_on: Callable[[int, int, Callable[[], bytes], int], int] | None = None
    copy_off: Callable[[int, int, Callable[[bytes], None], int], int] | None = None
    broken: bool = False
    _initialised: bool = False
    _next_address: int = 0x7F00_0000_0000

    def allocate(self, data: bytes, device_id: int = 0) -> Allocation:
        handle = bytes([len(self.allocations) + 1, 0]) + b"\x00h" * 31
        self.allocations.append(Allocation(device_id, bytearray(data), handle))
        return self.allocations[-1]

    def cuInit(self, flags: ctypes.c_uint) -> int:  # noqa: N802 - the library's names, here and below
        assert isinstance(flags, ctypes.c_uint)
        assert not flags.value
        self._initialised = self.init_status == SUCCESS
        return self.init_status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        if not self._initialised:
            return NOT_INITIALIZED
        _out(count, ctypes.c_int).value = self.devices
        return SUCCESS

    def cuDeviceGet(self, device: Any, ordinal: ctypes.c_int) -> int:  # noqa: N802
        assert isinstance(ordinal, ctypes.c_int)
        if ordinal.value not in range(self.devices):
            return INVALID_DEVICE
        _out(device, ctypes.c_int).value = ordinal.value
        return SUCCESS

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:  # noqa: N802
        assert isinstance(device, ctypes.c_int)
        _out(context, ctypes.c_void_p).value = 0xC000 + device.value
        return SUCCESS

    def cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> int:  # noqa: N802
        assert isinstance(context, ctypes.c_void_p)
        assert context.value is not None
        self.current.append(context.value)
        return SUCCESS

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        _out(context, ctypes.c_void_p).value = self.current.pop()
        return SUCCESS

    def cuIpcOpenMemHandle_v2(self, address: Any, handle: IpcMemHandle, flags: ctypes.c_uint) -> int:  # noqa: N802
        assert isinstance(handle, IpcMemHandle)
        assert flags.value == 1, "the only flag that there is, and it must be given"
        if not self.current:
            return INVALID_CONTEXT
        for allocation in self.allocations:
            if bytes(handle.reserved) == allocation.handle and self.current[-1] == 0xC000 + allocation.device_id:
                _out(address, ctypes.c_uint64).value = self._next_address
                self.mapped[self._next_address] = allocation
                self._next_address += 1 << 30
                return SUCCESS
        return INVALID_VALUE

    def cuIpcCloseMemHandle(self, address: ctypes.c_uint64) -> int:  # noqa: N802
        assert isinstance(address, ctypes.c_uint64)
        return SUCCESS if self.mapped.pop(address.value, None) else INVALID_VALUE

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: ctypes.c_uint64) -> int:  # noqa: N802
        found = self._find(address, 1)
        if found is None or self.broken:
            return INVALID_VALUE
        allocation, offset = found
        _out(base, ctypes.c_uint64).value = address.value - offset
        _out(size, ctypes.c_size_t).value = len(allocation.memory)
        return SUCCESS

    def cuMemcpyDtoH_v2(self, target: ctypes.c_void_p, source: ctypes.c_uint64, size: ctypes.c_size_t) -> int:  # noqa: N802
        found = self._find(source, size.value)
        if found is None or self.broken:
            return INVALID_VALUE
        allocation, offset = found
        assert isinstance(target, ctypes.c_void_p)
        assert target.value is not None
        ctypes.memmove(target.value, bytes(allocation.memory[offset : offset + size.value]), size.value)
        return SUCCESS

    def cuMemcpyHtoD_v2(self, target: ctypes.c_uint64, source: ctypes.c_void_p, size: ctypes.c_size_t) -> int:  # noqa: N802
        found = self._find(target, size.value)
        if found is None or self.broken:
            return INVALID_VALUE
        allocation, offset = found
        assert isinstance(source, ctypes.c_void_p)
        assert source.value is not None
        allocation.memory[offset : offset + size.value] = ctypes.string_at(source.value, size.value)
        return SUCCESS

    def cuMemcpyDtoDAsync_v2(  # noqa: N802
        self, target: ctypes.c_uint64, source: ctypes.c_uint64, size: ctypes.c_size_t, stream: ctypes.c_void_p
    ) -> int:
        assert isinstance(target, ctypes.c_uint64)
        assert isinstance(size, ctypes.c_size_t)
        assert isinstance(stream, ctypes.c_void_p)
        assert self.copy_on is not None
        nbytes = size.value
        found, taken = self._find(source, nbytes), self._find(target, nbytes)
        if (found is None) == (taken is None) or self.broken:
            return INVALID_VALUE
        if found is None:
            assert taken is not None
            return self._copy_off(stream.value or 0, target.value, taken, source.value, nbytes)
        allocation, offset = found
        mapped = source.value

        def read() -> bytes:
            self._expect_open(mapped)
            return bytes(allocation.memory[offset : offset + nbytes])

        return self.copy_on(stream.value or 0, target.value, read, nbytes)

    def _copy_off(self, stream: int, target: int, taken: tuple[Allocation, int], source: int, nbytes: int) -> int:
        assert self.copy_off is not None
        allocation, offset = taken
        allocation.memory[offset : offset + nbytes] = bytes([EARLY]) * nbytes

        def write(data: bytes) -> None:
            self._expect_open(target)
            assert len(data) == nbytes
            allocation.memory[offset : offset + nbytes] = data

        return self.copy_off(stream, source, write, nbytes)

    def _expect_open(self, address: int) -> None:
        assert any(start <= address < start + len(each.memory) for start, each in self.mapped.items()), "closed"

    def cuStreamCreateWithPriority(self, stream: Any, flags: ctypes.c_uint, priority: ctypes.c_int) -> int:  # noqa: N802
        assert isinstance(flags, ctypes.c_uint)
        assert isinstance(priority, ctypes.c_int)
        assert flags.value == 1, "a blocking stream waits for the default one, and cannot be captured beside it"
        assert self.make_stream is not None
        if not self.current:
            return INVALID_CONTEXT
        _out(stream, ctypes.c_void_p).value = self.make_stream(self.current[-1] - 0xC000, priority.value)
        return SUCCESS

    def cuLaunchHostFunc(self, stream: ctypes.c_void_p, function: ctypes.c_void_p, data: ctypes.c_void_p) -> int:  # noqa: N802
        assert isinstance(stream, ctypes.c_void_p)
        assert isinstance(function, ctypes.c_void_p)
        assert isinstance(data, ctypes.c_void_p)
        assert function.value is not None
        enqueue = self.streams.get(stream.value or 0)
        if enqueue is None:
            return INVALID_HANDLE
        native = _HOST_FUNCTION(function.value)
        return enqueue(lambda: native(data))

    def cuGetErrorString(self, status: ctypes.c_int, text: Any) -> int:  # noqa: N802
        if status.value not in _TEXTS:
            return INVALID_VALUE
        _out(text, ctypes.c_char_p).value = _TEXTS[status.value]
        return SUCCESS

    def _find(self, address: ctypes.c_uint64, size: int) -> tuple[Allocation, int] | None:
        """The mapping in which so many bytes are, and where; None for any other address, or without a context."""
        assert isinstance(address, ctypes.c_uint64)
        if not self.current:
            return None
        for start, allocation in self.mapped.items():
            if start <= address.value and address.value + size <= start + len(allocation.memory):
                return allocation, address.value - start
        return None


def _out(pointer: Any, kind: type[Any]) -> Any:
    """What a ``byref`` points to."""
    target = pointer._obj
    assert type(target) is kind
    return target
