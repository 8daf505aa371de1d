"""Outputs that clients want in a GPU's memory: copied there by the device, while it is at the batch."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from fake_cuda import EARLY, Allocation
from gpu_batches import LINEAR, PYTHON, ROWS, Gpu, Launched, Shared, write, x
from torch_modules import Moody, Scale

from trireme.engine.errors import TriremeError
from trireme.engine.gpu.device import SickDeviceError
from trireme.engine.memory.regions import RegionKind
from trireme.engine.memory.tensors import RegionTensor
from trireme.engine.request import InferenceResponse


def floats(allocation: Allocation) -> list[float]:
    return np.frombuffer(allocation.memory[16:], np.float32).tolist()


def outputs(launched: Launched) -> list[Any]:
    """What a batch that has landed has answered, without a look at the data."""
    launched.instance.collect(launched.batch, launched.launched)
    launched.launched = None
    answers = [outcome for _, outcome, _ in launched.batch.answers]
    launched.batch.answers.clear()
    return [answer.outputs[0] for answer in answers if isinstance(answer, InferenceResponse)]


def host_copies(gpu: Gpu) -> int:
    return gpu.fake.gpus.done.count("copy out")


def test_outputs_are_put_where_they_are_wanted_and_the_host_never_has_them(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    """Each at the start of its place, which may be longer; and nothing is there before the device has come so far."""
    script(Scale())
    instance = gpu.start(on_gpu())
    shared = Shared(gpu.fake.driver)
    (two, first), (one, second) = shared.place(12), shared.place(4)
    launched = gpu.launch(instance, x([1], [2]), x([3]), places=({"Y": first}, {"Y": second}))
    assert bytes(two.memory[16:]) == bytes([EARLY]) * 8 + bytes(4)
    gpu.fake.gpus.run()
    assert (floats(two), floats(one)) == ([2.0, 4.0, 0.0], [6.0])
    assert host_copies(gpu) == 0
    answers = outputs(launched)
    assert [(each.name, each.shape, each.nbytes) for each in answers] == [("Y", (2, 1), 8), ("Y", (1, 1), 4)]
    assert all(isinstance(each, RegionTensor) for each in answers)
    assert [each.array.tolist() for each in answers] == [[[2.0], [4.0]], [[6.0]]], "for late readers"


def test_a_batch_lands_when_its_outputs_are_in_place(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    """Not before: who hears of the landing answers the client."""
    script(Scale())
    instance = gpu.start(on_gpu())
    _, place = Shared(gpu.fake.driver).place(4)
    gpu.fake.gpus.run()
    gpu.fake.gpus.done.clear()
    launched = gpu.launch(instance, x([7]), places=({"Y": place},))
    gpu.fake.gpus.run()
    assert [name for name in gpu.fake.gpus.done if name in ("copy", "call")] == ["copy", "call", "call"]
    assert launched.collect()[0]["Y"].tolist() == [[14.0]]


def test_a_region_that_is_unregistered_is_held_until_the_device_has_done_with_it(
    gpu: Gpu, script: Any, on_gpu: Any
) -> None:
    script(Scale())
    instance = gpu.start(on_gpu())
    shared = Shared(gpu.fake.driver)
    allocation, place = shared.place(4)
    launched = gpu.launch(instance, x([7]), places=({"Y": place},))
    launched.jobs[0].request.output_places = None
    del place
    shared.regions.unregister(RegionKind.CUDA)
    gc.collect()
    assert gpu.fake.driver.mapped
    gpu.fake.gpus.run()
    outputs(launched)
    assert floats(allocation) == [14.0]
    gc.collect()
    assert not gpu.fake.driver.mapped


@pytest.mark.parametrize("why", ["too small", "other GPU", "other name", "nowhere", "cancelled", "traced"])
def test_one_output_that_must_go_to_the_host_takes_the_batch_along(
    gpu: Gpu, script: Any, on_gpu: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(Scale())
    instance = gpu.start(on_gpu())
    shared, elsewhere = Shared(gpu.fake.driver), Shared(gpu.fake.driver, gpu=1)
    allocation, first = shared.place(4)
    other, second = (elsewhere if why == "other GPU" else shared).place(3 if why == "too small" else 4)
    places = {"Z" if why == "other name" else "Y": second}
    real = instance._layout.gather

    def gather(jobs: Any, *rest: Any) -> Any:
        jobs[1].cancelled = why == "cancelled"
        jobs[1].request.trace = object() if why == "traced" else None
        return real(jobs, *rest)

    monkeypatch.setattr(instance._layout, "gather", gather)
    launched = gpu.launch(instance, x([1]), x([3]), places=({"Y": first}, None if why == "nowhere" else places))
    gpu.fake.gpus.run()
    assert host_copies(gpu) == 1
    answers = outputs(launched)
    assert not any(isinstance(each, RegionTensor) for each in answers)
    assert [each.array.tolist() for each in answers] == [[[2.0]], [[6.0]]]
    assert not any(allocation.memory)
    assert not any(other.memory), "the encoder of the answer writes there, or says what is wrong"


def test_a_place_that_the_driver_refuses_concerns_its_client_alone(
    gpu: Gpu, script: Any, on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(Scale())
    instance = gpu.start(on_gpu())
    shared = Shared(gpu.fake.driver)
    (_, first), (_, second) = shared.place(4), shared.place(4)
    copied: list[int] = []
    real = gpu.fake.driver.copy_off
    assert real is not None

    def copy_off(*arguments: Any) -> int:
        copied.append(1)
        return real(*arguments) if len(copied) == 1 else 1

    monkeypatch.setattr(gpu.fake.driver, "copy_off", copy_off)
    answers = gpu.launch(instance, x([1]), x([3]), places=({"Y": first}, {"Y": second}))
    gpu.fake.gpus.run()
    assert [each["Y"].tolist() for each in answers.collect()] == [[[2.0]], [[6.0]]]
    assert (len(copied), host_copies(gpu)) == (2, 1)


def test_answers_that_are_cached_are_read_on_the_host(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    instance = gpu.start(on_gpu(f"{ROWS} response_cache {{ enable: true }}"))
    allocation, place = Shared(gpu.fake.driver).place(4)
    launched = gpu.launch(instance, x([1]), places=({"Y": place},))
    gpu.fake.gpus.run()
    assert outputs(launched)[0].array.tolist() == [[2.0]]
    assert (host_copies(gpu), any(allocation.memory)) == (1, False)


def test_a_batch_that_fails_says_so_and_frees_what_it_held(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Moody())
    instance = gpu.start(on_gpu())
    shared = Shared(gpu.fake.driver)
    _, place = shared.place(4)
    launched = gpu.launch(instance, x([3]), places=({"Y": place},))
    gpu.fake.gpus.run()
    with pytest.raises(TriremeError, match="a bad day"):
        launched.collect()


def test_outputs_of_a_sick_device_are_lost(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    instance = gpu.start(on_gpu())
    _, place = Shared(gpu.fake.driver).place(4)
    launched = gpu.launch(instance, x([1]), places=({"Y": place},))
    gpu.fake.gpus.sick = 700
    with pytest.raises(SickDeviceError):
        instance.healthy(launched.launched)
    with pytest.raises(SickDeviceError):
        instance.collect(launched.batch, launched.launched)
    with pytest.raises(SickDeviceError):
        gpu.launch(instance, x([1]), places=({"Y": place},))


def test_several_rows_of_several_columns(gpu: Gpu, models: Any, on_gpu: Any) -> None:
    write(models, LINEAR.format(""))
    instance = gpu.start(on_gpu(PYTHON))
    shared = Shared(gpu.fake.driver)
    (one, first), (two, second) = shared.place(16), shared.place(8)
    launched = gpu.launch(instance, x([1, 0], [0, 1]), x([1, 1]), places=({"Y": first}, {"Y": second}))
    gpu.fake.gpus.run()
    outputs(launched)
    assert (floats(one), floats(two)) == ([1.0, 3.0, 2.0, 4.0], [3.0, 7.0])
    assert host_copies(gpu) == 0
