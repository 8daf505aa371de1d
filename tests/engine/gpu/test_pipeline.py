"""A batch's way over a device: right whatever the streams' speeds are, held while it is used, and overlapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from fake_device import FakeArray, FakeDevice
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.gpu.device import DeviceStream, OutOfDeviceMemoryError, SickDeviceError
from trireme.engine.gpu.pipeline import Flight, GpuPipeline
from trireme.engine.job import ExecutionBatch, Phase

FLOAT = np.dtype(np.float32)
BYTES = 16
"""Of an array of these tests."""


class Clock:
    now = 10_000

    def now_ns(self) -> int:
        return self.now

    def now_s(self) -> float:
        return self.now / 1e9

    def wall_ms(self) -> int:
        return 0


def batch() -> ExecutionBatch:
    return ExecutionBatch([], "m_0", Clock())


@dataclass
class Bench:
    """A pipeline on a device, and what has landed, in order.

    The computation gives two arrays: the sum of the inputs, and the first of them, times ten.
    """

    device: FakeDevice = field(default_factory=FakeDevice)
    landed: list[int] = field(default_factory=list)
    compute_ns: int = 100

    def __post_init__(self) -> None:
        self.pipeline = GpuPipeline(self.device)
        self.count = 0

    def launch(self, *values: float, error: BaseException | None = None, late: bool = False) -> Flight:
        """Launch a batch with such inputs, which only the flight refers to afterwards.

        Args:
            error: raised by the computation, before it enqueues anything, or, with `late`, after.
        """
        self.count += 1
        number = self.count
        inputs = [self.device.pinned((4,), FLOAT) for _ in values]
        for array, value in zip(inputs, values, strict=True):
            array[...] = value

        def compute(stream: DeviceStream, arrays: Sequence[FakeArray]) -> Sequence[FakeArray]:
            if error is not None and not late:
                raise error
            results = [self.device.empty((4,), FLOAT) for _ in range(2)]
            streams = [each for each in self.device.streams if each is stream]
            streams[0].kernel(add_and_scale, *arrays, *results, duration_ns=self.compute_ns)
            if error is not None:
                raise error
            return results

        return self.pipeline.launch(inputs, compute, lambda: self.landed.append(number))

    @property
    def used(self) -> tuple[int, int]:
        return self.device.memory.used_bytes, self.device.pinned_memory.used_bytes


def add_and_scale(*arrays: np.ndarray) -> None:
    *inputs, total, scaled = arrays
    total[...] = sum(inputs)
    scaled[...] = inputs[0] * 10


def values_of(flight: Flight) -> list[float]:
    outputs = flight.collect(batch())
    for output in outputs:
        assert len(set(output.tolist())) == 1
    return [float(output[0]) for output in outputs]


def test_a_batch_lands_with_its_results() -> None:
    bench = Bench()
    flight = bench.launch(2, 3)
    assert not flight.reached()
    bench.device.run()
    assert flight.reached()
    assert bench.landed == [1]
    assert values_of(flight) == [5, 20]


def test_each_batch_has_its_own_results_while_the_next_one_is_computed() -> None:
    bench = Bench()
    flights = [bench.launch(value) for value in (1, 2, 3)]
    bench.device.run()
    assert bench.landed == [1, 2, 3]
    assert [values_of(flight) for flight in flights] == [[1, 10], [2, 20], [3, 30]]


def test_copies_hide_behind_computation() -> None:
    """Each batch is copied in for 16 ns, computed for 100 ns and copied out for 32 ns. Together they take the
    computations, one copy in and one out."""
    bench = Bench()
    for _ in range(4):
        bench.launch(1)
    bench.device.run()
    assert bench.device.now_ns == 16 + 4 * 100 + 32


def test_one_batch_at_a_time_takes_as_long_as_everything_it_does() -> None:
    bench = Bench()
    for _ in range(4):
        bench.launch(1)
        bench.device.run()
    assert bench.device.now_ns == 4 * (16 + 100 + 32)


def test_whatever_a_batch_uses_is_held_until_it_is_released() -> None:
    bench = Bench()
    flight = bench.launch(1, 2)
    held = (4 * BYTES, 4 * BYTES)
    assert bench.used == held
    bench.device.run()
    assert bench.used == held
    values = flight.collect(batch())[0]
    assert bench.used == (0, BYTES), "the outputs are for the answers: one of them still is"
    del values
    assert bench.used == (0, 0)


def test_what_is_answered_does_not_hold_pinned_memory_that_is_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.device, "relieved", np.copy)
    flight = bench.launch(1)
    bench.device.run()
    outputs = flight.collect(batch())
    assert [output[0] for output in outputs] == [1, 10]
    assert bench.used == (0, 0), "though the answers are not sent yet"


def test_a_batch_without_inputs_or_outputs_lands() -> None:
    bench = Bench()
    flight = bench.pipeline.launch([], lambda _stream, _arrays: [], lambda: bench.landed.append(0))
    bench.device.run()
    assert bench.landed == [0]
    assert flight.collect(batch()) == []


def test_an_input_may_be_a_result() -> None:
    bench = Bench()
    source = bench.device.pinned((4,), FLOAT)
    source[...] = 7
    flight = bench.pipeline.launch([source], lambda _stream, arrays: arrays, lambda: None)
    del source
    bench.device.run()
    assert values_of(flight) == [7]


# -- time ------------------------------------------------------------------------------------------------------------


def test_the_phases_are_as_long_as_the_device_says() -> None:
    bench = Bench(compute_ns=700)
    flight = bench.launch(1, 2)
    bench.device.run()
    measured = batch()
    measured.marks[Phase.COMPUTE_START] = 5_000
    flight.collect(measured)
    measured.finish()
    assert measured.marks == [5_000, 10_000 - 32 - 700, 10_000 - 32, 10_000]


def test_what_waits_for_the_batch_before_it_is_not_computed_meanwhile() -> None:
    """The second batch's infer phase begins when the device begins with it."""
    bench = Bench(compute_ns=700)
    flights = [bench.launch(1), bench.launch(2)]
    bench.device.run()
    for flight in flights:
        measured = batch()
        flight.collect(measured)
        assert measured.marks[Phase.OUTPUT_START] - measured.marks[Phase.INFER_START] == 700


def test_a_batch_that_failed_has_no_phases() -> None:
    bench = Bench()
    flight = bench.launch(1, error=ValueError("no"))
    bench.device.run()
    measured = batch()
    with pytest.raises(ValueError, match="no"):
        flight.collect(measured)
    assert measured.marks == [-1] * 4


# -- failure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [ValueError("no"), InvalidArgumentError("no"), SystemExit(3)])
def test_what_the_computation_raises_is_told_when_the_batch_has_landed(error: BaseException, late: bool) -> None:
    bench = Bench()
    flight = bench.launch(1, 2, error=error, late=late)
    assert not flight.reached()
    assert bench.used[1] == 2 * BYTES, "the device is still going to read it"
    bench.device.run()
    assert flight.reached()
    assert bench.landed == [1]
    with pytest.raises(type(error)) as raised:
        flight.collect(batch())
    assert raised.value is error
    assert bench.used == (0, 0)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_batch_that_failed_has_not_landed_before_all_that_was_enqueued_is_done(slow: int) -> None:
    """Its copies in, of which there may be fewer than inputs, and what it has computed."""
    bench = Bench(FakeDevice(memory_bytes=(1, 5)[slow] * BYTES))
    flight = bench.launch(1, 2, error=ValueError("no"), late=True)
    order = [stream for index, stream in enumerate(bench.device.streams) if index != slow]
    while any(bench.device.step(stream) for stream in order):
        assert not flight.reached()
    bench.device.run()
    assert flight.reached()


def test_a_computation_that_finds_the_device_sick_is_believed_at_once() -> None:
    bench = Bench()
    with pytest.raises(SickDeviceError, match="it has a cold"):
        bench.launch(1, error=SickDeviceError("it has a cold"))


def test_a_batch_whose_landing_is_not_reported_keeps_its_memory_until_it_is_over() -> None:
    """The server has stopped, say, and makes no callbacks any more: the device is still at it."""
    bench = Bench()
    bench.device.refuses_calls = True
    with pytest.raises(InternalError, match="no function is called"):
        bench.launch(1)
    assert not any(stream.waiting for stream in bench.device.streams)
    assert bench.used == (0, 0)
    bench.device.refuses_calls = False
    flight = bench.launch(2)
    bench.device.run()
    assert values_of(flight) == [2, 20]


def test_the_batches_around_one_that_failed_are_right() -> None:
    bench = Bench()
    first = bench.launch(1)
    failed = bench.launch(2, error=ValueError("no"), late=True)
    last = bench.launch(3)
    bench.device.run()
    assert bench.landed == [1, 2, 3]
    assert (values_of(first), values_of(last)) == ([1, 10], [3, 30])
    with pytest.raises(ValueError, match="no"):
        failed.collect(batch())


@pytest.mark.parametrize("arrays", range(4))
def test_memory_may_run_out_at_each_array(arrays: int) -> None:
    """Two inputs and two results are needed on the device; there is room for fewer."""
    bench = Bench(FakeDevice(memory_bytes=arrays * BYTES))
    flight = bench.launch(1, 2)
    bench.device.run()
    assert bench.landed == [1]
    with pytest.raises(OutOfDeviceMemoryError, match=r"bytes of device memory were asked for, \d+ are left"):
        flight.collect(batch())
    assert bench.used == (0, 0)


@pytest.mark.parametrize("arrays", [2, 3])
def test_pinned_memory_may_run_out_for_results(arrays: int) -> None:
    bench = Bench(FakeDevice(pinned_bytes=arrays * BYTES))
    flight = bench.launch(1, 2)
    bench.device.run()
    with pytest.raises(OutOfDeviceMemoryError, match="pinned memory"):
        flight.collect(batch())
    assert bench.used == (0, 0)


def uses_of_a_launch() -> int:
    """How often launching a batch uses the device."""
    uses = 0
    while True:
        bench = Bench()
        bench.launch(1)
        bench.device.sicken(after=uses)
        try:
            bench.launch(1)
            return uses
        except SickDeviceError:
            uses += 1


@pytest.mark.parametrize("step", range(2, uses_of_a_launch()))
def test_a_device_may_fall_ill_at_each_step(step: int) -> None:
    """The launch says so, the batch before it says so, and no callback is made. (Step 0 makes the inputs.)"""
    bench = Bench()
    flight = bench.launch(1)
    bench.device.sicken("it has a cold", after=step)
    with pytest.raises(SickDeviceError, match="it has a cold"):
        bench.launch(1)
    with pytest.raises(SickDeviceError, match="it has a cold"):
        flight.reached()
    bench.device.run()
    assert not bench.landed


def test_a_device_that_falls_ill_while_a_failure_is_cleared_up_is_sick() -> None:
    bench = Bench()
    with pytest.raises(SickDeviceError) as raised:
        bench.pipeline.launch([], lambda _stream, _arrays: fall_ill(bench.device), lambda: None)
    assert isinstance(raised.value.__context__, ValueError)


def fall_ill(device: FakeDevice) -> list[FakeArray]:
    device.sicken()
    raise ValueError("it does not matter")


# -- any order -------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """Batches, each with its input values and whether it fails; and what happens, in order: a number of a stream that
    does its next piece of work, or -1 for the next launch."""

    batches: list[tuple[list[int], str]]
    steps: list[int]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    values = st.lists(st.integers(1, 9), min_size=1, max_size=3)
    kinds = st.sampled_from(["right", "right", "right", "early", "late"])
    batches = draw(st.lists(st.tuples(values, kinds), min_size=1, max_size=5))
    return Plan(batches, draw(st.lists(st.integers(-1, 2), max_size=60)))


@settings(deadline=None)
@given(plans(), st.integers(1, 3))
def test_batches_are_right_whatever_the_streams_speeds_are(plan: Plan, at_once: int) -> None:
    """Memory is reused as soon as it is given back, so a batch that is released too early spoils another one."""
    bench = Bench()
    device = bench.device
    flights: list[Flight] = []
    waiting = list(plan.batches)
    collected = 0

    def launch() -> None:
        values, kind = waiting.pop(0)
        error = None if kind == "right" else ValueError(kind)
        flights.append(bench.launch(*values, error=error, late=kind == "late"))

    def collect() -> None:
        nonlocal collected
        while collected < len(bench.landed):
            flight, (values, kind) = flights[collected], plan.batches[collected]
            assert flight.reached()
            if kind == "right":
                assert values_of(flight) == [sum(values), 10 * values[0]]
            else:
                with pytest.raises(ValueError, match=kind):
                    flight.collect(batch())
            collected += 1

    for step in plan.steps:
        if step >= 0:
            device.step(device.streams[step])
        elif waiting and len(flights) - collected < at_once:
            launch()
        collect()
    while waiting or collected < len(flights):
        while waiting and len(flights) - collected < at_once:
            launch()
        device.run()
        collect()
    assert bench.landed == list(range(1, len(plan.batches) + 1))
    flights.clear()
    assert bench.used == (0, 0)
    assert not device.misuses
