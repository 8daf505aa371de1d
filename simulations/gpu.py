"""A simulated GPU: which operation of which stream runs when. Pure: events in, actions out, time as an argument.

Rules:
 1. A stream is a FIFO of operations: kernels, and copies to and from the device. Its first operation is *ready* when
    nothing of the stream is running.
 2. An operation runs on one engine: kernels on COMPUTE, copies on the copy engine of their direction. COMPUTE has as
    many units (streaming multiprocessors, say) as the device, a copy engine has one. An operation occupies its units
    from its start to its end; those that run on an engine never occupy more than it has.
 3. Whatever is ready and fits runs: no unit idles that something ready could use. The hardware scheduler takes the
    streams in turn; on each engine, the stream that was served longest ago goes first, and so streams interleave.
    One whose operation does not fit is passed over, and keeps its turn.
 4. An operation runs for its duration, undisturbed by what runs beside it. At any one instant everything that is due
    ends before anything starts; what ends at one instant ends in the order in which it started.
 5. A mark is a point in a stream, behind what was put into it so far; the stream passes it when all of that has ended.
    A stream may be made to wait for another one's mark. Waiting takes its turn in the stream, and no other time.

Where an operation can be:

    enqueue ──▶ WAITING ──(first of its stream, rule 1)▶ READY ──Start (rules 2, 3)▶ RUNNING ──End (rule 4)▶ gone

What `next_action` answers; the first line that applies:

    something that runs is due                    End
    something ready fits                          Start
    something runs                                SleepUntil it is due
    otherwise                                     WAIT

Its caller asks again, until the answer is SleepUntil or WAIT, after every `enqueue` and at every instant that it was
told: what could have started earlier starts when asked.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from dataclasses import dataclass, field

from ..engine.scheduling.core import WAIT, Wait

STREAM_DEPTH = 1024
"""Operations that may wait in one stream."""

StreamId = int


class DeviceEngine(enum.Enum):
    """Parts of a device that work side by side, in the order in which they are given work."""

    __hash__ = object.__hash__  # asked for at every operation, and nothing depends on its value

    COMPUTE = "compute"
    COPY_IN = "copy in"  # host to device
    COPY_OUT = "copy out"  # device to host


@dataclass(frozen=True, slots=True)
class DeviceOperation:
    """A kernel or a copy. `batch` is carried along: whose work it is."""

    name: str
    duration_ns: int
    engine: DeviceEngine = DeviceEngine.COMPUTE
    units: int = 1
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """This operation starts now."""

    stream: StreamId
    operation: DeviceOperation


@dataclass(frozen=True, slots=True)
class End:
    """This operation ends now."""

    stream: StreamId
    operation: DeviceOperation


@dataclass(frozen=True, slots=True)
class SleepUntil:
    """Nothing happens before `when_ns`, unless something is enqueued."""

    when_ns: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in a stream: behind the first `count` things that were put into it."""

    stream: StreamId
    count: int


GpuAction = Start | End | SleepUntil | Wait


class StreamFullError(Exception):
    """More operations were put into a stream than it holds."""


@dataclass(slots=True)
class _Stream:
    """`put` counts what was put into it, and `passed` what of that is over."""

    waiting: deque[DeviceOperation | Mark] = field(default_factory=lambda: deque(maxlen=STREAM_DEPTH))
    running: bool = False
    put: int = 0
    passed: int = 0


class GpuCore:
    """The machine.

    Args:
        units: what the device can give to kernels that run at once.
    """

    __slots__ = ("_free", "_now_ns", "_running", "_started", "_streams", "_turns", "_units")

    def __init__(self, units: int) -> None:
        if units < 1:
            raise ValueError(f"a GPU has at least one unit, not {units}")
        self._units = {DeviceEngine.COMPUTE: units, DeviceEngine.COPY_IN: 1, DeviceEngine.COPY_OUT: 1}
        self._free = dict(self._units)
        self._streams: list[_Stream] = []
        self._turns: dict[DeviceEngine, list[StreamId]] = {
            engine: [] for engine in DeviceEngine
        }  # served longest ago first
        self._running: list[tuple[int, int, StreamId, DeviceOperation]] = []  # a heap: (end_ns, number of the start, …)
        self._started = 0
        self._now_ns = 0

    def add_stream(self) -> StreamId:
        """Make a stream. Its turn comes after everyone's."""
        stream = len(self._streams)
        self._streams.append(_Stream())
        for turns in self._turns.values():
            turns.append(stream)
        return stream

    def enqueue(self, stream: StreamId, operation: DeviceOperation) -> None:
        """Put an operation into a stream.

        Raises:
            ValueError: no time could run it: more units than the engine has, or a negative duration.
            StreamFullError: `STREAM_DEPTH` operations are waiting in the stream.
        """
        if not 1 <= operation.units <= self._units[operation.engine] or operation.duration_ns < 0:
            raise ValueError(
                f"'{operation.name}' takes {operation.units} of {self._units[operation.engine]} units of the "
                f"{operation.engine.value} engine for {operation.duration_ns} ns; it must take at least 1 unit, no "
                "more than there are, and no negative time"
            )
        self._put(stream, operation)

    def mark(self, stream: StreamId) -> Mark:
        """A mark behind all that is in a stream."""
        return Mark(stream, self._streams[stream].put)

    def wait(self, stream: StreamId, mark: Mark) -> None:
        """Let what is put into a stream from now on wait for a mark.

        Raises:
            StreamFullError: as `enqueue` does.
        """
        self._put(stream, mark)

    def passed(self, mark: Mark) -> bool:
        """Whether its stream has passed a mark, as of the last `next_action`."""
        return self._streams[mark.stream].passed >= mark.count

    def _put(self, stream: StreamId, work: DeviceOperation | Mark) -> None:
        queue = self._streams[stream]
        if len(queue.waiting) == STREAM_DEPTH:
            raise StreamFullError(f"stream {stream} holds its limit of {STREAM_DEPTH} operations")
        queue.waiting.append(work)
        queue.put += 1

    def next_action(self, now_ns: int) -> GpuAction:
        assert now_ns >= self._now_ns, "time went back"
        self._now_ns = now_ns
        if self._running and self._running[0][0] <= now_ns:
            return self._end()
        while self._pass_marks():
            pass  # one stream's step may be what another one waits for
        for engine in DeviceEngine:
            stream = self._next_stream(engine)
            if stream is not None:
                return self._start(stream, now_ns)
        return SleepUntil(self._running[0][0]) if self._running else WAIT

    def _pass_marks(self) -> bool:
        """Let streams go on that wait for a mark which is passed (rule 5); whether one did."""
        goes_on = False
        for stream in self._streams:
            if stream.waiting and not stream.running:
                first = stream.waiting[0]
                if isinstance(first, Mark) and self.passed(first):
                    stream.waiting.popleft()
                    stream.passed += 1
                    goes_on = True
        return goes_on

    def _next_stream(self, engine: DeviceEngine) -> StreamId | None:
        """Whose turn it is to start something on this engine (rule 3)."""
        free = self._free[engine]
        if free:
            for identity in self._turns[engine]:
                stream = self._streams[identity]
                if not stream.running and stream.waiting:
                    operation = stream.waiting[0]
                    if (
                        isinstance(operation, DeviceOperation)
                        and operation.engine is engine
                        and operation.units <= free
                    ):
                        return identity
        return None

    def _start(self, stream: StreamId, now_ns: int) -> Start:
        operation = self._streams[stream].waiting.popleft()
        assert isinstance(operation, DeviceOperation), "marks are passed, not started"
        self._streams[stream].running = True
        self._free[operation.engine] -= operation.units
        turns = self._turns[operation.engine]
        turns.remove(stream)
        turns.append(stream)
        self._started += 1
        heapq.heappush(self._running, (now_ns + operation.duration_ns, self._started, stream, operation))
        return Start(stream, operation)

    def _end(self) -> End:
        _, _, stream, operation = heapq.heappop(self._running)
        self._streams[stream].running = False
        self._streams[stream].passed += 1
        self._free[operation.engine] += operation.units
        return End(stream, operation)

    @property
    def busy(self) -> bool:
        """Whether something runs, or waits."""
        return bool(self._running) or any(stream.waiting for stream in self._streams)

    def __repr__(self) -> str:
        waiting = sum(len(stream.waiting) for stream in self._streams)
        return f"<GpuCore: {len(self._streams)} streams, {len(self._running)} running, {waiting} waiting>"
