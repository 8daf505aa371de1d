"""The strict stand-in for a GPU is strict: what other tests rely on when they pass."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fake_device import FakeDevice, FakeStream, MisuseError, is_poison

from trireme.engine.errors import InternalError
from trireme.engine.gpu.device import Device, DeviceEvent, DeviceStream, Graph, OutOfDeviceMemoryError, SickDeviceError

FLOAT = np.dtype(np.float32)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def stream(device: FakeDevice) -> FakeStream:
    return device.stream()


def filled(device: FakeDevice, value: float, shape: tuple[int, ...] = (4,)) -> np.ndarray:
    array = device.pinned(shape, FLOAT)
    array[...] = value
    return array


def test_it_is_a_device(device: FakeDevice, stream: FakeStream) -> None:
    """The type checker says so; here are the names."""
    kept: tuple[Device, DeviceStream, DeviceEvent, Graph] = (
        device,
        stream,
        stream.record(),
        device.capture(stream, lambda: None),
    )
    assert all(kept)


def test_what_is_enqueued_is_done_late_and_in_order(device: FakeDevice, stream: FakeStream) -> None:
    source = filled(device, 3)
    array = stream.upload(source)
    stream.kernel(lambda x: np.multiply(x, 2, out=x), array)
    result = stream.download(array)
    assert is_poison(result)
    assert (result.shape, result.dtype) == ((4,), FLOAT)
    device.run()
    assert list(result) == [6, 6, 6, 6]
    assert list(source) == [3, 3, 3, 3]


def test_streams_side_by_side_know_nothing_of_each_other(device: FakeDevice, stream: FakeStream) -> None:
    array = stream.upload(filled(device, 3))
    other = device.stream()
    early = other.download(array)
    assert device.step(other)
    device.run()
    assert is_poison(early)


def test_an_event_holds_another_stream_up(device: FakeDevice, stream: FakeStream) -> None:
    source = filled(device, 3)
    array = stream.upload(source)
    event = stream.record()
    other = device.stream()
    other.wait(event)
    result = other.download(array)
    assert not device.step(other)
    assert not event.reached()
    device.run()
    assert event.reached()
    assert list(result) == list(source)


def test_time_passes_on_all_streams_at_once(device: FakeDevice) -> None:
    events = []
    for duration_ns in (100, 30):
        stream = device.stream()
        stream.kernel(lambda: None, duration_ns=duration_ns)
        begin = stream.record()
        stream.kernel(lambda: None, duration_ns=7)
        events.append((begin, stream.record()))
    device.advance(99)
    assert [begin.reached() for begin, _ in events] == [False, True]
    device.advance(8)
    assert [begin.elapsed_ns(end) for begin, end in events] == [7, 7]
    assert [end.at_ns for _, end in events] == [107, 37]


def test_time_between_events_that_were_not_reached_is_refused(device: FakeDevice, stream: FakeStream) -> None:
    first, second = stream.record(), stream.record()
    with pytest.raises(MisuseError, match="known when both were reached"):
        first.elapsed_ns(second)
    assert device.misuses


def test_host_memory_that_goes_back_early_is_copied_as_poison(device: FakeDevice, stream: FakeStream) -> None:
    array = stream.upload(filled(device, 3))
    result = stream.download(array)
    device.run()
    assert is_poison(result)


def test_device_memory_that_goes_back_early_is_the_next_ones(device: FakeDevice, stream: FakeStream) -> None:
    first, second = filled(device, 1), filled(device, 2)
    array = stream.upload(first)
    device.step(stream)
    result = stream.download(array)
    del array
    stream2 = device.stream()
    taken = stream2.upload(second)
    device.step(stream2)
    device.run()
    assert list(result) == [2] * 4
    assert taken.nbytes == device.memory.used_bytes


def test_a_view_keeps_pinned_memory_and_may_be_copied(device: FakeDevice, stream: FakeStream) -> None:
    view = filled(device, 5, (4, 2))[1:, ::2]
    array = stream.upload(view)
    result = stream.download(array)
    device.run()
    assert result.tolist() == [[5], [5], [5]]
    assert device.pinned_memory.used_bytes == 32 + 12
    del view, result, array
    assert device.pinned_memory.used_bytes == 0
    assert device.memory.used_bytes == 0


@pytest.mark.parametrize("elsewhere", [np.zeros(4, FLOAT), FakeDevice().pinned((4,), FLOAT)])
def test_memory_that_is_not_pinned_here_is_refused(
    device: FakeDevice, stream: FakeStream, elsewhere: np.ndarray
) -> None:
    with pytest.raises(MisuseError, match="not pinned"):
        stream.upload(elsewhere)


def test_memory_has_limits() -> None:
    device = FakeDevice(memory_bytes=20, pinned_bytes=40)
    stream = device.stream()
    source = filled(device, 1)
    first = stream.upload(source)
    with pytest.raises(OutOfDeviceMemoryError, match="16 bytes of device memory were asked for, 4 are left"):
        stream.upload(source)
    held = [stream.download(first)]
    with pytest.raises(OutOfDeviceMemoryError, match="16 bytes of pinned memory were asked for, 8 are left"):
        stream.download(first)
    held.clear()
    assert stream.download(first).shape == (4,)


def test_a_sick_device_refuses_everything_and_never_calls(device: FakeDevice, stream: FakeStream) -> None:
    called: list[int] = []
    event = stream.record()
    array = stream.upload(filled(device, 1))
    stream.call(lambda: called.append(1))
    pinned = filled(device, 1)
    device.sicken("it has a cold")
    device.run()
    device.advance(1000)
    assert not device.step(stream)
    assert not called
    for use in (
        event.reached,
        stream.record,
        lambda: stream.upload(pinned),
        lambda: stream.download(array),
        lambda: device.empty((1,), FLOAT),
        lambda: stream.call(lambda: None),
        lambda: stream.wait(event),
        lambda: device.pinned((1,), FLOAT),
        lambda: device.capture(stream, lambda: None),
        device.stream,
    ):
        with pytest.raises(SickDeviceError, match="it has a cold"):
            use()


def test_functions_are_called_on_a_thread_that_must_not_use_the_device(device: FakeDevice, stream: FakeStream) -> None:
    threads: list[str] = []

    def function() -> None:
        threads.append(threading.current_thread().name)
        with pytest.raises(MisuseError):
            stream.record()

    stream.call(function)
    device.run()
    assert threads == ["driver"]
    assert device.misuses == ["record: a function that a stream calls must not use the device"]


def test_a_graph_does_each_time_what_was_captured(device: FakeDevice, stream: FakeStream) -> None:
    x, y = device.empty((4,), FLOAT), device.empty((4,), FLOAT)

    def work() -> None:
        between = device.empty((4,), FLOAT)  # the graph's own, for as long as it lives
        stream.kernel(lambda a, b: np.add(a, 1, out=b), x, between)
        stream.kernel(lambda a, b: np.multiply(a, 2, out=b), between, y)

    graph = device.capture(stream, work)
    results = []
    for value in (1, 2):
        source = filled(device, value)
        stream.copy(stream.upload(source), x)
        graph.launch(stream)
        results.append(stream.download(y))
        device.run()
    assert [result[0] for result in results] == [4, 6]


@pytest.mark.parametrize("what", ["record", "wait", "call", "pinned"])
def test_what_cannot_be_captured_is_refused(device: FakeDevice, stream: FakeStream, what: str) -> None:
    event = stream.record()
    uses = {
        "record": stream.record,
        "wait": lambda: stream.wait(event),
        "call": lambda: stream.call(lambda: None),
        "pinned": lambda: device.pinned((1,), FLOAT),
    }
    with pytest.raises(InternalError, match="captur"):
        device.capture(stream, uses[what])
    assert stream.record(), "the capture is over"


def test_libraries_find_arrays_by_address_and_streams_by_handle(device: FakeDevice, stream: FakeStream) -> None:
    array = stream.upload(source := filled(device, 7))
    device.run()
    assert device.at(device.address(array), (4,), FLOAT).tolist() == source.tolist()
    assert device.stream_of(stream.handle) is stream
    with pytest.raises(MisuseError):
        device.at(1, (4,), FLOAT)
    assert not device.is_active
    with device.active():
        assert device.is_active
    assert not device.is_active
