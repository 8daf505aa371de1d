"""A simulated GPU in virtual time, and models whose instances work on it.

`SimulatedGpu` is a shell around `GpuCore`, as a scheduler actor is around its core. An instance owns a stream (its
execution context): `GpuWork` puts a batch's copies and kernels into it and waits for the last to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ..engine.backends.interface import InstanceSpec
from ..engine.job import ExecutionBatch
from .clock import JumpingClock
from .events import KernelEnded, KernelStarted
from .gpu import DeviceEngine, DeviceOperation, End, GpuCore, Mark, SleepUntil, Start, StreamId
from .history import Recorder


class SimulatedGpu:
    """A device. It has no task: its clock calls it when something ends, or has come.

    Args:
        name: for the history.
        units: what it can give to kernels that run at once.
    """

    def __init__(self, name: str, units: int, recorder: Recorder, clock: JumpingClock) -> None:
        self.name = name
        self._clock = clock
        self._next_s = math.inf  # when the clock is to call
        self._core = GpuCore(units)
        self._recorder = recorder
        self._streams: dict[str, StreamId] = {}  # by owner
        self._calls: list[tuple[Mark, Callable[[], None]]] = []

    def add_stream(self) -> StreamId:
        return self._core.add_stream()

    def enqueue(self, stream: StreamId, operation: DeviceOperation) -> None:
        """See `GpuCore.enqueue`."""
        self._core.enqueue(stream, operation)
        self._call_at(self._clock.now_s())

    def mark(self, stream: StreamId) -> Mark:
        return self._core.mark(stream)

    def wait(self, stream: StreamId, mark: Mark) -> None:
        """See `GpuCore.wait`."""
        self._core.wait(stream, mark)
        self._call_at(self._clock.now_s())

    def call(self, mark: Mark, function: Callable[[], None]) -> None:
        """Call a function when its stream has passed a mark, not before this returns. What passes at one instant is
        told in the order of the calls."""
        self._calls.append((mark, function))
        self._call_at(self._clock.now_s())

    async def perform(self, owner: str, operations: Sequence[DeviceOperation]) -> None:
        """Put operations into the owner's stream (made when first used) and wait until the last has ended. Cancelling
        this does not take them back: what was launched runs.

        Raises:
            ValueError: the device cannot run one of them (`GpuCore.enqueue`).
            StreamFullError: too much is waiting in the stream.
        """
        stream = self._streams.get(owner)
        if stream is None:
            stream = self._streams[owner] = self.add_stream()
        for operation in operations:
            self.enqueue(stream, operation)
        ended = trio.Event()
        self.call(self.mark(stream), ended.set)
        await ended.wait()

    def _call_at(self, when_s: float) -> None:
        if when_s < self._next_s:
            self._next_s = when_s
            self._clock.call_at(when_s, self._act)

    def _act(self) -> None:
        """Do what is due, until there is nothing more."""
        if self._clock.now_s() < self._next_s:
            return  # an earlier call was asked for meanwhile, and has come
        self._next_s = math.inf
        while True:
            action = self._core.next_action(self._recorder.now_ns())
            match action:
                case Start(stream, operation):
                    self._record_start(stream, operation)
                case End(stream, operation):
                    self._record_end(stream, operation)
                case _:
                    break
        self._tell()
        if isinstance(action, SleepUntil):
            self._call_at(action.when_ns / 1e9)

    def _tell(self) -> None:
        calls, self._calls = self._calls, []
        passed: list[Callable[[], None]] = []
        for call in calls:
            if self._core.passed(call[0]):
                passed.append(call[1])
            else:
                self._calls.append(call)
        for function in passed:
            function()

    def _record_start(self, stream: StreamId, operation: DeviceOperation) -> None:
        now_ns = self._recorder.now_ns()
        engine, units, batch = operation.engine.value, operation.units, operation.batch
        self._recorder.record(KernelStarted(now_ns, self.name, stream, operation.name, engine, units, batch))

    def _record_end(self, stream: StreamId, operation: DeviceOperation) -> None:
        now_ns = self._recorder.now_ns()
        self._recorder.record(KernelEnded(now_ns, self.name, stream, operation.name, operation.batch))

    def now_ns(self) -> int:
        return self._recorder.now_ns()

    def batch_number(self, batch: ExecutionBatch) -> int:
        return self._recorder.number_of(batch)

    @property
    def busy(self) -> bool:
        """Whether anything is left to do, or to tell."""
        return self._core.busy or bool(self._calls)

    def __repr__(self) -> str:
        return f"<SimulatedGpu {self.name}: {self._core!r}>"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that takes ``fixed_s + per_row_s * rows`` seconds and `units` of the device."""

    name: str
    fixed_s: float
    per_row_s: float = 0.0
    units: int = 1


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Work (see `models.Work`) on a GPU: a batch is copied in, goes through the kernels, and is copied out.

    Attributes:
        copy_in_s, copy_out_s: time that a row's copy takes, each way; 0 for no copy.
    """

    gpu: SimulatedGpu
    kernels: tuple[Kernel, ...]
    copy_in_s: float = 0.0
    copy_out_s: float = 0.0

    async def __call__(self, spec: InstanceSpec, batch: ExecutionBatch) -> None:
        number = self.gpu.batch_number(batch)
        operations = [
            DeviceOperation(
                kernel.name, _ns(kernel.fixed_s + kernel.per_row_s * batch.rows), units=kernel.units, batch=number
            )
            for kernel in self.kernels
        ]
        if self.copy_in_s:
            operations.insert(
                0, DeviceOperation("in", _ns(self.copy_in_s * batch.rows), DeviceEngine.COPY_IN, batch=number)
            )
        if self.copy_out_s:
            operations.append(
                DeviceOperation("out", _ns(self.copy_out_s * batch.rows), DeviceEngine.COPY_OUT, batch=number)
            )
        await self.gpu.perform(f"{spec.name}, version {batch.jobs[0].model_version}", operations)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
