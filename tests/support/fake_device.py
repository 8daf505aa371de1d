"""A strict GPU in memory: `engine.gpu.device`'s protocols on numpy, for tests.

Work is done late: nothing that is enqueued happens before the test lets time pass (`FakeDevice.advance`, `run`) or
picks a stream that does its next piece (`step`). So code that reads too early, forgets to wait for an event, or lets go
of memory that is still in use, gets wrong data:

* memory that was not written, or was given back, holds `POISON`; what was given back is the next one's of its size;
* what a stream does refers to memory, not to arrays: it keeps nothing alive;
* streams know nothing of each other but by events.

What a driver would refuse, or would silently make slow, is a `MisuseError`, and stands in `FakeDevice.misuses`, should
a program catch it: an upload from memory that is not pinned, an event that is measured before it is reached, use of the
device by a function that it calls, a synchronisation that is captured.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from trireme.engine.errors import InternalError
from trireme.engine.gpu.device import DeviceEvent, DeviceStream, OutOfDeviceMemoryError, SickDeviceError

POISON = 0xA5


class MisuseError(AssertionError):
    """A real device would not have done what the test's subject meant."""


def is_poison(array: np.ndarray) -> bool:
    """Whether an array holds nothing that anybody has written."""
    return array.size > 0 and bool((np.frombuffer(array.tobytes(), np.uint8) == POISON).all())


@dataclass(eq=False)
class Block:
    """A piece of memory. `raw` may be looked at by whatever has it, whether it is still anybody's or not."""

    address: int
    raw: np.ndarray

    def view(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        nbytes = math.prod(shape) * dtype.itemsize
        return self.raw[:nbytes].view(dtype).reshape(shape)


class Pool:
    """Memory up to a limit. A block that comes back is poisoned, and is the next one of its size to go out."""

    def __init__(self, what: str, limit_bytes: int, first_address: int) -> None:
        self.used_bytes = 0
        self._what = what
        self._limit_bytes = limit_bytes
        self._next_address = first_address
        self._free: dict[int, list[Block]] = {}
        self.blocks: list[Block] = []
        self._lock = threading.RLock()

    def allocate(self, nbytes: int) -> Block:
        with self._lock:
            if self.used_bytes + nbytes > self._limit_bytes:
                left = self._limit_bytes - self.used_bytes
                raise OutOfDeviceMemoryError(f"{nbytes} bytes of {self._what} were asked for, {left} are left")
            self.used_bytes += nbytes
            free = self._free.setdefault(nbytes, [])
            if free:
                return free.pop()
            block = Block(self._next_address, np.full(max(nbytes, 1), POISON, np.uint8))
            self._next_address += -(-max(nbytes, 1) // 256) * 256
            self.blocks.append(block)
            return block

    def take_back(self, block: Block, nbytes: int) -> None:
        with self._lock:
            self.used_bytes -= nbytes
            block.raw[:] = POISON
            self._free[nbytes].append(block)


class Lease:
    """The right to a block: it goes back with the last reference to this."""

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self.pool = pool
        self.block = pool.allocate(nbytes)
        address = self.block.raw.ctypes.data
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}
        weakref.finalize(self, pool.take_back, self.block, nbytes)


class FakeArray:
    """An array on the device: a shape and a dtype. What is in it is the device's."""

    def __init__(self, pool: Pool, shape: Sequence[int], dtype: np.dtype) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.lease = Lease(pool, self.nbytes)

    def late_view(self) -> np.ndarray:
        """For work that is enqueued: what is in its memory then."""
        return self.lease.block.view(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<FakeArray {self.dtype} {list(self.shape)}>"


@dataclass(eq=False)
class Work:
    """Something that a stream does. `awaited` is an event that it waits for, `done` what happens then."""

    what: str
    duration_ns: int = 0
    done: Callable[[], None] = lambda: None
    awaited: FakeEvent | None = None
    put_ns: int = 0
    number: int = 0


@dataclass(eq=False)
class FakeEvent:
    device: FakeDevice
    at_ns: int | None = None

    def reached(self) -> bool:
        self.device.used("reached")
        return self.at_ns is not None

    def elapsed_ns(self, later: DeviceEvent) -> int:
        self.device.used("elapsed_ns")
        if not isinstance(later, FakeEvent) or later.device is not self.device:
            self.device.refuse("an event of another device")
        if self.at_ns is None or later.at_ns is None:
            self.device.refuse("the time between two events is known when both were reached")
        return later.at_ns - self.at_ns

    def happen(self) -> None:
        self.at_ns = self.device.now_ns


class FakeStream:
    """See `engine.gpu.device.DeviceStream`.

    Attributes:
        waiting: what it has not done yet.
    """

    def __init__(self, device: FakeDevice, handle: int, priority: int) -> None:
        self.device = device
        self.handle = handle
        self.priority = priority
        self.waiting: deque[Work] = deque()
        self.free_at_ns = 0

    def record(self) -> FakeEvent:
        event = FakeEvent(self.device)
        self.device.put(self, Work("record", done=event.happen), capturable=False)
        return event

    def wait(self, event: DeviceEvent) -> None:
        if not isinstance(event, FakeEvent) or event.device is not self.device:
            self.device.refuse("an event of another device")
        self.device.put(self, Work("wait", awaited=event), capturable=False)

    def upload(self, host: np.ndarray) -> FakeArray:
        source = self.device.late_host_view(host)
        array = self.device.empty(host.shape, host.dtype)
        self._put_copy("upload", source, array.late_view())
        return array

    def assemble(self, pieces: object) -> FakeArray:
        self.device.refuse("no process shares this device's memory")

    def place(self, array: FakeArray, output: object) -> None:
        self.device.refuse("no process shares this device's memory")

    def download(self, array: FakeArray) -> np.ndarray:
        self.device.expect(array)
        host = self.device.pinned(array.shape, array.dtype)
        self._put_copy("download", array.late_view(), self.device.late_host_view(host))
        return host

    def copy(self, source: FakeArray, target: FakeArray) -> None:
        self.device.expect(source, target)
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            self.device.refuse(f"{source} does not fit into {target}")
        self._put_copy("copy", source.late_view(), target.late_view())

    def kernel(self, function: Callable[..., None], *arrays: FakeArray, duration_ns: int = 100) -> None:
        """Enqueue a computation, which is given numpy views of these arrays and writes into them."""
        self.device.expect(*arrays)
        views = [array.late_view() for array in arrays]
        self.device.put(self, Work("kernel", duration_ns, lambda: function(*views)))

    def call(self, function: Callable[[], None]) -> None:
        if self.device.refuses_calls:
            raise InternalError("no function is called any more")
        self.device.put(self, Work("call", done=lambda: self.device.call(function)), capturable=False)

    def drain(self) -> None:
        self.device.used("drain")
        self.device.run()

    def _put_copy(self, what: str, source: np.ndarray, target: np.ndarray) -> None:
        def copy() -> None:
            target[...] = source

        self.device.put(self, Work(what, source.nbytes * self.device.copy_ns_per_byte, copy))

    def __repr__(self) -> str:
        return f"<FakeStream {self.handle}: {' '.join(work.what for work in self.waiting) or 'idle'}>"


@dataclass(eq=False)
class FakeGraph:
    """Work that was captured, and what it has allocated."""

    device: FakeDevice
    stream: FakeStream
    works: list[Work] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    launches: int = 0

    def launch(self, stream: DeviceStream) -> None:
        self.launches += 1
        if not isinstance(stream, FakeStream) or stream.device is not self.device:
            self.device.refuse("a stream of another device")
        for work in self.works:
            self.device.put(stream, Work(work.what, work.duration_ns, work.done))


class FakeDevice:
    """See `engine.gpu.device.Device`.

    Args:
        memory_bytes, pinned_bytes: what there is, on the device and of pinned memory.
        copy_ns_per_byte: how long copies take.

    Attributes:
        now_ns: its time.
        streams: all that were made.
        misuses: the texts of all `MisuseError`s.
        refuses_calls: whether functions are refused, though it is well.
    """

    def __init__(
        self, index: int = 0, memory_bytes: int = 1 << 20, pinned_bytes: int = 1 << 20, copy_ns_per_byte: int = 1
    ) -> None:
        self.index = index
        self.copy_ns_per_byte = copy_ns_per_byte
        self.now_ns = 0
        self.memory = Pool("device memory", memory_bytes, 0x7F00_0000_0000)
        self.pinned_memory = Pool("pinned memory", pinned_bytes, 0)
        self.streams: list[FakeStream] = []
        self.misuses: list[str] = []
        self.graph: FakeGraph | None = None
        self.refuses_calls = False
        self._sick = self._sickness = ""
        self._uses_left = 0
        self._number = 0
        self._lock = threading.RLock()
        self._callers: set[int] = set()
        self._local = threading.local()

    # What the server uses.

    def stream(self, priority: int = 0) -> FakeStream:
        self.used("stream")
        if priority not in (0, -1):
            self.refuse(f"priority {priority}; there are 0 and -1")
        self.streams.append(FakeStream(self, 0x5000 + len(self.streams), priority))
        return self.streams[-1]

    def pinned(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        self.used("pinned")
        if self.graph is not None:
            raise InternalError("pinned memory is allocated while work is captured")
        dtype = np.dtype(dtype)
        lease = Lease(self.pinned_memory, math.prod(shape) * dtype.itemsize)
        return np.asarray(lease).view(dtype).reshape(shape)

    def relieved(self, array: np.ndarray) -> np.ndarray:
        return array

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> FakeArray:
        self.used("empty")
        array = FakeArray(self.memory, shape, dtype)
        if self.graph is not None:
            self.graph.held.append(array.lease)
        return array

    def address(self, array: FakeArray) -> int:
        self.expect(array)
        return array.lease.block.address if array.nbytes else 0

    @contextmanager
    def active(self) -> Iterator[None]:
        self.used("active")
        before = self.is_active
        self._local.active = True
        try:
            yield
        finally:
            self._local.active = before

    def capture(self, stream: DeviceStream, work: Callable[[], None]) -> FakeGraph:
        self.used("capture")
        if self.graph is not None:
            self.refuse("a capture within a capture")
        if not isinstance(stream, FakeStream) or stream.device is not self:
            self.refuse("a stream of another device")
        graph = self.graph = FakeGraph(self, stream)
        try:
            work()
        finally:
            self.graph = None
        return graph

    # What tests do.

    def advance(self, duration_ns: int) -> None:
        """Let time pass: all streams go on side by side."""
        until_ns = self.now_ns + duration_ns
        self._run_until(until_ns)
        if not self._sick:
            self.now_ns = until_ns

    def run(self) -> None:
        """Let time pass until nothing can be done any more."""
        self._run_until(None)

    def step(self, stream: FakeStream) -> bool:
        """Let one stream do its next piece of work, whatever the others are at; False if it waits, or has none."""
        if not self._can_go_on(stream):
            return False
        self.now_ns += 1
        self._perform(stream)
        return True

    def sicken(self, message: str = "an illegal memory access was encountered", *, after: int = 0) -> None:
        """From now on everything fails, and nothing goes on.

        Args:
            after: it can be used so often before.
        """
        self._sickness, self._uses_left = message, after
        if not after:
            self._sick = message

    @property
    def is_active(self) -> bool:
        """Whether it is the calling thread's current device."""
        return getattr(self._local, "active", False)

    def at(self, address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """For stand-ins of libraries that are given addresses: a late view of what is there."""
        found = [block for block in self.memory.blocks if block.address == address]
        if not found:
            self.refuse(f"nothing was ever allocated at {address:#x}")
        return found[0].view(shape, np.dtype(dtype))

    def stream_of(self, handle: int) -> FakeStream:
        """For stand-ins of libraries that are given a stream's handle."""
        return next(stream for stream in self.streams if stream.handle == handle)

    # What the fakes do.

    def used(self, what: str) -> None:
        """Something was asked of the device."""
        if threading.get_ident() in self._callers:
            self.refuse(f"{what}: a function that a stream calls must not use the device")
        if self._sickness and not self._uses_left:
            self._sick = self._sickness
            raise SickDeviceError(self._sick)
        self._uses_left -= 1

    def refuse(self, text: str) -> NoReturn:
        self.misuses.append(text)
        raise MisuseError(text)

    def expect(self, *arrays: FakeArray) -> None:
        """These are arrays of this device."""
        for array in arrays:
            if not isinstance(array, FakeArray) or array.lease.pool is not self.memory:
                self.refuse(f"{type(array).__name__} is no array of device {self.index}")

    def late_host_view(self, host: np.ndarray) -> np.ndarray:
        """The same memory as an array that is pinned here, without keeping it."""
        owner = host
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        lease: Any = owner.base
        if not isinstance(lease, Lease) or lease.pool is not self.pinned_memory:
            self.refuse(f"a copy from or to memory that is not pinned: {host.dtype} {list(host.shape)}")
        raw = lease.block.raw
        offset = host.ctypes.data - raw.ctypes.data if host.size else 0
        return np.ndarray(host.shape, host.dtype, raw.data, offset, host.strides)

    def put(self, stream: FakeStream, work: Work, *, capturable: bool = True) -> None:
        self.used(work.what)
        with self._lock:
            if self.graph is not None:
                if not capturable or stream is not self.graph.stream:
                    raise InternalError(f"operation not permitted when stream is capturing: {work.what}")
                self.graph.works.append(work)
                return
            self._number += 1
            work.put_ns, work.number = self.now_ns, self._number
            stream.waiting.append(work)

    def call(self, function: Callable[[], None]) -> None:
        """On a thread of the driver's."""

        def call() -> None:
            self._callers.add(threading.get_ident())
            try:
                function()
            finally:
                self._callers.discard(threading.get_ident())

        thread = threading.Thread(target=call, name="driver")
        thread.start()
        thread.join()

    def _can_go_on(self, stream: FakeStream) -> bool:
        if self._sick or not stream.waiting:
            return False
        awaited = stream.waiting[0].awaited
        return awaited is None or awaited.at_ns is not None

    def _due_ns(self, stream: FakeStream) -> int:
        work = stream.waiting[0]
        awaited_ns = 0 if work.awaited is None or work.awaited.at_ns is None else work.awaited.at_ns
        return max(stream.free_at_ns, work.put_ns, awaited_ns) + work.duration_ns

    def _run_until(self, until_ns: int | None) -> None:
        while ready := [stream for stream in self.streams if self._can_go_on(stream)]:
            stream = min(ready, key=lambda each: (self._due_ns(each), each.waiting[0].number))
            due_ns = self._due_ns(stream)
            if until_ns is not None and due_ns > until_ns:
                return
            self.now_ns = max(self.now_ns, due_ns)
            self._perform(stream)

    def _perform(self, stream: FakeStream) -> None:
        with self._lock:
            work = stream.waiting.popleft()
            stream.free_at_ns = self.now_ns
        work.done()

    def __repr__(self) -> str:
        state = f", sick: {self._sick}" if self._sick else ""
        used = f"{self.memory.used_bytes} and {self.pinned_memory.used_bytes} bytes used"
        return f"<FakeDevice {self.index} at {self.now_ns} ns: {len(self.streams)} streams, {used}{state}>"
