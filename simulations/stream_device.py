"""The simulated GPU as a `Device`: what `GpuPipeline` and the stream actor work on in virtual time, unchanged.

How long things take is measured elsewhere, on a real one: copies by their bytes, computations by the batch size. What
arrays hold is not simulated, but where they are is: memory is counted, and code that gives some back that the device is
still at is told of.

Rules:
 1. A device that falls ill stays so for all who use it then: their streams are void, and make no callbacks any more.
    When it is well again it serves those who come to it afresh.
 2. What a stream is to work with must be there until it has done so, unless it is void.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from ..engine.gpu.device import DeviceEvent, DeviceStream, OutOfDeviceMemoryError, SickDeviceError
from ..engine.gpu.pinned_pool import PinnedPool, is_pinned
from ..engine.memory.tensors import DevicePieces, PlacedOutput
from .device import SimulatedGpu
from .gpu import DeviceEngine, DeviceOperation


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What was measured of a device.

    Attributes:
        copy_in_bytes_per_s, copy_out_bytes_per_s: bandwidth of pinned copies, each way.
        units: computations that it can do at once, if each takes one unit.
        memory_bytes: for arrays.
    """

    copy_in_bytes_per_s: float
    copy_out_bytes_per_s: float
    units: int = 1
    memory_bytes: int = 1 << 40


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """What was measured of a model.

    Attributes:
        latency_s: of its computation by batch size, without copies; at least one. Between two sizes it is interpolated,
            beyond the last it grows as between the last two, and below the first it is the first one's.
        units: that the computation takes of the device.
    """

    latency_s: Mapping[int, float]
    units: int = 1

    def at(self, rows: int) -> float:
        """Seconds for a batch of so many rows."""
        sizes = sorted(self.latency_s)
        if rows <= sizes[0] or len(sizes) == 1:
            return self.latency_s[sizes[0]]
        upper = min(bisect_left(sizes, rows), len(sizes) - 1)
        low, high = sizes[upper - 1], sizes[upper]
        slope = (self.latency_s[high] - self.latency_s[low]) / (high - low)
        return self.latency_s[low] + slope * (rows - low)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SimulatedArray:
    """An array on a simulated device, without what it holds."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class SimulatedEvent:
    def __init__(self, stream: SimulatedStream) -> None:
        self.mark = stream.device.gpu.mark(stream.handle)
        self.at_ns = -1
        self._stream = stream
        stream.device.gpu.call(self.mark, self._happen)

    def _happen(self) -> None:
        self.at_ns = self._stream.device.gpu.now_ns()

    def reached(self) -> bool:
        self._stream.check()
        return self.at_ns >= 0

    def elapsed_ns(self, later: DeviceEvent) -> int:
        self._stream.check()
        assert isinstance(later, SimulatedEvent)
        assert self.at_ns >= 0, "the time between two events is known when both were reached"
        assert later.at_ns >= 0, "the time between two events is known when both were reached"
        return later.at_ns - self.at_ns


class SimulatedStream:
    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.handle = device.gpu.add_stream()
        self._illnesses = device.illnesses

    @property
    def void(self) -> bool:
        """Rule 1."""
        return self._illnesses != self.device.illnesses

    def check(self) -> None:
        """It is being used.

        Raises:
            SickDeviceError: it is void.
        """
        if self.void:
            raise SickDeviceError(self.device.last_sickness)

    def record(self) -> SimulatedEvent:
        self.check()
        return SimulatedEvent(self)

    def wait(self, event: DeviceEvent) -> None:
        self.check()
        assert isinstance(event, SimulatedEvent)
        self.device.gpu.wait(self.handle, event.mark)

    def upload(self, host: np.ndarray) -> SimulatedArray:
        self.check()
        array = self.device.empty(host.shape, host.dtype)
        self._copy("in", DeviceEngine.COPY_IN, host.nbytes, self.device.profile.copy_in_bytes_per_s, host, array)
        return array

    def assemble(self, pieces: DevicePieces) -> SimulatedArray:
        """Within the device's memory copies take no time to speak of."""
        self.check()
        return self.device.empty(pieces.shape, pieces.dtype)

    def download(self, array: SimulatedArray) -> np.ndarray:
        self.check()
        host = self.device.pinned(array.shape, array.dtype)
        self._copy("out", DeviceEngine.COPY_OUT, array.nbytes, self.device.profile.copy_out_bytes_per_s, host, array)
        return host

    def place(self, array: SimulatedArray, output: PlacedOutput) -> None:
        """As `copy`."""
        self.check()

    def copy(self, source: SimulatedArray, target: SimulatedArray) -> None:
        """Within the device's memory copies take no time to speak of."""
        assert source == target, "a copy is of one shape and dtype"
        self.check()

    def kernel(self, name: str, duration_s: float, units: int, *arrays: SimulatedArray) -> None:
        """Enqueue a computation with these arrays, or capture it."""
        self._put(DeviceOperation(name, round(duration_s * 1e9), units=units, batch=self.device.batch), arrays)

    def call(self, function: Callable[[], None]) -> None:
        self.check()
        gpu = self.device.gpu
        gpu.call(gpu.mark(self.handle), lambda: None if self.void else function())

    def drain(self) -> None:
        """Only what a driver refuses is waited for, and this one refuses nothing."""
        self.check()
        self.device.on_misuse("a simulated stream was waited for, which would take no time")

    def _copy(
        self, name: str, engine: DeviceEngine, nbytes: int, bytes_per_s: float, host: np.ndarray, array: SimulatedArray
    ) -> None:
        name = name if is_pinned(host) or not nbytes else f"{name}, not pinned"
        operation = DeviceOperation(name, round(nbytes / bytes_per_s * 1e9), engine, 1, self.device.batch)
        self._put(operation, (host, array))

    def _put(self, operation: DeviceOperation, arrays: Sequence[np.ndarray | SimulatedArray]) -> None:
        """Rule 2. What is captured has memory of its own."""
        self.check()
        if not self.device.put(self.handle, operation):
            return
        gpu, needed = self.device.gpu, [weakref.ref(array) for array in arrays]

        def look() -> None:
            if not self.void and any(each() is None for each in needed):
                self.device.on_misuse(
                    f"memory went back while {gpu.name} was at it: '{operation.name}' of batch {operation.batch}"
                )

        gpu.call(gpu.mark(self.handle), look)


class SimulatedGraph:
    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.operations: list[DeviceOperation] = []

    def launch(self, stream: DeviceStream) -> None:
        assert isinstance(stream, SimulatedStream)
        stream.check()
        for operation in self.operations:
            self._device.put(stream.handle, operation)


class SimulatedDevice:
    """See `engine.gpu.device.Device`.

    Attributes:
        batch: number of the batch that is being launched, for the history.
        illnesses: how often it has fallen ill.
        last_sickness: what it said then.
        used_bytes: of its memory.
        on_misuse: told, in words, about memory that went back too early.
    """

    def __init__(
        self, gpu: SimulatedGpu, profile: DeviceProfile, index: int = 0, pinned_pool: PinnedPool | None = None
    ) -> None:
        self.index = index
        self.gpu = gpu
        self.profile = profile
        self.batch = 0
        self.illnesses = 0
        self.last_sickness = ""
        self.used_bytes = 0
        self.on_misuse: Callable[[str], None] = _misused
        self._sickness = ""
        self._pinned_pool = pinned_pool or PinnedPool()
        self._graph: SimulatedGraph | None = None

    @property
    def sickness(self) -> str:
        """Why nothing can be begun on it; empty while it is well. See rule 1."""
        return self._sickness

    @sickness.setter
    def sickness(self, text: str) -> None:
        if text and not self._sickness:
            self.illnesses += 1
            self.last_sickness = text
        self._sickness = text

    def check(self) -> None:
        """It is being used.

        Raises:
            SickDeviceError: it is sick.
        """
        if self._sickness:
            raise SickDeviceError(self._sickness)

    def put(self, stream: int, operation: DeviceOperation) -> bool:
        """Enqueue an operation, or capture it; whether it was enqueued."""
        if self._graph is not None:
            self._graph.operations.append(operation)
            return False
        self.gpu.enqueue(stream, operation)
        return True

    def stream(self, priority: int = 0) -> SimulatedStream:
        self.check()
        return SimulatedStream(self)

    def pinned(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        self.check()
        return self._pinned_pool.take(HostBlock, tuple(shape), np.dtype(dtype))

    def relieved(self, array: np.ndarray) -> np.ndarray:
        return self._pinned_pool.relieved(array)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> SimulatedArray:
        self.check()
        array = SimulatedArray(tuple(shape), np.dtype(dtype))
        if self.used_bytes + array.nbytes > self.profile.memory_bytes:
            raise OutOfDeviceMemoryError(
                f"{self.gpu.name} has no room for {array.nbytes} bytes: {self.used_bytes} of its "
                f"{self.profile.memory_bytes} bytes are in use"
            )
        self.used_bytes += array.nbytes
        weakref.finalize(array, self._take_back, array.nbytes).atexit = False
        return array

    def _take_back(self, nbytes: int) -> None:
        self.used_bytes -= nbytes

    def address(self, array: SimulatedArray) -> int:
        return 0

    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, stream: DeviceStream, work: Callable[[], None]) -> SimulatedGraph:
        self.check()
        graph = self._graph = SimulatedGraph(self)
        try:
            work()
        finally:
            self._graph = None
        return graph

    def __repr__(self) -> str:
        return f"<SimulatedDevice on {self.gpu!r}{', sick' if self.sickness else ''}>"


class HostBlock:
    """Stands for pinned memory from a driver."""

    def __init__(self, nbytes: int) -> None:
        self._memory = np.empty(nbytes, np.uint8)
        self.ptr = self._memory.ctypes.data


def _misused(text: str) -> None:
    raise AssertionError(text)
