"""A GPU through PyTorch, on a stand-in for ``torch.cuda`` that does everything late."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpus, Misuse
from fake_torch_cuda import FakeTorch

from trireme.engine.errors import InternalError, UnavailableError
from trireme.engine.gpu.device import OutOfDeviceMemoryError, SickDeviceError
from trireme.engine.gpu.host_callback import CallRefusedError
from trireme.engine.gpu.pinned_pool import PinnedPool, is_pinned
from trireme.engine.gpu.torch_device import TorchDevice, TorchDevices

FLOAT = np.dtype(np.float32)
SICK = 700


def devices(fake: FakeTorch, **limits: object) -> TorchDevices:
    return TorchDevices(load=lambda: fake, load_driver=lambda: fake.driver, **limits)  # type: ignore[arg-type]


@pytest.fixture
def fake() -> FakeTorch:
    return FakeTorch(FakeGpus(count=2, seed=7))


@pytest.fixture
def gpu(fake: FakeTorch) -> TorchDevice:
    return devices(fake).get(1)


def pinned(gpu: TorchDevice, values: object) -> np.ndarray:
    given = np.asarray(values)
    array = gpu.pinned(given.shape, given.dtype)
    array[...] = given
    return array


def test_a_device_is_made_once_and_only_if_torch_knows_it(fake: FakeTorch) -> None:
    known = devices(fake)
    assert known.get(1) is known.get(1)
    with pytest.raises(UnavailableError, match="there is no GPU 2: torch knows 2, numbered from 0"):
        known.get(2)
    with pytest.raises(UnavailableError, match="finds none: is it built for CUDA"):
        devices(FakeTorch(FakeGpus(count=0))).get(0)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_arrays_go_there_and_back_unchanged(fake: FakeTorch, gpu: TorchDevice, dtype: str) -> None:
    stream = gpu.stream()
    given = pinned(gpu, np.array([[0, 1, 1], [1, 0, 1]], dtype))
    there = stream.upload(given)
    assert there.device == torch.device("cuda", 1)
    back = stream.download(there)
    assert not np.array_equal(back, given), "nothing is copied yet"
    fake.gpus.run()
    assert back.dtype == given.dtype
    assert np.array_equal(back, given)


def test_empty_arrays_go_there_and_back(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream = gpu.stream()
    assert stream.download(stream.upload(gpu.pinned((0, 4), FLOAT))).shape == (0, 4)


def test_bfloat16_comes_down_as_unsigned_integers(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream = gpu.stream()
    given = pinned(gpu, np.array([1.0, 2.0], np.float32))
    with stream.active():
        halved = stream.upload(given).bfloat16()
    back = stream.download(halved)
    fake.gpus.run()
    assert back.dtype == np.uint16
    assert [hex(each) for each in back] == ["0x3f80", "0x4000"]


def test_memory_that_is_not_pinned_is_not_copied(gpu: TorchDevice) -> None:
    with pytest.raises(Misuse, match="not pinned"):
        gpu.stream().upload(np.ones(3, np.float32))


def test_a_driver_that_has_no_pinned_memory_left_fails_no_batch(
    fake: FakeTorch, gpu: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(fake, "empty", empty)
        host = gpu.pinned((2,), FLOAT)
    assert not is_pinned(host)
    host[...] = 1  # it can be used in the same way


def test_a_stream_that_does_not_wait_sees_nothing_and_one_that_does_sees_all(fake: FakeTorch, gpu: TorchDevice) -> None:
    first, second = gpu.stream(), gpu.stream(-1)
    given = pinned(gpu, np.ones(3, np.float32))
    there = first.upload(given)
    second.wait(first.record())
    back = second.download(there)
    fake.gpus.run()
    assert back.tolist() == [1, 1, 1]

    def race() -> None:
        for _ in range(20):  # in one of which the copy out comes first
            first.download(second.upload(given))
            fake.gpus.run()

    with pytest.raises(Misuse, match=r"has not been waited for|has been given back"):
        race()


def test_events_are_reached_late_and_tell_the_device_s_time(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream = gpu.stream()
    begun = stream.record()
    stream.upload(pinned(gpu, np.ones(3, np.float32)))
    over = stream.record()
    assert (begun.reached(), over.reached()) == (False, False)
    fake.gpus.run()
    assert over.reached()
    assert begun.elapsed_ns(over) == 1000


def test_room_on_the_device_can_be_copied_to(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream = gpu.stream()
    with stream.active():
        room = gpu.empty((2,), FLOAT)
    given = pinned(gpu, np.array([3.0, 4.0], np.float32))
    stream.copy(stream.upload(given), room)
    back = stream.download(room)
    fake.gpus.run()
    assert back.tolist() == [3.0, 4.0]


def test_a_stream_calls_a_function_when_it_has_come_so_far(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream, called = gpu.stream(), threading.Event()
    stream.call(called.set)
    assert not called.is_set()
    fake.gpus.run()
    assert called.wait(10)


def test_pinned_memory_is_used_again_when_nothing_refers_to_it(gpu: TorchDevice) -> None:
    array = gpu.pinned((8,), FLOAT)
    address, view = array.ctypes.data, array[2:].data
    del array
    gc.collect()
    assert gpu.pinned((8,), FLOAT).ctypes.data != address, "a view refers to it"
    del view
    gc.collect()
    assert gpu.pinned((8,), FLOAT).ctypes.data == address


def test_pinned_memory_has_a_limit(fake: FakeTorch) -> None:
    gpu = devices(fake, pinned=PinnedPool(8192)).get(0)
    held = gpu.pinned((4096,), np.dtype(np.uint8))
    assert not is_pinned(gpu.pinned((8192,), np.dtype(np.uint8)))
    assert is_pinned(held)


def test_copies_are_right_where_pinned_memory_has_run_out(fake: FakeTorch) -> None:
    """Slower, for they are waited for; but no model's batch fails because of what another model's clients hold."""
    gpu, fake.gpus.pageable = devices(fake, pinned=PinnedPool(0)).get(0), 0
    stream = gpu.stream()
    host = pinned(gpu, np.array([1, 2], np.float32))
    there = stream.upload(host)
    host[...] = 9
    back = stream.download(there)
    assert back.tolist() == [1, 2]
    assert fake.gpus.pageable == 2


def test_the_device_s_memory_has_a_limit(fake: FakeTorch) -> None:
    gpu = devices(fake, device_bytes={0: 1 << 20}).get(0)
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        gpu.empty((1 << 19,), FLOAT)
    assert str(caught.value) == "GPU 0 has no memory left: CUDA out of memory. Tried to allocate 2097152 bytes."
    assert gpu.empty((1 << 10,), FLOAT).shape == (1 << 10,), "the device is well"


def test_the_limit_is_for_batches_and_not_for_what_is_loaded(fake: FakeTorch) -> None:
    gpu = devices(fake, device_bytes={0: 4096}).get(0)

    class Model:
        def __init__(self) -> None:
            self.weights = gpu.empty((1 << 14,), FLOAT)

    model = gpu.load(Model)
    batch = gpu.empty((1000,), FLOAT)
    with pytest.raises(OutOfDeviceMemoryError):
        gpu.empty((1000,), FLOAT)
    del model, batch
    gc.collect()
    with pytest.raises(OutOfDeviceMemoryError):
        gpu.empty((2000,), FLOAT)
    assert gpu.empty((1000,), FLOAT).shape == (1000,)


def test_what_is_dropped_while_something_is_loaded_neither_waits_nor_disturbs_it(fake: FakeTorch) -> None:
    """The garbage collector drops models wherever it runs: on the thread that loads, or on the event loop."""
    gpu = devices(fake, device_bytes={0: 4096}).get(0)

    class Model:
        def __init__(self, dropped: list[Model]) -> None:
            threads = [threading.Thread(target=dropped.pop, daemon=True) for _ in dropped[1:]]
            for thread in threads:
                thread.start()
                thread.join(5)
            self.waited = any(thread.is_alive() for thread in threads)
            dropped.clear()
            self.weights = gpu.empty((1 << 14,), FLOAT)

    models = [gpu.load(lambda: Model([])) for _ in range(2)]
    last = gpu.load(lambda: Model(models))
    assert not last.waited
    del last
    gc.collect()
    with pytest.raises(OutOfDeviceMemoryError):
        gpu.empty((2000,), FLOAT)
    assert gpu.empty((1000,), FLOAT).shape == (1000,)


def test_an_error_that_stays_is_a_sick_device_whatever_is_asked_of_it(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream = gpu.stream()
    host, event = pinned(gpu, np.ones(3, np.float32)), stream.record()
    fake.gpus.sick = SICK
    for call in (
        stream.record,
        event.reached,
        lambda: stream.wait(event),
        lambda: stream.upload(host),
        lambda: stream.call(lambda: None),
        gpu.stream,
        gpu.give_back,
        stream.drain,
    ):
        with pytest.raises(SickDeviceError, match="an illegal memory access was encountered"):
            call()


def test_an_error_about_one_call_is_raised_as_it_is(fake: FakeTorch, gpu: TorchDevice) -> None:
    with pytest.raises(RuntimeError, match="invalid configuration argument"), gpu.errors():
        raise RuntimeError("CUDA error: invalid configuration argument")
    with pytest.raises(OutOfDeviceMemoryError, match=r"GPU 1: RuntimeError: CUDA out of memory. Tried"), gpu.errors():
        raise torch.jit.Error(
            "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript\n"
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB."
        )
    with pytest.raises(OutOfDeviceMemoryError, match=r"GPU 1: CUDA error: out of memory$"), gpu.errors():
        raise RuntimeError("CUDA error: out of memory\nwith advice")


def test_a_graph_does_its_work_only_when_it_is_launched_and_as_often(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream = gpu.stream()
    with stream.active():
        total = gpu.empty((2,), FLOAT).zero_()
    graph = gpu.capture(stream, lambda: total.add_(1))
    before = stream.download(total)
    graph.launch(stream)
    graph.launch(stream)
    after = stream.download(total)
    fake.gpus.run()
    assert (before.tolist(), after.tolist()) == ([0, 0], [2, 2])


def test_what_must_wait_for_the_device_cannot_be_captured_and_the_device_stays_well(
    fake: FakeTorch, gpu: TorchDevice
) -> None:
    stream = gpu.stream()
    with stream.active():
        total = gpu.empty((1,), FLOAT).zero_()
    with pytest.raises(InternalError, match="unable to capture a CUDA graph: CUDA error: operation not permitted"):
        gpu.capture(stream, lambda: total.item())
    assert gc.isenabled()
    back = stream.download(total)
    fake.gpus.run()
    assert back.tolist() == [0]


class _AnnouncedLock:
    """Says when it is wanted."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True) -> bool:
        self.asked.release()
        return self._lock.acquire(blocking)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_nothing_is_collected_in_the_middle_of_any_capture(fake: FakeTorch, gpu: TorchDevice) -> None:
    """Also of one that waited for another one to end."""
    begun, go_on = threading.Event(), threading.Event()
    gpu.captures._lock = lock = _AnnouncedLock()  # type: ignore[assignment]
    collecting: list[bool] = []

    def first() -> None:
        begun.set()
        assert go_on.wait(10)
        collecting.append(gc.isenabled())

    def second() -> None:
        collecting.append(gc.isenabled())

    threads = [threading.Thread(target=gpu.capture, args=(gpu.stream(), work), daemon=True) for work in (first, second)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    for _ in threads:
        assert lock.asked.acquire(timeout=10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert collecting == [False, False]
    assert gc.isenabled()


def test_no_two_streams_in_use_are_the_same_one(gpu: TorchDevice) -> None:
    """torch has 32 of a priority, and then begins again with those that are in use."""
    streams = [gpu.stream() for _ in range(100)]
    handles = {stream.handle for stream in streams}
    assert len(handles) == 100
    del streams
    assert gpu.stream(-1).handle not in handles
    again = [gpu.stream() for _ in range(100)]
    assert {stream.handle for stream in again} == handles


def test_an_error_about_one_call_is_not_taken_for_a_sick_device(fake: FakeTorch, gpu: TorchDevice) -> None:
    """Not even if the first stream that is asked still tells of it."""
    stream = gpu.stream()
    for calls in (1, 2):
        fake.gpus.transient.extend([719] * calls)
        with pytest.raises(RuntimeError, match="error 719"):
            stream.record()
    event = stream.record()
    fake.gpus.transient.extend([719, 719])
    assert not event.reached()
    fake.gpus.run()
    assert event.reached()


def test_a_refused_call_of_a_function_is_not_taken_for_a_sick_device(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream = gpu.stream()
    del fake.driver.streams[stream.handle]
    with pytest.raises(CallRefusedError, match="invalid resource handle"):
        stream.call(lambda: None)


def test_events_are_used_again(fake: FakeTorch, gpu: TorchDevice) -> None:
    first, second = gpu.stream(), gpu.stream()
    for _ in range(10):
        host = pinned(gpu, np.ones(3, np.float32))
        there = first.upload(host)
        second.wait(first.record())  # an event that is recorded again before the other stream has come to it
        first.record()
        back = second.download(there)
        fake.gpus.run()
        assert back.tolist() == [1, 1, 1]
    assert fake.cuda.events_made == 1
