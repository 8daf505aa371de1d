"""A GPU through PyTorch: its streams, events, pinned memory, allocator and CUDA graphs.

Rules:
 1. Memory of the device belongs, for torch's allocator, to the stream that was current when it was allocated, and is
    given to that stream's next allocation as soon as nothing refers to it. Other streams use it too, so the code that
    enqueues holds it until these are done with it (`GpuPipeline` does); then there is no need for ``record_stream``.
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

from ..errors import InternalError, TriremeError, UnavailableError
from ..memory.cuda import CudaDriver, CudaError
from ..plugins import import_package
from .cuda_device import CudaDevice, CudaGraph, CudaStream, Devices, HostSide, check_number
from .device import DeviceStream, OutOfDeviceMemoryError, SickDeviceError
from .host_callback import CallRefusedError
from .pinned_pool import AllocatePinned

T = TypeVar("T")


class TorchStream(CudaStream):
    """A ``torch.cuda.Stream``."""

    _device: TorchDevice
    graph_pool: Any = None

    def active(self) -> AbstractContextManager[Any]:
        return self._device.torch.cuda.stream(self.raw)

    def upload(self, host: np.ndarray) -> Any:
        with self._device.errors(), self.active():
            return self._device.torch.from_numpy(host).to(self._device.place, non_blocking=True)

    def download(self, array: Any) -> np.ndarray:
        """Rule 6."""
        torch, dtype = self._device.torch, array.dtype
        unknown = dtype is torch.bfloat16
        host = self._device.pinned(array.shape, np.dtype("uint16" if unknown else str(dtype).removeprefix("torch.")))
        with self._device.errors(), self.active():
            tensor = torch.from_numpy(host.view(np.int16)).view(dtype) if unknown else torch.from_numpy(host)
            tensor.copy_(array, non_blocking=True)
        return host

    def copy(self, source: Any, target: Any) -> None:
        with self._device.errors(), self.active():
            target.copy_(source, non_blocking=True)


class TorchDevice(CudaDevice[TorchStream]):
    """A `Device`.

    Args:
        memory_limit_bytes: most of the GPU's memory that torch may have in this process for batches; 0 for no limit.
            What was allocated by `load` is not counted.

    Raises:
        SickDeviceError: it cannot be used.
    """

    def __init__(self, torch: Any, index: int, host: HostSide, memory_limit_bytes: int = 0) -> None:
        super().__init__(index, host, partial(torch.cuda.Event, enable_timing=True))
        self.torch = torch
        self.place = torch.device("cuda", index)
        self._failed_graphs: list[Any] = []
        self._limit_bytes = memory_limit_bytes
        self._loaded_bytes = 0
        self._dropped: list[int] = []  # bytes of what was loaded, and is not taken off yet
        self._loading = threading.Lock()
        try:  # the first calls, for which CUDA starts and there is no stream to ask yet
            self._driver = CudaDriver(host.driver)
            self._total_bytes: int = torch.cuda.get_device_properties(index).total_memory
            self._probe = self.new_stream(0)
        except (RuntimeError, AssertionError, CudaError) as error:
            raise SickDeviceError(f"GPU {index} cannot be used: {_first_line(error)}") from error
        self._set_limit(memory_limit_bytes)

    def active(self) -> AbstractContextManager[Any]:
        return self.torch.cuda.device(self.index)

    def refused(self, error: CallRefusedError) -> TriremeError:
        self.ask(error)
        return error

    def new_stream(self, priority: int) -> Any:
        """Rule 7."""
        handle = self._driver.create_stream(self.index, priority)
        return self.torch.cuda.ExternalStream(handle, device=self.index)

    def wrap(self, raw: Any) -> TorchStream:
        return TorchStream(self, raw, raw.cuda_stream)

    def is_reached(self, event: Any) -> bool:
        try:
            return event.query()
        except RuntimeError as error:
            self.ask(error)
            return False  # the device is well: the next answer counts

    def elapsed_ms(self, event: Any, later: Any) -> float:
        return event.elapsed_time(later)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        with self.errors():
            return self.torch.empty(tuple(shape), dtype=getattr(self.torch, dtype.name), device=self.place)

    def address(self, array: Any) -> int:
        return array.data_ptr()

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

    def loaded(self, stream: DeviceStream) -> None:
        """Let a stream wait for what loading left on torch's default one, which nothing else waits for."""
        assert isinstance(stream, TorchStream)
        with self.errors():
            event = self.recorded(self.torch.cuda.default_stream(self.index))
            stream.raw.wait_event(event)
        self.idle_events.append(event)

    def give_back(self, *, wait: bool = True) -> None:
        """Give memory that torch keeps unused back to the driver, of all GPUs: torch knows no other way.

        Args:
            wait: for a capture that is underway; otherwise nothing happens then.

        Raises:
            SickDeviceError: rule 3.
            RuntimeError: anything else, as torch raised it.
        """
        with self.captures.none(wait=wait) as free:
            if free:
                with self.errors():
                    self.torch.cuda.empty_cache()

    def capture(self, stream: DeviceStream, work: Callable[[], None]) -> CudaGraph:
        assert isinstance(stream, TorchStream)
        with self.captures.one():
            pool = stream.graph_pool = stream.graph_pool or self.torch.cuda.graph_pool_handle()
            graph = self.torch.cuda.CUDAGraph()
            with ExitStack() as failed:
                failed.callback(self._end_failed_capture, stream, graph)
                self._capture(stream, graph, pool, work)
                failed.pop_all()
        return CudaGraph(self, lambda _stream: graph.replay())

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
        """See `CudaDevice.errors` and rule 3. What is not about the device goes on as torch raised it."""
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
        """Raise `SickDeviceError` if the device has failed for good (rule 3)."""
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


class TorchDevices(Devices[TorchDevice]):
    """The GPUs by torch."""

    make = TorchDevice

    def import_framework(self) -> Any:
        return import_torch()

    def check(self, framework: Any, index: int) -> None:
        if not framework.cuda.is_available():
            raise UnavailableError(
                f"torch {framework.__version__} finds none: is it built for CUDA, and NVIDIA's driver installed?"
            )
        check_number(index, framework.cuda.device_count(), "torch")

    def pinned_blocks(self, framework: Any) -> AllocatePinned:
        """torch's own pool beneath ours rounds up to powers of two, and keeps for itself what is given back."""
        return lambda nbytes: _PinnedBlock(framework.empty(nbytes, dtype=framework.uint8, pin_memory=True))


def import_torch() -> Any:
    """The package; see `import_package`."""
    return import_package("torch", "the backend 'pytorch' needs", "torch")


def _first_line(error: Exception) -> str:
    """CUDA's errors go on with advice on how to debug them."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
