"""A GPU through PyTorch: its streams, events, pinned memory, allocator and CUDA graphs.

Rules:
 1. Memory of the device belongs, for torch's allocator, to the stream that was current when it was allocated, and is
    given to that stream's next allocation as soon as nothing refers to it. Other streams use it too, so the code that
    enqueues holds it until these are done with it (`Pipeline` does); then there is no need for ``record_stream``.
 2. Pinned memory is torch's, handed out by a `PinnedPool`: an array and all its views hold it.
 3. An error of CUDA's that stays (an illegal address, a failed assertion) is told from one that was about a single call
    by asking a stream how far it is, twice, because the first answer may still be about that call: if both fail, the
    device is sick. So is then everything in this process that uses it; only a restart of the server helps. A thread
    that captures does not ask (`Captures`, rule 3).
 4. Graphs of one stream share a pool of memory, and are launched on that stream only, one after the other.
 5. After a failed capture torch's allocator may go on recording into the pool of the graph: then every allocation looks
    for a capture, and giving memory back fails. So recording is ended here, unless torch has done so, and the next
    capture gets another pool. Where memory still cannot be given back, there are no more captures.
 6. Arrays that numpy has no type for (bfloat16) come down as unsigned integers of the same size.
 7. Streams are made by the driver, not by torch, which has 32 of each priority and gives the same ones out again: two
    instances would share one, and a capture on it would take in the work of both.

Written after PyTorch's documentation and tested against a stand-in for ``torch.cuda``; no GPU has seen it yet.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..errors import InternalError
from ..memory.cuda import CudaError
from ..memory.tensors import DevicePieces, PlacedOutput
from .device import Event, Graph, OutOfDeviceMemoryError, SickDeviceError, Stream
from .host_callback import CallRefusedError, HostCallbacks
from .pinned_pool import Allocate, PinnedPool
from .shared import Captures, EventStock, StreamStock

T = TypeVar("T")


class TorchEvent:
    """An `Event`: a ``torch.cuda.Event`` that was recorded."""

    __slots__ = ("_device", "_event")

    def __init__(self, device: TorchDevice, event: Any) -> None:
        self._device = device
        self._event = event

    def __del__(self) -> None:
        self._device.events.give_back(self._event)

    def reached(self) -> bool:
        try:
            return self._event.query()
        except RuntimeError as error:
            self._device.ask(error)
            return False  # the device is well: the next answer counts

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
            event = self._device.events.take()
            event.record(self.raw)
        return TorchEvent(self._device, event)

    def wait(self, event: Event) -> None:
        assert isinstance(event, TorchEvent)
        with self._device.errors():
            self.raw.wait_event(event._event)

    def upload(self, host: np.ndarray) -> Any:
        with self._device.errors(), self.active():
            return self._torch.from_numpy(host).to(self._device.place, non_blocking=True)

    def assemble(self, pieces: DevicePieces) -> Any:
        with self._device.errors(), self.active():
            array = self._device.empty(pieces.shape, pieces.dtype)
        at = self._device.address(array)
        for piece in pieces.pieces:
            piece.copy_to(self.handle, at)
            at += piece.byte_size
        return array

    def download(self, array: Any) -> np.ndarray:
        host = self._device.pinned(array.shape, _numpy_dtype(array.dtype))
        with self._device.errors(), self.active():
            self._as_tensor(host, array.dtype).copy_(array, non_blocking=True)
        return host

    def place(self, array: Any, output: PlacedOutput) -> None:
        output.copy_from(self.handle, self._device.address(array))

    def copy(self, source: Any, target: Any) -> None:
        with self._device.errors(), self.active():
            target.copy_(source, non_blocking=True)

    def call(self, function: Callable[[], None]) -> None:
        try:
            with self._device.active():
                self._device.callbacks.call(self.handle, function)
        except CallRefusedError as error:
            self._device.ask(error)
            raise

    def drain(self) -> None:
        with self._device.errors():
            self.raw.synchronize()

    def _as_tensor(self, host: np.ndarray, dtype: Any) -> Any:
        """A view on an array, by rule 6."""
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
        pool, allocate: where pinned memory comes from; may be those of several devices.
        memory_limit_bytes: most of the GPU's memory that torch may have in this process for batches; 0 for no limit.
            What was allocated by `load` is not counted.
        make_stream: gives the handle of a new stream of a priority (rule 7).

    Attributes:
        events: those that were recorded once, for `TorchStream.record`.
    """

    def __init__(
        self,
        torch: Any,
        index: int,
        callbacks: HostCallbacks,
        pool: PinnedPool,
        allocate: Allocate,
        make_stream: Callable[[int], int],
        captures: Captures,
        memory_limit_bytes: int = 0,
    ) -> None:
        self.torch = torch
        self.captures = captures
        self.index = index
        self.events: EventStock[Any] = EventStock(lambda: torch.cuda.Event(enable_timing=True))
        self._streams = StreamStock(make_stream)
        self._failed_graphs: list[Any] = []
        self.callbacks = callbacks
        self.place = torch.device("cuda", index)
        self._pinned = partial(pool.take, allocate)
        self.relieved = pool.relieved
        self._limit_bytes = memory_limit_bytes
        self._loaded_bytes = 0
        self._dropped: list[int] = []  # bytes of what was loaded, and is not taken off yet
        self._loading = threading.Lock()
        with self._starting():
            self._total_bytes: int = torch.cuda.get_device_properties(index).total_memory
            self._probe = self._external(make_stream(0))
        self._set_limit(memory_limit_bytes)

    def stream(self, priority: int = 0) -> TorchStream:
        with self.errors():
            handle = self._streams.take(priority)
            stream = TorchStream(self, self._external(handle))
        self._streams.until_gone(stream, priority, handle)
        return stream

    def _external(self, handle: int) -> Any:
        return self.torch.cuda.ExternalStream(handle, device=self.index)

    def pinned(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        try:
            with self.errors():
                return self._pinned(shape, np.dtype(dtype))
        except OutOfDeviceMemoryError:  # the driver gives no more, though the pool might
            return np.empty(tuple(shape), np.dtype(dtype))

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
        """On whatever thread drops it, the event loop's or one that loads: so it must not wait."""
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

    def loaded(self, stream: Stream) -> None:
        """Let a stream wait for what loading left on torch's default one, which nothing else waits for."""
        assert isinstance(stream, TorchStream)
        with self.errors():
            event = self.events.take()
            event.record(self.torch.cuda.default_stream(self.index))
            stream.raw.wait_event(event)
        self.events.give_back(event)

    def give_back(self, *, wait: bool = True) -> None:
        """Give memory that torch keeps unused back to the driver, of all GPUs: torch knows no other way.

        Args:
            wait: for a capture that is underway; otherwise nothing happens then.

        Raises:
            SickDeviceError: rule 3.
            RuntimeError: anything else, as torch raised it.
        """
        with self.captures.none() if wait else self.captures.none_now() as free:
            if free is not False:
                with self.errors():
                    self.torch.cuda.empty_cache()

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        assert isinstance(stream, TorchStream)
        with self.captures.one():
            pool = stream.graph_pool = stream.graph_pool or self.torch.cuda.graph_pool_handle()
            graph = self.torch.cuda.CUDAGraph()
            with ExitStack() as failed:
                failed.callback(self._end_failed_capture, stream, graph)
                self._capture(stream, graph, pool, work)
                failed.pop_all()
        return TorchGraph(self, graph)

    def _capture(self, stream: TorchStream, graph: Any, pool: Any, work: Callable[[], None]) -> None:
        try:
            with (
                _not_collecting(),
                self.errors(),
                stream.active(),  # which torch does not always put back when a capture fails
                self.captures.underway(),
                self.torch.cuda.graph(graph, pool=pool, stream=stream.raw, capture_error_mode="thread_local"),
            ):  # in any other mode, what other instances do meanwhile would spoil it
                work()
        except RuntimeError as error:
            first = error.__context__ if isinstance(error.__context__, Exception) else error  # or only of its end
            raise InternalError(f"unable to capture a CUDA graph: {_first_line(first)}") from error

    def _end_failed_capture(self, stream: TorchStream, graph: Any) -> None:
        """Rule 5."""
        torch, pool = self.torch, stream.graph_pool
        stream.graph_pool = None
        self._failed_graphs.append(graph)  # torch's allocator of pinned memory may refer to it still
        try:
            with stream.active():
                if torch.cuda.is_current_stream_capturing():
                    with suppress(RuntimeError):
                        graph.capture_end()
            graph.reset()  # of a torch that ends recording by itself
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.index, pool)
                torch._C._cuda_releasePool(self.index, pool)  # which is as it was when torch has ended recording itself
            torch.cuda.empty_cache()
        except (RuntimeError, AttributeError) as error:
            self.captures.stop(f"one has failed, and left GPU {self.index} recording: {_first_line(error)}")

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
            self.ask(error)
            lines = [line for line in str(error).splitlines() if "out of memory" in line]
            if lines:  # in TorchScript, or of memory that torch's allocator has not given out
                raise OutOfDeviceMemoryError(f"GPU {self.index}: {lines[-1].strip()}") from error
            raise

    def ask(self, error: Exception) -> None:
        """Whether the device has failed for good (rule 3); returns if it has not.

        Raises:
            SickDeviceError: it has.
        """
        if self.captures.here:
            return
        for _ in range(2):
            try:
                self._probe.query()
            except RuntimeError:
                continue
            return
        raise SickDeviceError(
            f"GPU {self.index} has failed, and nothing in this process can use it any more, so restart the server: "
            f"{_first_line(error)}"
        ) from error

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """The first calls, for which CUDA starts and there is no stream to ask yet."""
        try:
            yield
        except (RuntimeError, AssertionError, CudaError) as error:
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
    __slots__ = ("_tensor", "ptr")

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.ptr: int = tensor.data_ptr()


def pinned_blocks(torch: Any) -> Allocate:
    """What a `PinnedPool` gets its memory from. torch's own pool beneath it rounds up to powers of two, and keeps
    for itself what is given back."""
    return lambda nbytes: _PinnedBlock(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True))


def _numpy_dtype(dtype: Any) -> np.dtype:
    """Rule 6."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype("uint16" if name == "bfloat16" else name)


def _first_line(error: Exception) -> str:
    """CUDA's errors go on with advice on how to debug them."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
