"""Captures of CUDA graphs: what fails leaves nothing behind, and no thread breaks one, on strict stand-ins."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy, fake_driver
from fake_gpu import FakeGpus, Operation
from fake_torch_cuda import FakeTorch

from trireme.engine.errors import InternalError
from trireme.engine.gpu.cuda_device import Captures
from trireme.engine.gpu.cupy_device import CupyDevices
from trireme.engine.gpu.torch_device import TorchDevice, TorchDevices

FLOAT = np.dtype(np.float32)
PATIENCE_S = 10


@pytest.fixture
def fake() -> FakeTorch:
    return FakeTorch(FakeGpus(count=2, seed=7))


@pytest.fixture
def captures() -> Captures:
    return Captures()


@pytest.fixture
def gpu(fake: FakeTorch, captures: Captures) -> TorchDevice:
    return TorchDevices(load=lambda: fake, load_driver=lambda: fake.driver, captures=captures).get(1)


def zeros(gpu: TorchDevice, stream: Any) -> Any:
    with stream.active():
        return gpu.empty((1,), FLOAT).zero_()


class Capturing:
    """Another thread, in the midst of a capture."""

    def __init__(self, capture: Callable[[Callable[[], None]], Any]) -> None:
        self._begun, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._capture, args=(capture,), daemon=True)
        self.graph: Any = None
        self.error: BaseException | None = None

    def _capture(self, capture: Callable[[Callable[[], None]], Any]) -> None:
        try:
            self.graph = capture(self._work)
        except BaseException as error:  # noqa: BLE001 - for the test, which is on another thread
            self.error = error

    def _work(self) -> None:
        self._begun.set()
        assert self._over.wait(PATIENCE_S)

    def __enter__(self) -> Capturing:
        self._thread.start()
        assert self._begun.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


# What a failed capture leaves behind


def test_after_a_failed_capture_torch_records_no_more_and_its_pool_is_released(
    fake: FakeTorch, gpu: TorchDevice
) -> None:
    stream = gpu.stream()
    total = zeros(gpu, stream)
    for _ in range(3):
        with pytest.raises(InternalError, match="operation not permitted when stream is capturing"):
            gpu.capture(stream, lambda: total.item())
    assert not fake.cuda.recording
    assert set(fake.cuda.pool_users.values()) == {0}
    fake.cuda.empty_cache()
    graph = gpu.capture(stream, lambda: total.add_(1))
    graph.launch(stream)
    back = stream.download(total)
    fake.gpus.run()
    assert back.tolist() == [1]


def test_what_is_raised_without_breaking_the_capture_leaves_nothing_behind_either(
    fake: FakeTorch, gpu: TorchDevice
) -> None:
    stream = gpu.stream()

    def work() -> None:
        raise ValueError("a mistake of the model's")

    with pytest.raises(ValueError, match="a mistake"):
        gpu.capture(stream, work)
    assert not fake.cuda.recording
    assert set(fake.cuda.pool_users.values()) == {0}


def test_a_capture_that_cannot_be_cleaned_up_is_the_last_one_of_the_process(
    fake: FakeTorch, gpu: TorchDevice, captures: Captures, caplog: pytest.LogCaptureFixture
) -> None:
    stream = gpu.stream()
    total = zeros(gpu, stream)
    fake._C._cuda_endAllocateToPool = _refuse
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError, match="unable to capture"):
        gpu.capture(stream, lambda: total.item())
    assert "no CUDA graph is captured any more until the server is started again: one has failed" in caplog.text
    with pytest.raises(InternalError, match="no CUDA graph is captured in this process any more"):
        gpu.capture(gpu.stream(), lambda: total.add_(1))
    cupy = CupyDevices(load=lambda: FakeCupy(fake.gpus), load_driver=lambda: fake_driver(fake.gpus), captures=captures)
    with pytest.raises(InternalError, match="no CUDA graph is captured in this process any more"):
        cupy.get(0).capture(cupy.get(0).stream(), lambda: None)
    back = stream.download(total)
    fake.gpus.run()
    assert back.tolist() == [0], "the device serves on"


def _refuse(device: int, pool: object) -> None:
    raise RuntimeError("not this time")


# What others do meanwhile


def test_memory_goes_back_to_the_driver_when_no_capture_is_underway(fake: FakeTorch, gpu: TorchDevice) -> None:
    stream = gpu.stream()
    total = zeros(gpu, stream)
    emptied = threading.Event()
    with Capturing(lambda work: gpu.capture(stream, lambda: (work(), total.add_(1))[0])) as capturing:
        before = fake.emptied
        gpu.give_back(wait=False)
        assert fake.emptied == before, "it would break the capture"
        other = threading.Thread(target=lambda: (gpu.give_back(), emptied.set()), daemon=True)
        other.start()
        assert not emptied.is_set()
    assert emptied.wait(PATIENCE_S)
    assert capturing.error is None
    gpu.give_back(wait=False)
    assert fake.emptied == before + 2


def test_an_instance_is_made_while_another_one_captures(fake: FakeTorch, gpu: TorchDevice) -> None:
    """It waits on the device for what was loaded, and for the whole device never."""
    for _ in range(20):  # streams take turns in any order
        stream, mine = gpu.stream(), gpu.stream()
        with Capturing(lambda work, stream=stream: gpu.capture(stream, work)) as capturing:
            weights = zeros_by_default(fake)
            gpu.loaded(mine)
            with mine.active():
                weights.add_(1)
        back = mine.download(weights)
        fake.gpus.run()
        assert capturing.error is None
        assert back.tolist() == [1]


def zeros_by_default(fake: FakeTorch) -> Any:
    """Made on torch's default stream, as what is loaded is."""
    with fake.cuda.device(1):
        return fake.empty((1,), dtype=fake.float32, device=fake.device("cuda", 1)).zero_()


def test_torch_and_cupy_capture_one_after_the_other(fake: FakeTorch, gpu: TorchDevice, captures: Captures) -> None:
    """Before a capture torch waits for its device, and gives back the memory of all: so it would break cupy's."""
    library = FakeCupy(fake.gpus)
    cupy = CupyDevices(load=lambda: library, load_driver=lambda: fake_driver(fake.gpus), captures=captures).get(1)
    mine, stream = cupy.stream(), gpu.stream()
    total = zeros(gpu, stream)

    def enqueue(work: Callable[[], None]) -> None:
        work()
        fake.gpus.enqueue(mine.handle, Operation("kernel", lambda: None))

    made: list[Any] = []
    with Capturing(lambda work: cupy.capture(mine, lambda: enqueue(work))) as capturing:
        other = threading.Thread(target=lambda: made.append(gpu.capture(stream, lambda: total.add_(1))), daemon=True)
        other.start()
    other.join(PATIENCE_S)
    assert capturing.error is None
    assert len(made) == 1


# What the capturing thread asks


def test_a_failure_amid_a_capture_asks_no_stream(fake: FakeTorch, gpu: TorchDevice) -> None:
    """That would break the capture, and the answer would be taken for that of a sick device."""
    stream = gpu.stream()
    total = zeros(gpu, stream)

    def work() -> None:
        with pytest.raises(RuntimeError, match="mine alone"), gpu.errors():
            raise RuntimeError("CUDA error: mine alone")
        total.add_(1)

    gpu.capture(stream, work).launch(stream)
    back = stream.download(total)
    fake.gpus.run()
    assert back.tolist() == [1]


def test_a_failure_amid_a_capture_by_cupy_asks_no_stream() -> None:
    gpus = FakeGpus(count=1)
    cupy = CupyDevices(load=lambda: FakeCupy(gpus), load_driver=lambda: fake_driver(gpus)).get(0)
    stream = cupy.stream()

    def work() -> None:
        assert isinstance(cupy.failure(719, "unspecified launch failure"), InternalError)
        gpus.enqueue(stream.handle, Operation("kernel", lambda: None))

    cupy.capture(stream, work).launch(stream)
    gpus.run()
    assert gpus.done.count("kernel") == 1
