"""A GPU by cupy, on a stand-in for it that does everything late: what is promised by `trireme.engine.gpu.device`."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fake_cupy import CUDARuntimeError, FakeCupy, fake_driver
from fake_gpu import EARLY, FakeGpus, Misuse, Operation

from trireme.engine.clock import SystemClock
from trireme.engine.errors import InternalError, UnavailableError
from trireme.engine.gpu.cupy_device import CupyDevice, CupyDevices, CupyStream
from trireme.engine.gpu.device import Device, DeviceStream, OutOfDeviceMemoryError, SickDeviceError
from trireme.engine.gpu.pinned_pool import PinnedPool, is_pinned
from trireme.engine.gpu.pipeline import GpuPipeline
from trireme.engine.job import ExecutionBatch

F32 = np.dtype(np.float32)
EARLY_FLOAT = float(np.frombuffer(bytes([EARLY] * 4), F32)[0])


def fake_devices(gpus: FakeGpus, **limits: Any) -> CupyDevices:
    cupy = FakeCupy(gpus)
    return CupyDevices(load=lambda: cupy, load_driver=lambda: fake_driver(gpus), **limits)


@pytest.fixture
def gpus() -> FakeGpus:
    return FakeGpus(count=2)


@pytest.fixture
def devices(gpus: FakeGpus) -> CupyDevices:
    return fake_devices(gpus)


@pytest.fixture
def device(devices: CupyDevices) -> CupyDevice:
    return devices.get(1)


def pinned(device: CupyDevice, values: Any) -> np.ndarray:
    source = np.asarray(values, np.float32)
    array = device.pinned(source.shape, source.dtype)
    array[...] = source
    return array


def kernel(gpus: FakeGpus, function: Callable[[np.ndarray], Any]) -> Any:
    """A computation as `GpuPipeline` takes it: `function` of the one input, done late."""

    def compute(stream: DeviceStream, inputs: Sequence[Any]) -> list[Any]:
        (source,) = inputs
        target = device_of(stream).empty(source.shape, source.dtype)

        def run() -> None:
            values = gpus.memory(source.data.ptr, source.nbytes).view(source.dtype)
            gpus.memory(target.data.ptr, target.nbytes).view(target.dtype)[:] = function(values)

        gpus.enqueue(stream.handle, Operation("kernel", run))
        return [target]

    return compute


def batch() -> ExecutionBatch:
    return ExecutionBatch([], "m_0", SystemClock())


def device_of(stream: Any) -> CupyDevice:
    return stream._device


def test_it_is_a_device(device: CupyDevice) -> None:
    as_device: Device = device  # checked by pyright
    assert as_device.index == 1
    assert device.stream().handle != device.stream().handle


def test_streams_outlive_those_who_have_them(gpus: FakeGpus, device: CupyDevice) -> None:
    """A library may still have the handle. It is not handed out before."""
    first, second, urgent = device.stream(), device.stream(), device.stream(-1)
    handle = first.handle
    del first
    assert gpus.stream(handle).device == 1
    assert device.stream(-1).handle not in (handle, urgent.handle)
    assert (device.stream().handle, second.handle) == (handle, second.handle)


def test_a_device_is_made_once(devices: CupyDevices) -> None:
    assert devices.get(0) is devices.get(0)
    assert devices.get(0) is not devices.get(1)


def test_copies_are_done_when_the_stream_comes_to_them(gpus: FakeGpus, device: CupyDevice) -> None:
    stream = device.stream()
    host = pinned(device, [[1, 2], [3, 4]])
    array = stream.upload(host)
    back = stream.download(array)
    assert (array.shape, back.shape, back.dtype) == ((2, 2), (2, 2), F32)
    assert (back.view(np.uint8) == EARLY).all(), "nothing has been done yet"
    gpus.run()
    assert back.tolist() == [[1, 2], [3, 4]]


def test_empty_arrays_and_scalars_are_copied_too(gpus: FakeGpus, device: CupyDevice) -> None:
    stream = device.stream()
    for shape in ((0, 3), ()):
        host = device.pinned(shape, F32)
        host[...] = 5
        back = stream.download(stream.upload(host))
        gpus.run()
        assert back.shape == shape
        assert (back == 5).all()


def test_an_array_with_gaps_is_refused(device: CupyDevice) -> None:
    with pytest.raises(InternalError, match="without gaps"):
        device.stream().upload(device.pinned((4, 4), F32)[:, ::2])


def test_memory_that_is_not_pinned_is_caught_by_the_stand_in(device: CupyDevice) -> None:
    with pytest.raises(Misuse):
        device.stream().upload(np.zeros(4, np.float32))


def test_a_stream_waits_for_an_event_of_another_one(gpus: FakeGpus, device: CupyDevice) -> None:
    first, second = device.stream(), device.stream()
    host = pinned(device, [1, 2])
    array = first.upload(host)
    second.wait(first.record())
    back = second.download(array)
    gpus.run()
    assert back.tolist() == [1, 2]
    assert gpus.done.index("copy in") < gpus.done.index("copy out")


def test_events_tell_when_they_are_reached_and_how_far_apart(gpus: FakeGpus, device: CupyDevice) -> None:
    stream = device.stream()
    start = stream.record()
    held = stream.upload(pinned(device, np.zeros(10_000)))
    end = stream.record()
    gpus.advance()
    assert (start.reached(), end.reached()) == (True, False)
    with pytest.raises(InternalError):
        start.elapsed_ns(end)
    gpus.run()
    assert end.reached()
    assert start.elapsed_ns(end) == 5000, f"a step, and {held.nbytes} bytes"


def test_a_function_is_called_behind_what_was_enqueued_before_it(gpus: FakeGpus, device: CupyDevice) -> None:
    stream = device.stream()
    said: queue.SimpleQueue[float] = queue.SimpleQueue()
    host = pinned(device, [3])
    back = stream.download(stream.upload(host))
    stream.call(lambda: said.put(back[0]))
    assert said.empty()
    gpus.run()
    assert said.get(timeout=10) == 3


def test_the_thread_keeps_its_current_device(gpus: FakeGpus, devices: CupyDevices) -> None:
    cupy = devices.get(0)._cupy
    with cupy.cuda.Device(0):
        devices.get(1).stream().record()
        assert cupy.cuda._current() == 0


def test_two_batches_on_their_way_do_not_mix(gpus: FakeGpus, device: CupyDevice) -> None:
    """Memory of the first one, given back too early, would be the second one's: the pool gives it again at once."""
    pipeline = GpuPipeline(device)
    landed: queue.SimpleQueue[int] = queue.SimpleQueue()
    flights = [
        pipeline.launch([pinned(device, [at, at + 10])], kernel(gpus, lambda x: x * 2), lambda at=at: landed.put(at))
        for at in range(4)
    ]
    assert not any(flight.reached() for flight in flights)
    gpus.run()
    assert [landed.get(timeout=10) for _ in range(4)] == [0, 1, 2, 3]
    assert [flight.collect(batch())[0].tolist() for flight in flights] == [[2 * at, 2 * at + 20] for at in range(4)]


def test_the_copies_of_a_batch_may_overlap_the_computation_of_another() -> None:
    """Whatever order the device does it in, nothing but events holds a stream up."""
    orders = set()
    for seed in range(20):
        gpus = FakeGpus(seed=seed)
        device = fake_devices(gpus).get(0)
        pipeline = GpuPipeline(device)
        flights = [pipeline.launch([pinned(device, [at])], kernel(gpus, lambda x: x), lambda: None) for at in range(2)]
        gpus.run()
        assert [flight.collect(batch())[0].tolist() for flight in flights] == [[0], [1]]
        orders.add(tuple(name for name in gpus.done if name in ("copy in", "kernel", "copy out")))
    assert ("copy in", "copy in", "kernel", "copy out", "kernel", "copy out") in orders
    assert ("copy in", "kernel", "copy in", "kernel", "copy out", "copy out") in orders


def test_memory_goes_back_when_a_batch_has_landed(gpus: FakeGpus) -> None:
    pool = PinnedPool()
    device = fake_devices(gpus, pinned=pool).get(1)
    pipeline = GpuPipeline(device)
    before = pool.used_bytes
    for _ in range(20):
        flight = pipeline.launch([pinned(device, np.zeros(1000))], kernel(gpus, lambda x: x), lambda: None)
        gpus.run()
        flight.collect(batch())
    used = sum(device._pool._totals.values())
    assert used <= 3 * 4096, "no batch needs more than the first"
    flight = None
    assert pool.used_bytes == before


def test_a_graph_is_captured_once_and_launched_often(gpus: FakeGpus, device: CupyDevice) -> None:
    stream = device.stream()
    host = pinned(device, [1])
    array = stream.upload(host)

    def double() -> None:
        def run() -> None:
            gpus.memory(array.data.ptr, 4).view(np.float32)[:] *= 2

        gpus.enqueue(stream.handle, Operation("kernel", run))

    graph = device.capture(stream, double)
    gpus.run()
    assert "kernel" not in gpus.done, "captured, not done"
    for _ in range(3):
        graph.launch(stream)
    back = stream.download(array)
    gpus.run()
    assert back.tolist() == [8]


def test_a_capture_that_fails_leaves_the_stream_usable(gpus: FakeGpus, device: CupyDevice) -> None:
    stream = device.stream()

    def fail() -> None:
        stream.record()
        raise ValueError("not this")

    with pytest.raises(ValueError, match="not this"):
        device.capture(stream, fail)
    host = pinned(device, [4])
    back = stream.download(stream.upload(host))
    gpus.run()
    assert back.tolist() == [4]


def test_what_cannot_be_captured_is_an_error_that_says_so(device: CupyDevice) -> None:
    stream = device.stream()
    with pytest.raises(InternalError, match="GPU 1: cudaError904"):
        device.capture(stream, lambda: stream.record() and None)


def test_an_array_is_copied_into_another_one_on_the_device(gpus: FakeGpus, device: CupyDevice) -> None:
    stream = device.stream()
    host = pinned(device, [1, 2])
    source, target = stream.upload(host), device.empty((2,), F32)
    stream.copy(source, target)
    back = stream.download(target)
    assert device.address(source) != device.address(target)
    gpus.run()
    assert back.tolist() == [1, 2]
    with pytest.raises(InternalError, match="of equal size"):
        stream.copy(source, device.empty((3,), F32))


def test_memory_of_a_library_is_seen_as_an_array(gpus: FakeGpus, device: CupyDevice) -> None:
    address = gpus.allocate(1, 8)
    gpus.memory(address, 8).view(np.float32)[:] = [5, 6]
    owner = object()
    array = device.view(address, (2,), F32, owner)
    back = device.stream().download(array)
    gpus.run()
    assert back.tolist() == [5, 6]


# When it goes wrong


def test_a_device_without_memory_says_how_much_there_is(gpus: FakeGpus) -> None:
    device = fake_devices(gpus, device_bytes={0: 8192}).get(0)
    held = device.empty((4096,), np.dtype(np.uint8))
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        device.empty((8192,), np.dtype(np.uint8))
    assert caught.value.message == (
        "GPU 0: Out of memory allocating 8,192 bytes (allocated so far: 4,096 bytes, limit set to: 8,192 bytes)."
    )
    assert device.empty((4096,), np.dtype(np.uint8)).shape == held.shape


def test_the_limit_of_pinned_memory_holds_for_all_devices_together(gpus: FakeGpus) -> None:
    devices = fake_devices(gpus, pinned=PinnedPool(8192))
    held = devices.get(0).pinned((4096,), np.dtype(np.uint8)), devices.get(1).pinned((4096,), np.dtype(np.uint8))
    assert not is_pinned(devices.get(1).pinned((1,), np.dtype(np.uint8)))
    assert all(map(is_pinned, held))


def test_copies_are_right_where_pinned_memory_has_run_out(gpus: FakeGpus) -> None:
    """Slower, for they are waited for; but no model's batch fails because of what another model's clients hold."""
    device, gpus.pageable = fake_devices(gpus, pinned=PinnedPool(0)).get(1), 0
    stream = device.stream()
    host = pinned(device, [1, 2])
    array = stream.upload(host)
    host[...] = 9
    back = stream.download(array)
    assert back.tolist() == [1, 2]
    assert gpus.pageable == 2


def test_a_driver_that_has_no_pinned_memory_left_fails_no_batch_either(gpus: FakeGpus) -> None:
    device, gpus.pageable = fake_devices(gpus).get(1), 0
    stream = device.stream()
    gpus.transient.append(2)
    array = stream.upload(pinned(device, [1, 2]))
    assert stream.download(array).tolist() == [EARLY_FLOAT] * 2
    gpus.run()
    assert gpus.pageable == 1


def test_a_sick_device_is_told_from_everything_that_is_asked_of_it(gpus: FakeGpus, device: CupyDevice) -> None:
    stream = device.stream()
    host = pinned(device, [1])
    array = stream.upload(host)
    event = stream.record()
    gpus.sick = 700
    asked: list[Callable[[], Any]] = [
        event.reached,
        stream.record,
        lambda: stream.wait(event),
        lambda: stream.upload(host),
        lambda: stream.download(array),
        lambda: stream.call(lambda: None),
        lambda: [device.stream() for _ in range(2)],
        lambda: device.capture(stream, lambda: None),
    ]
    for ask in asked:
        with pytest.raises(SickDeviceError, match=r"error 700|cudaError700|\(700\)"):
            ask()


def test_a_device_that_fails_when_it_is_left_is_sick_too(device: CupyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's device cannot be put back then; what went wrong before comes first."""

    def fail(*_: object) -> None:
        raise CUDARuntimeError(700)

    monkeypatch.setattr("fake_cupy.Device.__exit__", fail)
    with pytest.raises(SickDeviceError, match="GPU 1 has failed: cudaError700"), device.active():
        pass
    with pytest.raises(ValueError, match="before"), device.active():
        raise ValueError("before")


def test_a_wrong_call_is_no_sickness(device: CupyDevice) -> None:
    stream: CupyStream = device.stream()
    with device.active():
        stream.raw.begin_capture()
    with pytest.raises(InternalError) as caught:
        device.capture(stream, lambda: None)
    assert not isinstance(caught.value, SickDeviceError)


def test_a_gpu_that_is_not_there(devices: CupyDevices) -> None:
    with pytest.raises(UnavailableError) as caught:
        devices.get(2)
    assert caught.value.message == "there is no GPU 2: CUDA knows 2, numbered from 0"


def test_a_machine_without_gpus() -> None:
    with pytest.raises(UnavailableError, match=r"GPU 0 cannot be used: cudaError100.*is NVIDIA's driver installed\?"):
        CupyDevices(load=lambda: FakeCupy(FakeGpus(count=0))).get(0)


def test_a_machine_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(UnavailableError, match=r"GPUs need the package cupy: pip install trireme-server\[gpu\]"):
        CupyDevices().get(0)


def test_devices_are_asked_for_by_many_threads(devices: CupyDevices) -> None:
    found: list[CupyDevice] = []
    threads = [threading.Thread(target=lambda: found.append(devices.get(0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_an_error_about_one_call_is_not_taken_for_a_sick_device(gpus: FakeGpus, device: CupyDevice) -> None:
    """Not even if the first stream that is asked still tells of it."""
    stream = device.stream()
    for calls in (1, 2):
        gpus.transient.extend([719] * calls)
        with pytest.raises(InternalError, match="GPU 1: cudaError719") as caught:
            stream.record()
        assert not isinstance(caught.value, SickDeviceError)
    event = stream.record()
    gpus.transient.extend([719, 719])
    assert not event.reached()
    gpus.run()
    assert event.reached()


def test_events_are_used_again(gpus: FakeGpus, device: CupyDevice) -> None:
    first, second = device.stream(), device.stream()
    for _ in range(10):
        host = pinned(device, [1, 2])
        array = first.upload(host)
        second.wait(first.record())  # an event that is recorded again before the other stream has come to it
        first.record()
        back = second.download(array)
        gpus.run()
        assert back.tolist() == [1, 2]
    assert device._cupy.cuda.events_made == 1


def test_an_event_outlives_garbage_that_refers_to_it(gpus: FakeGpus, device: CupyDevice) -> None:
    """The collector would destroy it together with the garbage, which then gives it back."""
    stream = device.stream()
    circle: list[object] = [stream.record()]
    circle.append(circle)
    del circle
    gc.collect()
    event = stream.record()
    assert not event.reached()
    gpus.run()
    assert event.reached()
    assert device._cupy.cuda.events_made == 1
