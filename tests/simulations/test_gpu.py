"""The simulated GPU's rules, by calling the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.scheduling.core import WAIT
from trireme.simulations.gpu import (
    STREAM_DEPTH,
    DeviceEngine,
    DeviceOperation,
    End,
    GpuCore,
    SleepUntil,
    Start,
    StreamFullError,
)


@dataclass
class Entry:
    """An operation's life. `seen_ns` is when it was enqueued."""

    stream: int
    operation: DeviceOperation
    seen_ns: int
    start_ns: int = -1
    end_ns: int = -1


@dataclass
class Run:
    """Feeds a `GpuCore` and keeps a log: entries in the order of starts, and per stream in the order enqueued."""

    units: int
    streams: int
    started: list[Entry] = field(default_factory=list)
    queues: list[list[Entry]] = field(default_factory=list)

    def play(self, arrivals: list[tuple[int, int, DeviceOperation]]) -> None:
        """`arrivals`: (instant, stream, operation), ascending."""
        core = GpuCore(self.units)
        self.queues = [[] for _ in range(self.streams)]
        assert [core.add_stream() for _ in range(self.streams)] == list(range(self.streams))
        due = list(arrivals)
        now_ns = 0
        while True:
            while due and due[0][0] == now_ns:
                _, stream, operation = due.pop(0)
                core.enqueue(stream, operation)
                self.queues[stream].append(Entry(stream, operation, now_ns))
            action = self._act(core, now_ns)
            instants = [due[0][0]] if due else []
            if isinstance(action, SleepUntil):
                instants.append(action.when_ns)
            if not instants:
                assert action is WAIT
                return
            now_ns = min(instants)

    def _act(self, core: GpuCore, now_ns: int) -> object:
        while True:
            match action := core.next_action(now_ns):
                case Start(stream, operation):
                    entry = next(each for each in self.queues[stream] if each.start_ns < 0)
                    assert entry.operation is operation, "a stream's operations start in order"
                    entry.start_ns = now_ns
                    self.started.append(entry)
                case End(stream, operation):
                    entry = next(each for each in self.queues[stream] if each.end_ns < 0)
                    assert entry.operation is operation
                    entry.end_ns = now_ns
                case _:
                    assert core.next_action(now_ns) == action, "asking again changes nothing"
                    return action

    def spans(self) -> list[tuple[str, int, int]]:
        return [(entry.operation.name, entry.start_ns, entry.end_ns) for entry in self.started]

    def ready_ns(self, entry: Entry) -> int:
        """When it was first of its stream."""
        queue = self.queues[entry.stream]
        index = next(number for number, each in enumerate(queue) if each is entry)
        return max(entry.seen_ns, queue[index - 1].end_ns if index else 0)


def play(units: int, *arrivals: tuple[int, int, DeviceOperation]) -> Run:
    run = Run(units, 1 + max(stream for _, stream, _ in arrivals))
    run.play(sorted(arrivals, key=lambda arrival: arrival[0]))
    return run


def kernels(stream: int, names: str, duration_ns: int, units: int = 1) -> list[tuple[int, int, DeviceOperation]]:
    return [(0, stream, DeviceOperation(name, duration_ns, units=units)) for name in names.split()]


def test_kernels_of_one_stream_run_one_after_the_other_though_units_are_free() -> None:
    assert play(4, *kernels(0, "a b", 10)).spans() == [("a", 0, 10), ("b", 10, 20)]


def test_kernels_of_several_streams_run_at_once_while_units_are_free() -> None:
    run = play(2, *kernels(0, "a", 10), *kernels(1, "b", 10), *kernels(2, "c", 10))
    assert run.spans() == [("a", 0, 10), ("b", 0, 10), ("c", 10, 20)]


def test_streams_take_turns_on_one_unit() -> None:
    run = play(1, *kernels(0, "a1 a2 a3", 10), *kernels(1, "b1 b2", 10), *kernels(2, "c1", 10))
    assert [name for name, _, _ in run.spans()] == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_kernel_that_does_not_fit_is_passed_over_and_goes_first_when_it_does() -> None:
    run = play(2, *kernels(0, "a", 10), *kernels(1, "BIG", 10, units=2), *kernels(2, "c1 c2", 10), *kernels(3, "d", 20))
    assert run.spans() == [("a", 0, 10), ("c1", 0, 10), ("BIG", 10, 20), ("d", 20, 40), ("c2", 20, 30)]


def test_copies_run_beside_kernels_each_way_on_its_own_engine() -> None:
    copies = [
        (0, 0, DeviceOperation("in0", 10, DeviceEngine.COPY_IN)),
        (0, 1, DeviceOperation("in1", 10, DeviceEngine.COPY_IN)),
        (0, 2, DeviceOperation("out2", 10, DeviceEngine.COPY_OUT)),
    ]
    run = play(1, *copies, *kernels(3, "k", 10))
    assert sorted(run.spans()) == [("in0", 0, 10), ("in1", 10, 20), ("k", 0, 10), ("out2", 0, 10)]


def test_what_is_due_at_one_instant_ends_before_anything_starts_there() -> None:
    run = play(2, *kernels(0, "a", 10), *kernels(1, "b", 10), *kernels(2, "BIG", 5, units=2))
    assert run.spans()[-1] == ("BIG", 10, 15)


def test_an_operation_without_duration_ends_at_the_instant_of_its_start() -> None:
    assert play(1, *kernels(0, "a b", 0)).spans() == [("a", 0, 0), ("b", 0, 0)]


@pytest.mark.parametrize(
    "operation",
    [
        DeviceOperation("k", 1, units=3),
        DeviceOperation("k", 1, units=0),
        DeviceOperation("k", -1),
        DeviceOperation("k", 1, DeviceEngine.COPY_IN, units=2),
    ],
)
def test_an_operation_that_could_never_run_is_refused(operation: DeviceOperation) -> None:
    core = GpuCore(2)
    with pytest.raises(ValueError, match=r"'k' takes -?\d of \d units of the .* engine for -?\d ns; it must"):
        core.enqueue(core.add_stream(), operation)


def test_a_stream_is_bounded() -> None:
    core = GpuCore(1)
    stream = core.add_stream()
    for _ in range(STREAM_DEPTH):
        core.enqueue(stream, DeviceOperation("k", 1))
    with pytest.raises(StreamFullError, match="stream 0 holds its limit of 1024 operations"):
        core.enqueue(stream, DeviceOperation("k", 1))


def test_a_gpu_has_units() -> None:
    with pytest.raises(ValueError, match="at least one unit, not 0"):
        GpuCore(0)


def wait_for(core: GpuCore, now_ns: int = 0) -> list[str]:
    """What happens from now on, in order: ``start`` and ``end`` of each operation, each with its instant."""
    happened = []
    while True:
        match core.next_action(now_ns):
            case Start(_, operation):
                happened.append(f"{operation.name}< {now_ns}")
            case End(_, operation):
                happened.append(f">{operation.name} {now_ns}")
            case SleepUntil(when_ns):
                now_ns = when_ns
            case _:
                return happened


def test_a_stream_waits_for_the_mark_of_another_one() -> None:
    core = GpuCore(2)
    first, second = core.add_stream(), core.add_stream()
    core.enqueue(first, DeviceOperation("a", 10))
    mark = core.mark(first)
    core.enqueue(first, DeviceOperation("b", 50))
    core.enqueue(second, DeviceOperation("c", 1))
    core.wait(second, mark)
    core.enqueue(second, DeviceOperation("d", 1))
    assert wait_for(core) == ["a< 0", "c< 0", ">c 1", ">a 10", "b< 10", "d< 10", ">d 11", ">b 60"]
    assert core.passed(mark)


def test_a_mark_behind_a_wait_is_passed_with_it() -> None:
    """Streams wait for each other in turn; waiting takes no time."""
    core = GpuCore(1)
    streams = [core.add_stream() for _ in range(3)]
    core.enqueue(streams[2], DeviceOperation("a", 7))
    for first, second in ((2, 1), (1, 0)):
        core.wait(streams[second], core.mark(streams[first]))
    mark = core.mark(streams[0])
    core.enqueue(streams[0], DeviceOperation("b", 1))
    core.next_action(0)
    assert not core.passed(mark)
    assert wait_for(core) == [">a 7", "b< 7", ">b 8"]


def test_the_mark_of_an_empty_stream_holds_up_no_other() -> None:
    core = GpuCore(1)
    first, second = core.add_stream(), core.add_stream()
    core.wait(first, core.mark(second))
    core.enqueue(second, DeviceOperation("c", 100, DeviceEngine.COPY_IN))
    core.enqueue(first, DeviceOperation("a", 1))
    assert wait_for(core) == ["a< 0", "c< 0", ">a 1", ">c 100"]


def test_waits_count_towards_a_streams_bound() -> None:
    core = GpuCore(1)
    stream, other = core.add_stream(), core.add_stream()
    core.enqueue(other, DeviceOperation("k", 1))
    for _ in range(STREAM_DEPTH):
        core.wait(stream, core.mark(other))
    with pytest.raises(StreamFullError):
        core.wait(stream, core.mark(other))


@st.composite
def workloads(draw: st.DrawFn) -> Run:
    units = draw(st.integers(1, 4))
    streams = draw(st.integers(1, 4))

    def operation(name: str) -> DeviceOperation:
        engine = draw(st.sampled_from([DeviceEngine.COMPUTE, DeviceEngine.COMPUTE, *DeviceEngine]))
        taken = draw(st.integers(1, units)) if engine is DeviceEngine.COMPUTE else 1
        return DeviceOperation(name, draw(st.integers(0, 6)), engine, taken)

    instants = draw(st.lists(st.integers(0, 20), min_size=1, max_size=20).map(sorted))
    run = Run(units, streams)
    run.play([(at, draw(st.integers(0, streams - 1)), operation(str(n))) for n, at in enumerate(instants)])
    return run


@given(workloads())
def test_everything_runs_once_in_order_for_its_time(run: Run) -> None:
    entries = [entry for queue in run.queues for entry in queue]
    assert len(run.started) == len(entries)
    for queue in run.queues:
        assert all(first.end_ns <= second.start_ns for first, second in pairwise(queue))
    for entry in entries:
        assert entry.seen_ns <= entry.start_ns
        assert entry.end_ns - entry.start_ns == entry.operation.duration_ns


@given(workloads())
def test_no_engine_is_oversubscribed_and_none_idles_that_something_ready_could_use(run: Run) -> None:
    """Over each span between two events: what ran fits, and what was ready and did not run would not have fitted."""
    events = sorted({entry.start_ns for entry in run.started} | {entry.end_ns for entry in run.started})
    for engine in DeviceEngine:
        capacity = run.units if engine is DeviceEngine.COMPUTE else 1
        entries = [entry for entry in run.started if entry.operation.engine is engine]
        for at_ns, until_ns in pairwise(events):
            running = [entry for entry in entries if entry.start_ns <= at_ns and entry.end_ns >= until_ns]
            used = sum(entry.operation.units for entry in running)
            assert used <= capacity
            for entry in entries:
                if run.ready_ns(entry) <= at_ns < entry.start_ns:
                    assert entry.operation.units > capacity - used, "it was ready, and there was room"


@given(workloads())
def test_the_stream_served_longest_ago_goes_first(run: Run) -> None:
    """Of two operations that were ready when one of them started, and of which either would have fitted, that one
    starts whose stream the engine has served less recently."""
    for engine in DeviceEngine:
        order = [entry for entry in run.started if entry.operation.engine is engine]
        for index, entry in enumerate(order):
            free = (run.units if engine is DeviceEngine.COMPUTE else 1) - sum(
                other.operation.units for other in order[:index] if other.end_ns > entry.start_ns
            )
            served = {each.stream: number for number, each in enumerate(order[:index])}
            turn = (served.get(entry.stream, -1), entry.stream)
            for other in order[index + 1 :]:
                waited = run.ready_ns(other) < entry.start_ns and other.operation.units <= free
                if waited:
                    assert turn < (served.get(other.stream, -1), other.stream)
