"""The simulated GPU as a `Device`: what `Pipeline` and the stream actor work on in virtual time, unchanged.

How long things take is measured elsewhere, on a real one: copies by their bytes, computations by the batch size. What
arrays hold is not simulated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from ..engine.gpu.device import Event, SickDeviceError, Stream
from .device import SimulatedGpu
from .gpu import Engine, Operation


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What was measured of a device.

    Attributes:
        copy_in_bytes_per_s, copy_out_bytes_per_s: bandwidth of pinned copies, each way.
        units: computations that it can do at once, if each takes one unit.
    """

    copy_in_bytes_per_s: float
    copy_out_bytes_per_s: float
    units: int = 1


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


@dataclass(frozen=True, slots=True)
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
        self._device = stream.device
        stream.device.gpu.call(self.mark, self._happen)

    def _happen(self) -> None:
        self.at_ns = self._device.gpu.now_ns()

    def reached(self) -> bool:
        self._device.check()
        return self.at_ns >= 0

    def elapsed_ns(self, later: Event) -> int:
        self._device.check()
        assert isinstance(later, SimulatedEvent)
        assert self.at_ns >= 0, "the time between two events is known when both were reached"
        assert later.at_ns >= 0, "the time between two events is known when both were reached"
        return later.at_ns - self.at_ns


class SimulatedStream:
    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.handle = device.gpu.add_stream()

    def record(self) -> SimulatedEvent:
        self.device.check()
        return SimulatedEvent(self)

    def wait(self, event: Event) -> None:
        self.device.check()
        assert isinstance(event, SimulatedEvent)
        self.device.gpu.wait(self.handle, event.mark)

    def upload(self, host: np.ndarray) -> SimulatedArray:
        self._copy("in", Engine.COPY_IN, host.nbytes, self.device.profile.copy_in_bytes_per_s)
        return SimulatedArray(host.shape, host.dtype)

    def download(self, array: SimulatedArray) -> np.ndarray:
        self._copy("out", Engine.COPY_OUT, array.nbytes, self.device.profile.copy_out_bytes_per_s)
        return self.device.pinned(array.shape, array.dtype)

    def copy(self, source: SimulatedArray, target: SimulatedArray) -> None:
        """Within the device's memory copies take no time to speak of."""
        assert source == target, "a copy is of one shape and dtype"
        self.device.check()

    def kernel(self, name: str, duration_s: float, units: int) -> None:
        """Enqueue a computation, or capture it."""
        self.device.put(self.handle, Operation(name, round(duration_s * 1e9), units=units, batch=self.device.batch))

    def call(self, function: Callable[[], None]) -> None:
        device = self.device
        device.check()
        device.gpu.call(device.gpu.mark(self.handle), lambda: None if device.sickness else function())

    def _copy(self, name: str, engine: Engine, nbytes: int, bytes_per_s: float) -> None:
        self.device.put(self.handle, Operation(name, round(nbytes / bytes_per_s * 1e9), engine, 1, self.device.batch))


class SimulatedGraph:
    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.operations: list[Operation] = []

    def launch(self, stream: Stream) -> None:
        for operation in self.operations:
            self._device.put(stream.handle, operation)


class SimulatedDevice:
    """See `engine.gpu.device.Device`.

    Attributes:
        batch: number of the batch that is being launched, for the history.
        sickness: what it says when it is used; empty while it is well. A sick device calls nobody.
    """

    index = 0

    def __init__(self, gpu: SimulatedGpu, profile: DeviceProfile) -> None:
        self.gpu = gpu
        self.profile = profile
        self.batch = 0
        self.sickness = ""
        self._graph: SimulatedGraph | None = None

    def check(self) -> None:
        """It is being used.

        Raises:
            SickDeviceError: it is sick.
        """
        if self.sickness:
            raise SickDeviceError(self.sickness)

    def put(self, stream: int, operation: Operation) -> None:
        self.check()
        if self._graph is not None:
            self._graph.operations.append(operation)
        else:
            self.gpu.enqueue(stream, operation)

    def stream(self, priority: int = 0) -> SimulatedStream:
        self.check()
        return SimulatedStream(self)

    def pinned(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        self.check()
        return np.empty(tuple(shape), dtype)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> SimulatedArray:
        self.check()
        return SimulatedArray(tuple(shape), np.dtype(dtype))

    def address(self, array: SimulatedArray) -> int:
        return 0

    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, stream: Stream, work: Callable[[], None]) -> SimulatedGraph:
        self.check()
        graph = self._graph = SimulatedGraph(self)
        try:
            work()
        finally:
            self._graph = None
        return graph

    def __repr__(self) -> str:
        return f"<SimulatedDevice on {self.gpu!r}{', sick' if self.sickness else ''}>"
