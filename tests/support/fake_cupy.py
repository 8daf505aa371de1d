"""A stand-in for cupy: the part of it that `trireme.engine.gpu.cupy_device` uses, on `fake_gpu.FakeGpus`, and no more.

Names, arguments and errors are those of cupy's reference and sources (14). Anything else is an AttributeError or a
`Misuse`: another argument, another thread's current device, unpinned memory, memory that has been given back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_cuda import FakeCuda
from fake_gpu import POISON, FakeEvent, FakeGpus, Misuse, Operation

_TEXTS = {1: "invalid argument", 2: "out of memory", 100: "no CUDA-capable device is detected", 600: "not ready"}
_UNIT_BYTES = 512


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"cudaError{status}: {_TEXTS.get(status, 'an illegal memory access was encountered')}")


class OutOfMemoryError(MemoryError):
    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        text = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(f"{text}, limit set to: {limit:,} bytes)." if limit else f"{text}).")


class FakeCupy:
    """What ``import cupy`` may give.

    Attributes:
        gpus: the devices.
    """

    def __init__(self, gpus: FakeGpus | None = None) -> None:
        self.gpus = gpus or FakeGpus()
        self.ndarray = ndarray
        self.cuda = _Cuda(self.gpus)


class _Cuda:
    """``cupy.cuda``."""

    def __init__(self, gpus: FakeGpus) -> None:
        self._gpus = gpus
        self._thread = threading.local()
        self.UnownedMemory = UnownedMemory
        self.MemoryPointer = MemoryPointer
        self.memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
        self.runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            hostAllocPortable=1,
            getDeviceCount=self._device_count,
            eventQuery=self._event_query,
            streamQuery=self._stream_query,
        )
        self.events_made = 0
        self._events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()

    def Device(self, device: int) -> Device:  # noqa: N802 - the package's names, here and below
        return Device(self, device)

    def Stream(self, *, non_blocking: bool, priority: int) -> Stream:  # noqa: N802
        assert non_blocking is True, "a blocking stream waits for the default one"
        self._check()
        return Stream(self, self._gpus.new_stream(self._current(), priority).handle)

    def Event(self) -> Event:  # noqa: N802
        self._check()
        return Event(self)

    def MemoryPool(self) -> MemoryPool:  # noqa: N802
        return MemoryPool(self)

    def PinnedMemory(self, size: int, flags: int) -> PinnedMemory:  # noqa: N802
        assert flags == 1
        self._check()
        return PinnedMemory(self._gpus, size)

    def get_elapsed_time(self, start_event: Event, end_event: Event) -> float:
        self._check()
        start, end = start_event._event, end_event._event
        if start.at_ns is None or end.at_ns is None:
            raise CUDARuntimeError(600)
        return (end.at_ns - start.at_ns) / 1e6

    def _device_count(self) -> int:
        if not self._gpus.count:
            raise CUDARuntimeError(100)
        return self._gpus.count

    def _event_query(self, event: int) -> int:
        return self._ask(self._events[event]._event.pending)

    def _stream_query(self, stream: int) -> int:
        return self._ask(bool(self._gpus.stream(stream).queue))

    def _ask(self, pending: bool) -> int:
        if not self._gpus.may_ask():
            return 900
        if self._gpus.sick is not None:
            return self._gpus.sick
        if self._gpus.transient:
            return self._gpus.transient.popleft()
        return 600 if pending else 0

    def _current(self) -> int:
        return (getattr(self._thread, "stack", None) and self._thread.stack[-1]) or 0

    def _check(self, device: int | None = None) -> None:
        """No call succeeds once the devices have failed; and the stream's device must be the current one."""
        if self._gpus.sick is not None:
            raise CUDARuntimeError(self._gpus.sick)
        if self._gpus.transient:
            raise CUDARuntimeError(self._gpus.transient.popleft())
        if device is not None and device != self._current():
            raise Misuse(f"GPU {device} is used while GPU {self._current()} is current")


class Device:
    def __init__(self, cuda: _Cuda, device: int) -> None:
        self.id = device
        self._cuda = cuda
        if device not in range(cuda._gpus.count):
            raise CUDARuntimeError(101)

    def __enter__(self) -> Device:
        thread = self._cuda._thread
        thread.stack = [*getattr(thread, "stack", ()), self.id]
        return self

    def __exit__(self, *args: object) -> None:
        self._cuda._thread.stack.pop()


class Event:
    def __init__(self, cuda: _Cuda) -> None:
        self._event = FakeEvent(cuda._current())
        self.ptr = id(self)
        cuda._events[self.ptr] = self
        cuda.events_made += 1

    def record(self, stream: Stream) -> None:
        stream.record(self)


class Stream:
    def __init__(self, cuda: _Cuda, handle: int) -> None:
        self.ptr = handle
        self._cuda = cuda
        self._gpus = cuda._gpus
        self._device = self._gpus.stream(handle).device

    def __del__(self) -> None:
        self._gpus.destroy_stream(self.ptr)

    def record(self, event: Event | None = None) -> Event:
        self._cuda._check(self._device)
        event = event or Event(self._cuda)
        if event._event.device != self._device:
            raise CUDARuntimeError(400)
        event._event = FakeEvent(self._device)  # who waits for what was recorded before does so still
        self._gpus.record(self.ptr, event._event)
        return event

    def synchronize(self) -> None:
        self._cuda._check(self._device)
        reached = FakeEvent(self._device)
        self._gpus.record(self.ptr, reached)
        self._gpus.wait(reached)
        self._cuda._check(self._device)

    def wait_event(self, event: Event) -> None:
        self._cuda._check(self._device)
        assert isinstance(event, Event)
        self._gpus.enqueue(self.ptr, Operation("wait", lambda: None, 0, event._event))

    def begin_capture(self) -> None:
        self._cuda._check(self._device)
        stream = self._gpus.stream(self.ptr)
        if stream.captured is not None:
            raise CUDARuntimeError(1)
        self._gpus.begin_capture(self.ptr)

    def end_capture(self) -> Graph:
        captured = self._gpus.end_capture(self.ptr)
        self._cuda._check(self._device)
        if captured is None:
            raise CUDARuntimeError(901)
        if any(operation.name in ("event", "wait") for operation in captured):
            raise CUDARuntimeError(904)
        return Graph(self._cuda, captured)


class Graph:
    def __init__(self, cuda: _Cuda, captured: list[Operation]) -> None:
        self._cuda = cuda
        self._captured = captured

    def launch(self, stream: Stream) -> None:
        self._cuda._check(stream._device)
        for operation in self._captured:
            self._cuda._gpus.enqueue(stream.ptr, operation)


class PinnedMemory:
    def __init__(self, gpus: FakeGpus, size: int) -> None:
        self._gpus = gpus
        self._memory = np.full(size, POISON, np.uint8)
        self.size = size
        self.ptr = self._memory.ctypes.data
        gpus.pin(self.ptr, size)

    def __del__(self) -> None:
        self._gpus.unpin(self.ptr)


class MemoryPool:
    """Keeps what it has got, and gives it again, latest first, to the next that asks for so much."""

    def __init__(self, cuda: _Cuda) -> None:
        self._cuda = cuda
        self._gpus = cuda._gpus
        self._limits: dict[int, int] = {}
        self._totals: dict[int, int] = {}
        self._free: dict[tuple[int, int], list[int]] = {}

    def set_limit(self, *, size: int) -> None:
        self._cuda._check()
        assert size >= 0
        self._limits[self._cuda._current()] = size

    def malloc(self, size: int) -> MemoryPointer:
        self._cuda._check()
        device = self._cuda._current()
        size = -(-size // _UNIT_BYTES) * _UNIT_BYTES
        if not size:
            return MemoryPointer(UnownedMemory(0, 0, None, device), 0)
        free = self._free.setdefault((device, size), [])
        address = free.pop() if free else self._more(device, size)
        return MemoryPointer(_PooledMemory(self, address, size, device), 0)

    def _more(self, device: int, size: int) -> int:
        total, limit = self._totals.get(device, 0), self._limits.get(device, 0)
        if limit and total + size > limit:
            raise OutOfMemoryError(size, total, limit)
        address = self._gpus.allocate(device, size)
        if address < 0:
            raise OutOfMemoryError(size, total)
        self._totals[device] = total + size
        return address


class _PooledMemory:
    def __init__(self, pool: MemoryPool, ptr: int, size: int, device: int) -> None:
        self.ptr = ptr
        self.size = size
        self._device = device
        self._pool = pool

    def __del__(self) -> None:
        self._pool._gpus.poison(self.ptr, self.size)
        self._pool._free[self._device, self.size].append(self.ptr)


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: object, device_id: int) -> None:
        assert isinstance(ptr, int)
        self.ptr = ptr
        self.size = size
        self._owner = owner
        self._device = device_id


class MemoryPointer:
    def __init__(self, mem: Any, offset: int) -> None:
        assert offset == 0
        self.mem = mem
        self.ptr: int = mem.ptr

    def copy_from_host_async(self, mem: int, size: int, stream: Stream) -> None:
        stream._cuda._check(stream._device)
        assert isinstance(mem, int)
        if size:
            stream._gpus.copy_in(stream.ptr, self.ptr, mem, size)

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Stream) -> None:
        stream._cuda._check(stream._device)
        assert isinstance(src, MemoryPointer)
        if size:
            stream._gpus.copy(stream.ptr, src.ptr, self.ptr, size)

    def copy_to_host_async(self, mem: int, size: int, stream: Stream) -> None:
        stream._cuda._check(stream._device)
        assert isinstance(mem, int)
        if size:
            stream._gpus.copy_out(stream.ptr, mem, self.ptr, size)


def fake_driver(gpus: FakeGpus) -> FakeCuda:
    """CUDA's driver library on the same devices."""

    def copy_on(handle: int, target: int, read: Callable[[], bytes], nbytes: int) -> int:
        device = gpus.stream(handle).device

        def copy() -> None:
            gpus.memory(target, nbytes, device)[:] = np.frombuffer(read(), np.uint8)

        gpus.memory(target, nbytes, device)
        gpus.enqueue(handle, Operation("copy", copy))
        return 0

    def copy_off(handle: int, source: int, write: Callable[[bytes], None], nbytes: int) -> int:
        device = gpus.stream(handle).device
        gpus.memory(source, nbytes, device)
        copy = Operation("copy", lambda: write(gpus.memory(source, nbytes, device).tobytes()))
        gpus.enqueue(handle, copy)
        return 0

    return FakeCuda(devices=gpus.count, streams=_DriverStreams(gpus), copy_on=copy_on, copy_off=copy_off)


class _DriverStreams(dict[int, Callable[[Callable[[], None]], int]]):
    """What enqueues a function, by the handle of the stream."""

    def __init__(self, gpus: FakeGpus) -> None:
        self._gpus = gpus

    def get(self, key: int, default: object = None) -> Callable[[Callable[[], None]], int]:
        def enqueue(function: Callable[[], None]) -> int:
            if self._gpus.sick is None:
                self._gpus.call(key, function)
            return self._gpus.sick or 0

        return enqueue


class ndarray:  # noqa: N801
    """``cupy.ndarray``: nothing of it can be read from the host."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, memptr: MemoryPointer) -> None:
        assert isinstance(shape, tuple)
        assert isinstance(memptr, MemoryPointer)
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.data = memptr
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self.flags = SimpleNamespace(c_contiguous=True)
        assert self.nbytes <= memptr.mem.size
