"""A stand-in for a PyTorch that has GPUs: the part of ``torch`` and ``torch.cuda`` that the backend and
`trireme.engine.gpu.torch_device` use, on `fake_gpu.FakeGpus`, and no more.

Everything else is the real PyTorch, so real TorchScript and real Python modules run here, on `late_tensors`. Names and
arguments are those of PyTorch's documentation; an attribute that is not meant to be used is an AttributeError, and what
would be a race on a GPU a `Misuse`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import ILLEGAL_ADDRESS, SUCCESS, FakeCuda
from fake_gpu import POISON, FakeEvent, FakeGpus, FakeStream, Misuse, Operation
from late_tensors import Computer, LateTensor, Token

from trireme.engine.gpu.torch_device import TorchDevices

_BORROWED = {
    *("Tensor", "device", "dtype", "is_tensor", "inference_mode", "no_grad", "nn", "load", "compile"),
    *("set_num_threads", "set_num_interop_threads", "get_num_interop_threads", "backends", "_inductor"),
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16", "uint16"),
    *("utils", "__version__"),
}
"""What may be used of the real one, as it is."""


_POOLED_STREAMS = 32


class OutOfMemoryError(RuntimeError):
    """``torch.OutOfMemoryError``."""


class FakeTorch:
    """What ``import torch`` may give on a machine with GPUs.

    Attributes:
        gpus: the devices.
        driver: their ``libcuda``.
        emptied: how often unused memory was given back to the driver.
    """

    def __init__(self, gpus: FakeGpus | None = None) -> None:
        self.gpus = gpus or FakeGpus()
        self.emptied = 0
        self.driver = FakeCuda(
            devices=self.gpus.count, make_stream=lambda device, priority: self.cuda.new_stream(device, priority).handle
        )
        self.cuda = _Cuda(self)
        self.driver.copy_on = self.cuda.computer.copy_on
        self.driver.copy_off = self.cuda.computer.copy_off
        self._C = _Bindings(self.cuda)
        passes = SimpleNamespace(move_to_device_pass=lambda program, place: _MovedProgram(self, program, place))
        self.export = SimpleNamespace(load=torch.export.load, passes=passes)
        self.jit = SimpleNamespace(
            Error=torch.jit.Error, optimized_execution=vars(torch.jit)["optimized_execution"], load=self._load
        )

    def __getattr__(self, name: str) -> Any:
        if name not in _BORROWED:
            raise AttributeError(f"the stand-in for torch has no '{name}'")
        return getattr(torch, name)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the backend find it, and modules move to its GPUs."""
        real = torch.nn.Module.to

        def to(module: Any, place: Any) -> Any:
            return self.move(module, place.index) if place.type == "cuda" else real(module, place)

        monkeypatch.setattr(torch.nn.Module, "to", to)
        monkeypatch.setattr("trireme.engine.backends.pytorch.backend.import_torch", lambda: self)
        devices = partial(TorchDevices, load=lambda: self, load_driver=lambda: self.driver)
        monkeypatch.setattr("trireme.engine.backends.services.TorchDevices", devices)

    @contextmanager
    def autocast(self, device_type: str, dtype: torch.dtype) -> Iterator[None]:
        """What ``torch.autocast`` does where there are GPUs."""
        before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        torch.set_autocast_enabled(device_type, True)
        torch.set_autocast_dtype(device_type, dtype)
        try:
            yield
        finally:
            torch.clear_autocast_cache()
            torch.set_autocast_enabled(device_type, before[0])
            torch.set_autocast_dtype(device_type, before[1])

    def from_numpy(self, array: np.ndarray) -> torch.Tensor:
        host = torch.from_numpy(array).as_subclass(HostTensor)
        host.owner = self
        return host

    def empty(self, shape: Any, *, dtype: torch.dtype, pin_memory: bool = False, device: Any = None) -> torch.Tensor:
        if device is not None:
            filled = torch.empty(shape, dtype=dtype)
            filled.view(-1).view(torch.uint8).fill_(POISON)
            return self.cuda.computer.tensor(device.index, torch.empty(shape, dtype=dtype, device="meta"), filled)
        assert pin_memory, "the backend allocates no other memory of the host"
        made = torch.empty(shape, dtype=dtype)
        made.view(torch.uint8).fill_(POISON)
        self.gpus.pin(made.data_ptr(), made.nbytes)
        return made

    def move(self, module: Any, index: int) -> Any:
        """A module's parameters and buffers to a GPU."""
        for child in list(module.modules()):
            slots = [*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)]
            for name, value in slots:
                late = self.place(value.detach(), index)
                if isinstance(child, torch.jit.ScriptModule):
                    child._c.setattr(name, late)
                else:
                    (child._parameters if name in child._parameters else child._buffers)[name] = late
        return module

    def place(self, value: torch.Tensor, index: int) -> LateTensor:
        """A tensor on a GPU whose numbers are there."""
        return self.cuda.computer.tensor(index, value.to("meta"), value.clone())

    def _load(self, path: str, map_location: Any = None) -> Any:
        module = torch.jit.load(path, map_location="cpu")
        if map_location is None or map_location.type != "cuda":
            return module
        return self.move(module, map_location.index)


class _MovedProgram:
    """An ``ExportedProgram`` whose tensors are on a GPU. Tensors that it makes by itself are not, in this stand-in."""

    def __init__(self, owner: FakeTorch, program: Any, place: str) -> None:
        self.call_spec = program.call_spec
        self._owner = owner
        self._program = program
        self._place = torch.device(place)

    def module(self) -> Any:
        module = self._program.module()
        return module if self._place.type == "cpu" else self._owner.move(module, self._place.index)


class HostTensor(torch.Tensor):
    """A view on a numpy array, which can be copied to a GPU and back."""

    owner: FakeTorch

    def to(self, place: torch.device, non_blocking: bool = False) -> Any:  # type: ignore[override]
        owner = self.owner
        plain = self.as_subclass(torch.Tensor)
        if not non_blocking or not plain.nbytes:
            return owner.place(plain, place.index)
        stream = owner.cuda.current()
        if stream.device != place.index:
            raise Misuse(f"a copy to GPU {place.index} on a stream of GPU {stream.device}")
        read = owner.gpus.source(plain.data_ptr(), plain.nbytes)
        late = owner.cuda.computer.tensor(place.index, plain.to("meta"))
        memory, shape, dtype = late.memory, plain.shape, plain.dtype

        def copy() -> None:
            memory.numbers = torch.from_numpy(read().copy()).view(dtype).reshape(shape)

        owner.gpus.enqueue(stream.handle, Operation("copy in", copy))
        return late

    def view(self, dtype: torch.dtype) -> HostTensor:  # type: ignore[override]
        seen = self.as_subclass(torch.Tensor).view(dtype).as_subclass(HostTensor)
        seen.owner = self.owner
        return seen

    def copy_(self, source: LateTensor, non_blocking: bool = False) -> HostTensor:  # type: ignore[override]
        owner = self.owner
        stream = owner.cuda.current()
        plain = self.as_subclass(torch.Tensor)
        assert non_blocking
        assert source.dtype is plain.dtype
        assert source.shape == plain.shape
        if not plain.nbytes:
            return self
        memory = source.memory

        def read() -> np.ndarray:
            return memory.read(stream.handle, False).contiguous().view(-1).view(torch.uint8).numpy()

        owner.gpus.copied_out(stream.handle, plain.data_ptr(), plain.nbytes, read, 1000)
        return self


class _Cuda:
    """``torch.cuda``."""

    OutOfMemoryError = OutOfMemoryError

    def __init__(self, owner: FakeTorch) -> None:
        self._owner = owner
        self._gpus = owner.gpus
        self._thread = threading.local()
        self._limits: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._lock = threading.RLock()
        self._capturing = threading.Lock()
        self._defaults = [self.new_stream(index, 0) for index in range(self._gpus.count)]
        self._pooled: dict[tuple[int, int], list[FakeStream]] = {}
        self._pools = itertools.count(1)
        self.events_made = 0
        self.recording: dict[tuple[int, object], FakeStream] = {}
        self.pool_users: dict[tuple[int, object], int] = {}
        self.computer = Computer(self._gpus, self.current, self._take, self._give_back, self._wait)
        self.Stream = self._make_stream
        self.ExternalStream = self._external_stream
        self.Event = self._make_event
        self.CUDAGraph = lambda: _Graph(self)

    def is_available(self) -> bool:
        return self._gpus.count > 0

    def device_count(self) -> int:
        return self._gpus.count

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(total_memory=self._gpus.memory_bytes)

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        assert 0 <= fraction <= 1
        self._limits[index] = round(self._gpus.memory_bytes * fraction)

    def empty_cache(self) -> None:
        """Of all devices, each of which is waited for."""
        self._wait_for_device(None)
        if self.recording:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED, please report a bug to PyTorch.")
        self._owner.emptied += 1

    def synchronize(self, index: int) -> None:
        self._wait_for_device(index)
        for stream in self._gpus.streams(index):
            self._wait(stream)

    def _wait_for_device(self, index: int | None) -> None:
        self.check()
        if not self._gpus.wait_for_device(index):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def default_stream(self, index: int) -> _Stream:
        return _Stream(self, self._defaults[index])

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, next(self._pools))

    def is_current_stream_capturing(self) -> bool:
        return self.current().captured is not None

    def current(self, index: int | None = None) -> FakeStream:
        """The calling thread's current stream, of a device or of the current one."""
        if index is None:
            index = int(getattr(self._thread, "index", 0))
        stream = getattr(self._thread, "stream", None)
        return stream if stream is not None and stream.device == index else self._defaults[index]

    @contextmanager
    def device(self, index: Any) -> Iterator[None]:
        index = index.index if isinstance(index, torch.device) else index
        assert index in range(self._gpus.count)
        with self._current(index, getattr(self._thread, "stream", None)):
            yield

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        with self._current(stream.raw.device, stream.raw):
            yield

    @contextmanager
    def graph(self, graph: _Graph, *, pool: object, stream: _Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        assert pool is not None
        assert self.current() is stream.raw, "it waits for the current device, and leaves its stream when it fails"
        with self._one_capture():
            self.synchronize(stream.raw.device)
            self.empty_cache()
            yield from self._captured(graph, pool, stream)

    @contextmanager
    def _one_capture(self) -> Iterator[None]:
        if not self._capturing.acquire(blocking=False):
            raise Misuse("only one capture may be underway at a time in the process")
        try:
            yield
        finally:
            self._capturing.release()

    def _captured(self, graph: _Graph, pool: object, stream: _Stream) -> Iterator[None]:
        handle, key = stream.raw.handle, (stream.raw.device, pool)
        if key in self.recording:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.pool_users[key] = self.pool_users.get(key, 0) + 1
        self.recording[key] = stream.raw
        self._gpus.begin_capture(handle)
        self.computer.held_by_captures[handle] = graph.held
        try:
            with self.stream(stream):
                yield
        finally:
            operations = self._gpus.end_capture(handle)
            del self.computer.held_by_captures[handle]
            if operations is None:  # and torch's allocator goes on recording
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            self.end_allocate(*key)
            graph.captured(operations, key)

    def end_allocate(self, device: int, pool: object) -> None:
        if self.recording.pop((device, pool), None) is None:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    def release_pool(self, device: int, pool: object) -> None:
        self.pool_users[device, pool] -= 1
        if self.pool_users[device, pool] < 0:
            raise RuntimeError("uc >= 0 INTERNAL ASSERT FAILED, please report a bug to PyTorch.")

    @contextmanager
    def _current(self, index: int, stream: FakeStream | None) -> Iterator[None]:
        before = getattr(self._thread, "index", 0), getattr(self._thread, "stream", None)
        self._thread.index, self._thread.stream = index, stream
        try:
            yield
        finally:
            self._thread.index, self._thread.stream = before

    def _make_stream(self, *, device: int, priority: int = 0) -> _Stream:
        """torch has so many of each priority, and gives them out in turn, used or not."""
        self.check()
        pooled = self._pooled.setdefault((device, priority), [])
        if len(pooled) < _POOLED_STREAMS:
            pooled.append(self.new_stream(device, priority))
        else:
            pooled.append(pooled.pop(0))
        return _Stream(self, pooled[-1])

    def _external_stream(self, stream_ptr: int, *, device: int) -> _Stream:
        self.check()
        stream = self._gpus.stream(stream_ptr)
        assert stream.device == device
        return _Stream(self, stream)

    def _make_event(self, *, enable_timing: bool) -> _Event:
        self.events_made += 1
        return _Event(self, enable_timing)

    def new_stream(self, device: int, priority: int) -> FakeStream:
        stream = self._gpus.new_stream(device, priority)

        def launch(work: Any) -> int:
            if self._gpus.sick is not None:
                return ILLEGAL_ADDRESS
            self._gpus.call(stream.handle, work)
            return SUCCESS

        self._owner.driver.streams[stream.handle] = launch
        return stream

    def check(self) -> None:
        """Every call of CUDA's fails on a sick device, and one that is about to fail once."""
        if self._gpus.transient:
            raise RuntimeError(f"CUDA error: error {self._gpus.transient.popleft()}")
        if self._gpus.sick is not None:
            raise RuntimeError(
                "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously "
                "reported at some other API call, so the stacktrace below might be incorrect."
            )

    def may_ask(self) -> None:
        """A thread that captures may not."""
        self.check()
        if not self._gpus.may_ask():
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def _take(self, device: int, nbytes: int) -> None:
        self.check()
        with self._lock:
            used = self._used.get(device, 0) + nbytes
            if used > self._limits.get(device, self._gpus.memory_bytes):
                raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {nbytes} bytes.\nMore words.")
            self._used[device] = used

    def _give_back(self, device: int, nbytes: int) -> None:
        with self._lock:
            self._used[device] -= nbytes

    def memory_allocated(self, device: int) -> int:
        """What tensors have of a device's memory."""
        return self._used.get(device, 0)

    def _wait(self, stream: FakeStream) -> None:
        reached = FakeEvent(stream.device)
        self._gpus.record(stream.handle, reached)
        self._gpus.wait(reached)
        self.check()


class _Stream:
    """``torch.cuda.Stream``."""

    def __init__(self, cuda: _Cuda, raw: FakeStream) -> None:
        self.raw = raw
        self.cuda_stream = raw.handle
        self._cuda = cuda

    def query(self) -> bool:
        self._cuda.may_ask()
        return not self.raw.queue

    def synchronize(self) -> None:
        self._cuda._wait(self.raw)

    def wait_event(self, event: _Event) -> None:
        self._cuda.check()
        assert event.recorded, "waiting for an event that was never recorded waits for nothing"
        gpus = self._cuda._gpus
        gpus.enqueue(self.raw.handle, Operation("wait", lambda: None, waits_for=event.raw))


class _Event:
    """``torch.cuda.Event``."""

    def __init__(self, cuda: _Cuda, timing: bool) -> None:
        self._cuda = cuda
        self._timing = timing
        self.recorded = False
        self.raw = FakeEvent(0)

    def record(self, stream: _Stream) -> None:
        self._cuda.check()
        self.recorded = True
        self.raw = FakeEvent(stream.raw.device)  # who waits for what was recorded before does so still
        self._cuda._gpus.record(stream.raw.handle, self.raw)

    def query(self) -> bool:
        self._cuda.may_ask()
        return self.recorded and self.raw.at_ns is not None

    def elapsed_time(self, later: _Event) -> float:
        """Milliseconds."""
        self._cuda.check()
        if not (self._timing and later._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.raw.at_ns is None or later.raw.at_ns is None:
            raise ValueError("Both events must be completed before calculating elapsed time.")
        return (later.raw.at_ns - self.raw.at_ns) / 1e6


class _Graph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, cuda: _Cuda) -> None:
        self._cuda = cuda
        self.operations: list[Operation] | None = None
        self.held: list[tuple[Token, ...]] = []
        self._pool: tuple[int, object] | None = None

    def captured(self, operations: list[Operation], pool: tuple[int, object]) -> None:
        self.operations, self._pool = operations, pool

    def replay(self) -> None:
        self._cuda.check()
        assert self.operations is not None, "nothing was captured"
        for operation in self.operations:
            self._cuda._gpus.enqueue(self._cuda.current().handle, operation)

    def reset(self) -> None:
        """Its pool goes with it, but not that of a capture that has failed."""
        pool, self._pool, self.operations = self._pool, None, None
        if pool is not None:
            self._cuda.release_pool(*pool)

    def __del__(self) -> None:
        self.reset()


class _Bindings:
    """``torch._C``."""

    def __init__(self, cuda: _Cuda) -> None:
        self._cuda_endAllocateToPool = cuda.end_allocate
        self._cuda_releasePool = cuda.release_pool

    def __getattr__(self, name: str) -> Any:
        return getattr(torch._C, name)
