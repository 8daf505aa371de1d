"""GPUs that do nothing until they are told to: what stand-ins of CUDA's libraries run on.

What is put into a stream is done later, when a test says so (`advance`, `run`) or on a thread of its own (`started`),
in the order of the stream, by the device's clock. Memory that was not written, or that was given back, holds poison;
what uses memory that is not there, or not any more, is a bug of the caller's, and raises (`Misuse`).
"""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

POISON = 0xA5
EARLY = 0x5A
"""What a copy's target holds until the copy has been done."""

_STEP_NS = 1000
_BYTES_PER_NS = 10


class Misuse(AssertionError):
    """The caller did what it must never do."""


class FakeEvent:
    """A point in a stream.

    Attributes:
        device: where it was made.
        pending: it has been recorded, and its stream has not come to it.
        at_ns: the device's time when its stream came to it; None before.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.pending = False
        self.at_ns: int | None = None


@dataclass
class Operation:
    """Something in a stream: a function, or an event to wait for."""

    name: str
    do: Callable[[], None]
    cost_ns: int = _STEP_NS
    waits_for: FakeEvent | None = None


@dataclass
class FakeStream:
    """A stream: what is to be done, in order; and what is captured instead, while that lasts."""

    device: int
    handle: int
    priority: int = 0
    queue: deque[Operation] = field(default_factory=deque)
    captured: list[Operation] | None = None
    capturing_thread: int = 0
    broken: bool = False


class FakeGpus:
    """A machine's GPUs, and its pinned memory.

    Args:
        count: how many there are.
        memory_bytes: how much memory each of them has.
        seed: streams get their turns in an order that this decides; None for one after the other.

    Attributes:
        sick: CUDA's error number, if the devices have failed; then nothing more is done.
        pageable: how often memory that is not pinned was copied from or to; None where that is a `Misuse`, because the
            subject is not to do it. Such a copy reads at once, and the caller waits until it has been written.
        transient: error numbers of the next calls, each of which is about that call alone.
        done: names of the operations that were done, in order.
        failures: what went wrong on the thread of `started`; raised at its end.
    """

    def __init__(self, count: int = 1, memory_bytes: int = 1 << 30, seed: int | None = None) -> None:
        self.count = count
        self.memory_bytes = memory_bytes
        self.sick: int | None = None
        self.pageable: int | None = None
        self.transient: deque[int] = deque()
        self.now_ns = 0
        self._order = None if seed is None else random.Random(seed)
        self.done: list[str] = []
        self.failures: list[BaseException] = []
        self._streams: dict[int, FakeStream] = {}
        self._handles = itertools.count(0x5000, 16)
        self._addresses = itertools.count(1)
        self._memory: dict[int, tuple[int, np.ndarray]] = {}
        self._pinned: dict[int, int] = {}
        self._changed = threading.Condition(threading.RLock())
        self._calling = threading.local()
        self._busy = False

    # Memory

    def allocate(self, device: int, nbytes: int) -> int:
        """The address of so much memory of a device, poisoned; -1 if it has not that much."""
        with self._changed:
            used = sum(memory.nbytes for owner, memory in self._memory.values() if owner == device)
            if used + nbytes > self.memory_bytes:
                return -1
            # Such addresses are none of the process: using one of them directly ends it.
            address = 0x0DE0_0000_0000_0000 + next(self._addresses) * (1 << 32)
            self._memory[address] = (device, np.full(nbytes, POISON, np.uint8))
            return address

    def free(self, address: int) -> None:
        with self._changed:
            del self._memory[address]

    def poison(self, address: int, nbytes: int) -> None:
        """What is there is of no meaning any more."""
        self.memory(address, nbytes)[:] = POISON

    def memory(self, address: int, nbytes: int, device: int | None = None) -> np.ndarray:
        """The bytes at an address of a device, to read and to write."""
        if not nbytes:
            return np.empty(0, np.uint8)
        with self._changed:
            for start, (owner, memory) in self._memory.items():
                if start <= address and address + nbytes <= start + memory.nbytes:
                    if device not in (None, owner):
                        raise Misuse(f"memory of GPU {owner} is used by GPU {device}")
                    return memory[address - start : address - start + nbytes]
        raise Misuse(f"there are no {nbytes} bytes at {address:#x} of any GPU")

    def pin(self, address: int, nbytes: int) -> None:
        with self._changed:
            self._pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        with self._changed:
            del self._pinned[address]

    def is_pinned(self, address: int, nbytes: int) -> bool:
        with self._changed:
            return any(start <= address and address + nbytes <= start + size for start, size in self._pinned.items())

    def source(self, address: int, nbytes: int) -> Callable[[], np.ndarray]:
        """What a copy from the host's memory reads, when its time has come."""
        if self.pageable is None or self.is_pinned(address, nbytes):
            self.host(address, nbytes)
            return lambda: self.host(address, nbytes)
        self.pageable += 1
        staged = ctypes.string_at(address, nbytes)
        return lambda: np.frombuffer(staged, np.uint8)

    def copied_out(self, handle: int, target: int, nbytes: int, read: Callable[[], np.ndarray], cost_ns: int) -> None:
        """Enqueue a copy to the host's memory of what is read when its time has come."""
        if self.pageable is None or self.is_pinned(target, nbytes):
            self.host(target, nbytes)[:] = EARLY

            def copy() -> None:
                self.host(target, nbytes)[:] = read()

            self.enqueue(handle, Operation("copy out", copy, cost_ns))
            return
        self.pageable += 1

        def write() -> None:
            ctypes.memmove(target, read().tobytes(), nbytes)

        self.enqueue(handle, Operation("copy out", write, cost_ns))
        over = FakeEvent(self.stream(handle).device)
        self.record(handle, over)
        self.wait(over)

    def host(self, address: int, nbytes: int) -> np.ndarray:
        """Pinned memory of the host, as bytes to read and to write."""
        with self._changed:
            for start, size in self._pinned.items():
                if start <= address and address + nbytes <= start + size:
                    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        raise Misuse(f"the {nbytes} bytes at {address:#x} are not pinned: the copy would not be asynchronous")

    # Streams

    def new_stream(self, device: int, priority: int = 0) -> FakeStream:
        with self._changed:
            stream = FakeStream(device, next(self._handles), priority)
            self._streams[stream.handle] = stream
            return stream

    def destroy_stream(self, handle: int) -> None:
        """What is in it is still done; nothing more can be put into it."""
        with self._changed:
            stream = self._streams.pop(handle)
            stream.handle += 1  # odd, as no other is
            self._streams[stream.handle] = stream

    def streams(self, device: int) -> list[FakeStream]:
        """All streams of a device."""
        with self._changed:
            return [stream for stream in self._streams.values() if stream.device == device]

    def stream(self, handle: int) -> FakeStream:
        if not isinstance(handle, int) or handle not in self._streams:
            raise Misuse(f"{handle!r} is the handle of no stream")
        return self._streams[handle]

    def enqueue(self, handle: int, operation: Operation) -> None:
        """Put something into a stream, or into what is being captured there."""
        if getattr(self._calling, "active", False):
            raise Misuse(f"a function that a stream called uses the device: {operation.name}")
        with self._changed:
            stream = self.stream(handle)
            if stream.captured is not None:
                stream.captured.append(operation)
            else:
                stream.queue.append(operation)
            self._changed.notify_all()

    # Captures

    def begin_capture(self, handle: int) -> None:
        with self._changed:
            stream = self.stream(handle)
            stream.captured, stream.capturing_thread, stream.broken = [], threading.get_ident(), False

    def end_capture(self, handle: int) -> list[Operation] | None:
        """What was captured; None if something has broken the capture."""
        with self._changed:
            stream = self.stream(handle)
            captured, stream.captured = stream.captured, None
            return None if stream.broken else captured

    def wait_for_device(self, device: int | None = None) -> bool:
        """Whether a device, or all of them, may be waited for: while a stream captures, that breaks it."""
        return not self._break(lambda stream: device in (None, stream.device))

    def may_ask(self) -> bool:
        """Whether the calling thread may ask how far a stream is: one that captures breaks its capture so."""
        return not self._break(lambda stream: stream.capturing_thread == threading.get_ident())

    def _break(self, concerns: Callable[[FakeStream], bool]) -> bool:
        with self._changed:
            capturing = [each for each in self._streams.values() if each.captured is not None and concerns(each)]
            for stream in capturing:
                stream.broken = True
            return bool(capturing)

    def record(self, handle: int, event: FakeEvent) -> None:
        event.pending, event.at_ns = True, None

        def reach() -> None:
            event.pending, event.at_ns = False, self.now_ns

        self.enqueue(handle, Operation("event", reach, 0))

    def copy_in(self, handle: int, address: int, source: int, nbytes: int) -> None:
        device = self.stream(handle).device

        read = self.source(source, nbytes)

        def copy() -> None:
            self.memory(address, nbytes, device)[:] = read()

        self.memory(address, nbytes, device)
        self.enqueue(handle, Operation("copy in", copy, _STEP_NS + nbytes // _BYTES_PER_NS))

    def copy_out(self, handle: int, target: int, address: int, nbytes: int) -> None:
        device = self.stream(handle).device

        self.memory(address, nbytes, device)
        cost_ns = _STEP_NS + nbytes // _BYTES_PER_NS
        self.copied_out(handle, target, nbytes, lambda: self.memory(address, nbytes, device), cost_ns)

    def copy(self, handle: int, source: int, target: int, nbytes: int) -> None:
        device = self.stream(handle).device

        def copy() -> None:
            self.memory(target, nbytes, device)[:] = self.memory(source, nbytes, device)

        self.memory(source, nbytes, device)
        self.memory(target, nbytes, device)
        self.enqueue(handle, Operation("copy", copy))

    def call(self, handle: int, function: Callable[[], None]) -> None:
        def do() -> None:
            self._calling.active = True
            try:
                function()
            except BaseException as error:
                raise Misuse(f"a function that a stream called raised {error!r}") from error
            finally:
                self._calling.active = False

        self.enqueue(handle, Operation("call", do, 0))

    # Time

    def advance(self, steps: int = 1) -> int:
        """Do the next operations, each of any stream that has one; how many there were to do."""
        for step in range(steps):
            operation = self._next()
            if operation is None:
                return step
            self._do(operation)
        return steps

    def run(self) -> None:
        """Do all there is to do."""
        while self.advance():
            pass

    def wait(self, event: FakeEvent, patience_s: float = 60) -> None:
        """Let the calling thread wait until a stream has come to an event, or the devices are sick."""
        if not self._busy:
            self.run()
            return
        with self._changed:
            assert self._changed.wait_for(lambda: event.at_ns is not None or self.sick is not None, patience_s)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Let a thread do what is to be done, as the driver's does."""
        over = threading.Event()
        self._busy = True
        thread = threading.Thread(target=self._work, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            with self._changed:
                self._changed.notify_all()
            thread.join()
            self._busy = False
        if self.failures:
            raise self.failures[0]

    def _work(self, over: threading.Event) -> None:
        while True:
            with self._changed:  # where the end is announced, too, so that it cannot be missed
                if over.is_set():
                    return
                operation = self._next()
                if operation is None:
                    self._changed.wait()
                    continue
            try:
                self._do(operation)
                with self._changed:
                    self._changed.notify_all()
            except BaseException as error:  # noqa: BLE001 - for the test, which is on another thread
                self.failures.append(error)

    def _next(self) -> Operation | None:
        with self._changed:
            if self.sick is not None:
                return None
            ready = []
            for stream in self._streams.values():
                while stream.queue and _waits(stream.queue[0]) is False:
                    stream.queue.popleft()
                if stream.queue and not stream.queue[0].waits_for:
                    ready.append(stream)
            if not ready:
                return None
            stream = ready[0] if self._order is None else self._order.choice(ready)
            self._streams[stream.handle] = self._streams.pop(stream.handle)  # the others come first next time
            return stream.queue.popleft()

    def _do(self, operation: Operation) -> None:
        self.now_ns += operation.cost_ns
        operation.do()
        self.done.append(operation.name)


def _waits(operation: Operation) -> bool | None:
    """Whether it still waits for its event; None if it waits for none."""
    return None if operation.waits_for is None else operation.waits_for.pending
