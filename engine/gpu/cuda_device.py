"""What GPUs have in common, whatever the framework that they are used by: streams, events, the turn to capture a CUDA
graph, and how a device is found.

Rules of captures:
 1. torch allows one capture at a time in a process. So there is one lock, for all GPUs and all frameworks.
 2. While a stream captures, CUDA refuses to wait for its device, and the attempt breaks the capture, whatever thread
    makes it. Giving unused memory back to the driver waits as well, and torch does it for all GPUs at once. So a thread
    that does one of these holds the lock too.
 3. The thread that captures must not ask a stream or an event how far it is, which breaks the capture. What a failure
    means is asked when the capture is over.
 4. A capture that failed may leave a framework in a state that nothing mends. Then no more graphs are captured in this
    process (`stop`); models are served without them.

Rules of streams and events, which are kept for the next one: to make and to destroy them takes long, and may wait.
 5. A stream is made when all of its priority are in use, and never destroyed: a library that ends late may still have
    its handle. So two that are in use are never the same one.
 6. A stream or an event goes back when its last reference is gone, on whatever thread that happens; an event may be
    recorded again at once, because a stream that waits for it waits for what was recorded before.
 7. Events are held here all the time. If only their holders had them, they would be garbage with a holder that is
    part of a circle, and destroyed by the collector, though its finaliser still gives them back.
"""

from __future__ import annotations

import logging
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ..errors import InternalError, TriremeError, UnavailableError
from ..memory.tensors import DevicePieces, PlacedOutput
from .device import Device, DeviceArray, DeviceStream, OutOfDeviceMemoryError
from .host_callback import CallRefusedError, HostCallbacks, load_driver
from .pinned_pool import AllocatePinned, PinnedPool

_log = logging.getLogger("trireme.gpu")


class Captures:
    """Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._stopped = ""

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a capture, and what is to be put right when it has failed. Waits for its turn.

        Raises:
            InternalError: there are no captures any more (rule 4).
        """
        with self._lock:
            if self._stopped:
                raise InternalError(f"no CUDA graph is captured in this process any more: {self._stopped}")
            yield

    @contextmanager
    def underway(self) -> Iterator[None]:
        """Inside `one`: from here on rule 3 holds for the calling thread."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    @contextmanager
    def none(self, *, wait: bool) -> Iterator[bool]:
        """Around what waits for a device (rule 2). Waits until nothing is captured, or gives False at once if something
        is: nothing may wait for a device then."""
        free = self._lock.acquire(blocking=wait)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    @property
    def here(self) -> bool:
        """Whether the calling thread captures."""
        return self._thread == threading.get_ident()

    def stop(self, why: str) -> None:
        """Rule 4."""
        self._stopped = why
        _log.error("no CUDA graph is captured any more until the server is started again: %s", why)


@dataclass(slots=True, eq=False)
class CudaEvent:
    """See `device.Event`; `raw` is the framework's."""

    _device: CudaDevice
    raw: Any

    def __del__(self) -> None:
        self._device.idle_events.append(self.raw)

    def reached(self) -> bool:
        return self._device.is_reached(self.raw)

    def elapsed_ns(self, later: Any) -> int:
        with self._device.errors():
            return round(self._device.elapsed_ms(self.raw, later.raw) * 1e6)


class CudaStream(DeviceStream):
    """A `DeviceStream`; `raw` is the framework's."""

    def __init__(self, device: CudaDevice, raw: Any, handle: int) -> None:
        self.raw = raw
        self.handle = handle
        self._device = device

    @abstractmethod
    def active(self) -> AbstractContextManager[Any]:
        """Make it what the framework enqueues on, if it has such a thing, and its device the current one."""

    def record(self) -> CudaEvent:
        device = self._device
        with device.errors():
            return CudaEvent(device, device.recorded(self.raw))

    def wait(self, event: Any) -> None:
        with self._device.errors():
            self.raw.wait_event(event.raw)

    def assemble(self, pieces: DevicePieces) -> DeviceArray:
        with self._device.errors(), self.active():
            array = self._device.empty(pieces.shape, pieces.dtype)
        at = self._device.address(array)
        for piece in pieces.pieces:
            piece.copy_to(self.handle, at)
            at += piece.byte_size
        return array

    def place(self, array: DeviceArray, output: PlacedOutput) -> None:
        output.copy_from(self.handle, self._device.address(array))

    def call(self, function: Callable[[], None]) -> None:
        try:
            with self._device.active():
                self._device.callbacks.call(self.handle, function)
        except CallRefusedError as error:
            raise self._device.refused(error) from None

    def drain(self) -> None:
        with self._device.errors():
            self.raw.synchronize()

    def __repr__(self) -> str:
        return f"<stream {self.handle:#x} of {self._device!r}>"


@dataclass(frozen=True, slots=True)
class HostSide:
    """What the devices of a framework share.

    Attributes:
        driver: CUDA's driver library.
        pool, allocate: where pinned memory comes from; `allocate` is always the same object.
    """

    driver: Any
    callbacks: HostCallbacks
    pool: PinnedPool
    allocate: AllocatePinned
    captures: Captures


S = TypeVar("S", bound=CudaStream)


class CudaDevice(Device, Generic[S]):
    """A `Device`. Callable from any thread; each of its streams from one at a time.

    Args:
        new_event: gives an event of the framework's, which measures time.

    Attributes:
        idle_events: those that were recorded once (rule 6).
    """

    def __init__(self, index: int, host: HostSide, new_event: Callable[[], Any]) -> None:
        self.index = index
        self.callbacks = host.callbacks
        self.captures = host.captures
        self.relieved = host.pool.relieved
        self.idle_events: deque[Any] = deque()
        self._events: list[Any] = []  # rule 7
        self._idle_streams: dict[int, deque[Any]] = {}
        self._host = host
        self._new_event = new_event

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """What the framework raises becomes an error of ours, where it is about the device.

        Raises:
            OutOfDeviceMemoryError: there was not enough memory.
            SickDeviceError: the device has failed for good.
        """

    @abstractmethod
    def refused(self, error: CallRefusedError) -> TriremeError:
        """What it means that the driver takes no function."""

    @abstractmethod
    def new_stream(self, priority: int) -> Any:
        """A stream of the framework's."""

    @abstractmethod
    def wrap(self, raw: Any) -> S:
        """Such a stream as ours."""

    @abstractmethod
    def is_reached(self, event: Any) -> bool: ...

    @abstractmethod
    def elapsed_ms(self, event: Any, later: Any) -> float: ...

    def stream(self, priority: int = 0) -> S:
        idle = self._idle_streams.setdefault(priority, deque())
        with self.errors():
            try:
                raw = idle.pop()
            except IndexError:
                raw = self.new_stream(priority)
            stream = self.wrap(raw)
        weakref.finalize(stream, idle.append, raw).atexit = False
        return stream

    def recorded(self, stream: Any) -> Any:
        """An event of the framework's that is recorded on one of its streams."""
        try:
            event = self.idle_events.pop()
        except IndexError:
            event = self._new_event()
            self._events.append(event)
        event.record(stream)
        return event

    def pinned(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        try:
            with self.errors():
                return self._host.pool.take(self._host.allocate, shape, np.dtype(dtype))
        except OutOfDeviceMemoryError:  # the driver gives no more, though the pool might
            return np.empty(tuple(shape), np.dtype(dtype))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.index}>"


@dataclass(slots=True, eq=False)
class CudaGraph:
    """A `device.Graph`; `enqueue` puts it into a stream of the framework's."""

    device: CudaDevice
    enqueue: Callable[[Any], None]

    def launch(self, stream: Any) -> None:
        with self.device.errors(), stream.active():
            self.enqueue(stream.raw)


def check_number(index: int, count: int, finder: str) -> None:
    """Whether there is a GPU of that number; raises `UnavailableError` if not."""
    if index not in range(count):
        raise UnavailableError(f"there is no GPU {index}: {finder} knows {count}, numbered from 0")


D = TypeVar("D", bound=CudaDevice)


class Devices(Generic[D]):
    """The GPUs that a framework has: each made when it is first needed, and shared by all instances. Callable from any
    thread. Subclasses say how the framework is asked.

    Args:
        pinned: where all devices have their pinned host memory from; None for a pool of their own.
        device_bytes: most of each device's memory, by its number; for a device that is not there, as much as it has.
        load: gives the framework's package; None to import it.
        load_driver: gives CUDA's driver library.
        captures: those of the process; None where nothing else captures.
    """

    make: ClassVar[Callable[[Any, int, HostSide, int], Any]]
    """Makes a device; of the package, its number, what it shares with others, and `device_bytes`, 0 for no limit."""

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
        self._load = load or self.import_framework
        self._load_driver = load_driver
        self._captures = captures or Captures()
        self._lock = threading.Lock()
        self._host: HostSide | None = None
        self._devices: dict[int, D] = {}

    @abstractmethod
    def import_framework(self) -> Any:
        """The package."""

    @abstractmethod
    def check(self, framework: Any, index: int) -> None:
        """See whether it finds the GPU; raises `UnavailableError` if not."""

    @abstractmethod
    def pinned_blocks(self, framework: Any) -> AllocatePinned:
        """What gets pinned memory, for all devices."""

    def get(self, index: int) -> D:
        """A GPU, always the same object.

        Raises:
            UnavailableError: the framework is not installed, or finds no such GPU.
            TriremeError: the GPU cannot be used.
        """
        with self._lock:
            if index not in self._devices:
                self._devices[index] = self._make(index)
            return self._devices[index]

    def _make(self, index: int) -> D:
        framework = self._load()
        self.check(framework, index)
        if self._host is None:
            driver = self._load_driver()
            blocks = self.pinned_blocks(framework)
            self._host = HostSide(driver, HostCallbacks(driver), self._pool, blocks, self._captures)
        return type(self).make(framework, index, self._host, self._device_bytes.get(index, 0))

    def close(self) -> None:
        """They are not used any more, but for what is still in flight."""
        with self._lock:
            if self._host is not None:
                self._host.callbacks.close()
