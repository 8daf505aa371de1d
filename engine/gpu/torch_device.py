"""A GPU through PyTorch: its streams, events, pinned memory, allocator and CUDA graphs.

Rules:
 1. Memory of the device belongs, for torch's allocator, to the stream that was current when it was allocated, and is
    given to that stream's next allocation as soon as nothing refers to it. Other streams use it too, so whoever
    enqueues holds it until these are done with it (`Pipeline` does); then there is no need for ``record_stream``.
 2. Pinned memory is torch's, handed out by a `PinnedPool`: an array and all its views hold it.
 3. An error of CUDA's that stays (an illegal address, a failed assertion) is told from one that was about a single call
    by asking a stream how far it is: if that fails too, the device is sick. So is then everything in this process that
    uses it; only a restart of the server helps.
 4. Graphs of one stream share a pool of memory, and are launched on that stream only, one after the other. There is one
    capture at a time in the process, as torch demands.
 5. Arrays that numpy has no type for (bfloat16) come down as unsigned integers of the same size.

torch has 32 streams of each priority, which it gives out in turn: beyond ten instances on a GPU some share theirs,
which costs overlap and nothing else.

Written after PyTorch's documentation and tested against a stand-in for ``torch.cuda``; no GPU has seen it yet.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import numpy as np

from ..errors import InternalError
from .device import Event, Graph, OutOfDeviceMemoryError, SickDeviceError, Stream
from .host_callback import HostCallbacks
from .pinned_pool import Allocate, Pinned

T = TypeVar("T")


class TorchEvent:
    """An `Event`: a ``torch.cuda.Event`` that was recorded."""

    __slots__ = ("_device", "_event")

    def __init__(self, device: TorchDevice, event: Any) -> None:
        self._device = device
        self._event = event

    def reached(self) -> bool:
        try:
            return self._event.query()
        except RuntimeError as error:
            raise self._device.sick(error) from error

    def elapsed_ns(self, later: Event) -> int:
        assert isinstance(later, TorchEvent)
        with self._device.errors():
            return round(self._event.elapsed_time(later._event) * 1e6)


class TorchStream:
    """A `Stream`: a ``torch.cuda.Stream``, `raw`."""

    def __init__(self, device: TorchDevice, raw: Any) -> None:
        self.raw = raw
        self.handle: int = raw.cuda_stream
        self._device = device
        self._torch = device.torch
        self.graph_pool: Any = None

    def active(self) -> AbstractContextManager[Any]:
        """Make it what torch enqueues on, and its device the current one."""
        return self._torch.cuda.stream(self.raw)

    def record(self) -> TorchEvent:
        with self._device.errors():
            event = self._torch.cuda.Event(enable_timing=True)
            event.record(self.raw)
        return TorchEvent(self._device, event)

    def wait(self, event: Event) -> None:
        assert isinstance(event, TorchEvent)
        with self._device.errors():
            self.raw.wait_event(event._event)

    def upload(self, host: np.ndarray) -> Any:
        with self._device.errors(), self.active():
            return self._torch.from_numpy(host).to(self._device.place, non_blocking=True)

    def download(self, array: Any) -> np.ndarray:
        host = self._device.pinned(array.shape, _numpy_dtype(array.dtype))
        with self._device.errors(), self.active():
            self._as_tensor(host, array.dtype).copy_(array, non_blocking=True)
        return host

    def copy(self, source: Any, target: Any) -> None:
        with self._device.errors(), self.active():
            target.copy_(source, non_blocking=True)

    def call(self, function: Callable[[], None]) -> None:
        with self._device.active():
            self._device.callbacks.call(self.handle, function)

    def _as_tensor(self, host: np.ndarray, dtype: Any) -> Any:
        """A view on an array, by rule 5."""
        if dtype is self._torch.bfloat16:
            return self._torch.from_numpy(host.view(np.int16)).view(dtype)
        return self._torch.from_numpy(host)


class TorchGraph:
    """A `Graph`: a ``torch.cuda.CUDAGraph``."""

    def __init__(self, device: TorchDevice, graph: Any) -> None:
        self._device = device
        self._graph = graph

    def launch(self, stream: Stream) -> None:
        assert isinstance(stream, TorchStream)
        with self._device.errors(), stream.active():
            self._graph.replay()


class TorchDevice:
    """A `Device`.

    Args:
        torch: the package.
        callbacks: for `Stream.call`.
        pinned: where pinned memory comes from; may be that of several devices.
        memory_limit_bytes: most of the GPU's memory that torch may have in this process for batches; 0 for no limit.
            What was allocated by `load` is not counted.
        capturing: held while something is captured (rule 4).

    Attributes:
        place: the ``torch.device``.
    """

    def __init__(
        self,
        torch: Any,
        index: int,
        callbacks: HostCallbacks,
        pinned: Pinned,
        memory_limit_bytes: int = 0,
        capturing: threading.Lock | None = None,
    ) -> None:
        self.torch = torch
        self._capturing = capturing or threading.Lock()
        self.index = index
        self.callbacks = callbacks
        self.place = torch.device("cuda", index)
        self._pinned = pinned
        self._limit_bytes = memory_limit_bytes
        self._loaded_bytes = 0
        self._dropped: list[int] = []  # bytes of what was loaded, and is not taken off yet
        self._loading = threading.Lock()
        with self._starting():
            self._total_bytes: int = torch.cuda.get_device_properties(index).total_memory
            self._probe = torch.cuda.Stream(device=index)
        self._set_limit(memory_limit_bytes)

    def stream(self, priority: int = 0) -> TorchStream:
        with self.errors():
            return TorchStream(self, self.torch.cuda.Stream(device=self.index, priority=priority))

    def pinned(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        with self.errors():
            return self._pinned(shape, np.dtype(dtype))

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        with self.errors():
            return self.torch.empty(tuple(shape), dtype=getattr(self.torch, dtype.name), device=self.place)

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def active(self) -> AbstractContextManager[Any]:
        return self.torch.cuda.device(self.index)

    def load(self, make: Callable[[], T]) -> T:
        """Make something that has memory of the device for as long as it lives: weights, graphs. While that is made
        there is no limit, and afterwards it is as much higher."""
        if not self._limit_bytes:
            return make()
        try:
            with self._loading:
                return self._load(make)
        finally:
            self._take_off()

    def _load(self, make: Callable[[], T]) -> T:
        self._set_limit(self._total_bytes)
        before = self.torch.cuda.memory_allocated(self.index)
        try:
            made = make()
            nbytes = max(0, self.torch.cuda.memory_allocated(self.index) - before + sum(self._dropped))
            self._loaded_bytes += nbytes
            weakref.finalize(made, self._unloaded, nbytes).atexit = False
            return made
        finally:
            self._set_limit(self._limit_bytes + self._loaded_bytes)

    def _unloaded(self, nbytes: int) -> None:
        """On whatever thread drops it, the event loop's or one that loads: so nobody is waited for."""
        self._dropped.append(nbytes)
        self._take_off()

    def _take_off(self) -> None:
        """Lower the limit by what was dropped, unless something is being loaded: that ends with this."""
        while self._dropped and self._loading.acquire(blocking=False):
            try:
                self._loaded_bytes -= self._dropped.pop()
                self._set_limit(self._limit_bytes + self._loaded_bytes)
            finally:
                self._loading.release()

    def _set_limit(self, nbytes: int) -> None:
        if self._limit_bytes:
            fraction = min(1.0, nbytes / self._total_bytes)
            with self.errors():
                self.torch.cuda.set_per_process_memory_fraction(fraction, self.index)

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        with self.errors():
            self.torch.cuda.synchronize(self.index)

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        assert isinstance(stream, TorchStream)
        if stream.graph_pool is None:
            stream.graph_pool = self.torch.cuda.graph_pool_handle()
        graph = self.torch.cuda.CUDAGraph()
        try:
            with (
                self._capturing,
                _not_collecting(),
                self.errors(),
                stream.active(),  # which torch does not always put back when a capture fails
                self.torch.cuda.graph(
                    graph, pool=stream.graph_pool, stream=stream.raw, capture_error_mode="thread_local"
                ),  # in any other mode, what other instances do meanwhile would spoil it
            ):
                work()
        except RuntimeError as error:
            raise InternalError(f"unable to capture a CUDA graph: {_first_line(error)}") from error
        return TorchGraph(self, graph)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what torch raises as what it is for the device.

        Raises:
            OutOfDeviceMemoryError: there was not enough memory.
            SickDeviceError: rule 3.
            RuntimeError: anything else, as torch raised it.
        """
        try:
            yield
        except self.torch.cuda.OutOfMemoryError as error:
            raise OutOfDeviceMemoryError(f"GPU {self.index} has no memory left: {_first_line(error)}") from error
        except (RuntimeError, self.torch.jit.Error) as error:
            self._ask(error)
            lines = [line for line in str(error).splitlines() if "out of memory" in line]
            if lines:  # in TorchScript, or of memory that torch's allocator has not given out
                raise OutOfDeviceMemoryError(f"GPU {self.index}: {lines[-1].strip()}") from error
            raise

    def sick(self, error: Exception) -> SickDeviceError:
        """What to raise when the device has failed for good."""
        return SickDeviceError(
            f"GPU {self.index} has failed, and nothing in this process can use it any more, so restart the server: "
            f"{_first_line(error)}"
        )

    def _ask(self, error: Exception) -> None:
        """Rule 3."""
        try:
            self._probe.query()
        except RuntimeError:
            raise self.sick(error) from error

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """The first calls, for which CUDA starts and there is no stream to ask yet."""
        try:
            yield
        except (RuntimeError, AssertionError) as error:
            raise SickDeviceError(f"GPU {self.index} cannot be used: {_first_line(error)}") from error

    def __repr__(self) -> str:
        return f"<TorchDevice {self.index}>"


@contextmanager
def _not_collecting() -> Iterator[None]:
    """No garbage is collected meanwhile: what is destroyed in the middle of a capture can spoil it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _PinnedBlock:
    """A pinned tensor, by its address."""

    __slots__ = ("_tensor", "ptr")

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.ptr: int = tensor.data_ptr()


def pinned_blocks(torch: Any) -> Allocate:
    """What a `PinnedPool` gets its memory from. torch's own pool beneath it rounds up to powers of two, and keeps
    for itself what is given back."""
    return lambda nbytes: _PinnedBlock(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True))


def _numpy_dtype(dtype: Any) -> np.dtype:
    """Rule 5."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype("uint16" if name == "bfloat16" else name)


def _first_line(error: Exception) -> str:
    """CUDA's errors go on with advice on how to debug them."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
