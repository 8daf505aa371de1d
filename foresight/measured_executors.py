"""Executors that write down how long each batch took, and where: the server's own, with a stopwatch around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..actors.actor import Turn
from ..actors.executors import Executor, Executors
from ..actors.offload import Done
from ..actors.socket_readiness import Readiness
from ..engine.backends.interface import ModelInstance, ProcessInstance, StreamInstance
from ..engine.clock import Clock
from ..engine.job import ExecutionBatch
from ..engine.profiles import ExecutorKind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """One batch; times are nanoseconds of one clock.

    Attributes:
        executing: batches that were being executed when it was handed over, itself included.
        aside: it was not executed on the event loop.
        handed_ns, heard_ns: when it was handed to its executor, and when the event loop heard of its end.
        marks: see `ExecutionBatch.marks`.
    """

    instance: str
    rows: int
    executing: int
    aside: bool
    handed_ns: int
    marks: tuple[int, ...]
    heard_ns: int

    @property
    def took_s(self) -> float:
        return (self.marks[3] - self.marks[0]) / 1e9

    @property
    def start_s(self) -> float:
        return max(0, self.marks[0] - self.handed_ns) / 1e9

    @property
    def notice_s(self) -> float:
        return max(0, self.heard_ns - self.marks[3]) / 1e9


class BatchSink:
    """Takes what executors measured.

    Attributes:
        take: called with each batch that has ended.
        kinds: by the name of an instance, where it executes.
        made_s: seconds that the making of each instance took, in order, but for its warm-up.
        executing: batches.
    """

    def __init__(self) -> None:
        self.take: Callable[[MeasuredBatch], None] = lambda _batch: None
        self.kinds: dict[str, ExecutorKind] = {}
        self.made_s: list[float] = []
        self.executing = 0


class MeasuringExecutors(Executors):
    """Makes the executors of a server that is measured (`InferenceServer`'s `executors_factory`)."""

    def __init__(self, sink: BatchSink, clock: Clock, load_threads: int, readiness: Readiness) -> None:
        super().__init__(load_threads, readiness)
        self._sink = sink
        self._clock = clock

    def instance_executor(self, name: str, kind: type[ModelInstance], turn: Turn) -> Executor:
        inner = super().instance_executor(name, kind, turn)
        return _MeasuringExecutor(inner, name, kind, self._sink, self._clock)


class _MeasuringExecutor:
    def __init__(self, inner: Executor, name: str, kind: type[ModelInstance], sink: BatchSink, clock: Clock) -> None:
        self._inner = inner
        self._name = name
        self._kind = kind
        self._sink = sink
        self._clock = clock
        self._made = False
        self.around = inner.around
        self.end_instance = inner.end_instance
        self.close = inner.close

    async def call(self, work: Callable[[], T]) -> T:
        began_ns = self._clock.now_ns()
        result = await self._inner.call(work)
        if not self._made:
            self._made = True
            self._sink.made_s.append((self._clock.now_ns() - began_ns) / 1e9)
        return result

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        sink, now_ns = self._sink, self._clock.now_ns
        sink.kinds[self._name] = self._kind_of(instance)
        sink.executing += 1
        executing, handed_ns = sink.executing, now_ns()

        def over(batch: ExecutionBatch, death: Exception | None = None, /) -> None:
            sink.executing -= 1
            if death is None:
                aside = batch.aside or issubclass(self._kind, ProcessInstance | StreamInstance)
                times = handed_ns, tuple(batch.marks), now_ns()
                sink.take(MeasuredBatch(self._name, batch.rows, executing, aside, *times))
            done(batch, death)

        self._inner.begin(instance, batch, over)

    def _kind_of(self, instance: ModelInstance) -> ExecutorKind:
        if issubclass(self._kind, StreamInstance):
            return ExecutorKind.DEVICE
        if issubclass(self._kind, ProcessInstance):
            return ExecutorKind.PROCESS
        return ExecutorKind.THREAD if instance.thread_bound else ExecutorKind.PROVING
