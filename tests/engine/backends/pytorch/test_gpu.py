"""PyTorch models on a GPU: the real PyTorch, on a stand-in for ``torch.cuda`` that does everything late."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gpu_batches import LINEAR, PYTHON, ROWS, Gpu, Shared, parameter, write, x
from torch_modules import AddSub, Keeper, Moody, RunningSum, Scale, Texts

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.backends.pytorch.backend import PyTorchInstance
from trireme.engine.datatypes import BYTES, FP32
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError
from trireme.engine.gpu.device import OutOfDeviceMemoryError, SickDeviceError
from trireme.engine.job import Phase
from trireme.engine.memory.regions import RegionKind
from trireme.engine.tensor import Tensor

# Batches


def test_requests_run_together_and_get_their_own_rows(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    instance = gpu.start(on_gpu())
    answers = gpu.run(instance, x([1], [2]), x([3]))
    assert [answer["Y"].tolist() for answer in answers] == [[[2.0], [4.0]], [[6.0]]]
    assert gpu.fake.gpus.done.count("copy in") == 1, "joined on the host"


def test_inputs_may_be_arrays_and_wire_bytes_in_one_batch(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    array = np.array([[5]], np.float32)
    made = {"X": Tensor("X", FP32, (1, 1), array=array)}
    answers = gpu.run(gpu.start(on_gpu()), x([1]), made)
    assert [answer["Y"].tolist() for answer in answers] == [[[2.0]], [[10.0]]]
    assert array.tolist() == [[5.0]]


def test_inputs_in_the_memory_of_the_gpu_stay_there(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    """They are copied by the device, and what they are in is held until then, also without another reference."""
    script(Scale())
    instance = gpu.start(on_gpu())
    shared = Shared(gpu.fake.driver)
    launched = gpu.launch(instance, shared.x([1], [2]), shared.x([3]))
    for job in launched.jobs:
        job.inputs = {}
    shared.regions.unregister(RegionKind.CUDA)
    gc.collect()
    gpu.fake.gpus.run()
    assert gpu.fake.gpus.done.count("copy in") == 0
    assert gpu.fake.gpus.done.count("copy") == 2
    assert [answer["Y"].tolist() for answer in launched.collect()] == [[[2.0], [4.0]], [[6.0]]]


def test_inputs_of_which_only_some_are_in_the_memory_of_the_gpu_are_joined_on_the_host(
    gpu: Gpu, script: Any, on_gpu: Any
) -> None:
    script(Scale())
    shared, elsewhere = Shared(gpu.fake.driver), Shared(gpu.fake.driver, gpu=1)
    instance = gpu.start(on_gpu())
    for first, second in ((shared.x([1]), x([3])), (shared.x([1]), elsewhere.x([3]))):
        answers = gpu.run(instance, first, second)
        assert [answer["Y"].tolist() for answer in answers] == [[[2.0]], [[6.0]]]
    assert gpu.fake.gpus.done.count("copy in") == 2


@pytest.mark.parametrize(("gpus", "expected"), [((1,), 1), ((0, 1), None)])
def test_a_model_says_on_which_gpu_it_takes_inputs_as_they_are(
    gpu: Gpu, models: Any, script: Any, on_gpu: Any, gpus: tuple[int, ...], expected: int | None
) -> None:
    script(Scale())
    config = on_gpu()
    config = replace(config, instance_group=(replace(config.instance_group[0], gpus=gpus),))
    assert PyTorchBackend({}).load(config, models.files).input_gpu == expected


def test_two_batches_in_flight_keep_to_themselves(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    instance = gpu.start(on_gpu())
    assert instance.credits == 2
    first, second = gpu.launch(instance, x([1], [2])), gpu.launch(instance, x([30], [40]))
    assert not gpu.fake.gpus.done.count("copy in"), "nothing has been done yet"
    gpu.fake.gpus.run()
    assert second.collect()[0]["Y"].tolist() == [[60.0], [80.0]]
    assert first.collect()[0]["Y"].tolist() == [[2.0], [4.0]]


def test_the_next_batch_may_be_copied_in_before_one_is_copied_out(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    """Streams take turns in any order; whatever that is, nothing gets mixed up."""
    script(Scale())
    instance = gpu.start(on_gpu())
    overlapped = 0
    for value in range(30):
        gpu.fake.gpus.done.clear()
        launched = [gpu.launch(instance, x([value])), gpu.launch(instance, x([-value]))]
        gpu.fake.gpus.run()
        copies = [name for name in gpu.fake.gpus.done if name.startswith("copy")]
        overlapped += copies == ["copy in", "copy in", "copy out", "copy out"]
        assert [each.collect()[0]["Y"].tolist() for each in launched] == [[[2.0 * value]], [[-2.0 * value]]]
    assert overlapped > 0


def test_what_a_model_keeps_and_writes_to_again_is_copied_out_as_it_was(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    """The next batch may be computed before the results of this one are copied out."""
    script(Keeper())
    instance = gpu.start(on_gpu())
    overtaken = 0
    for value in range(30):
        gpu.fake.gpus.done.clear()
        launched = [gpu.launch(instance, x([each, each])) for each in (value, value + 100)]
        gpu.fake.gpus.run()
        steps = gpu.fake.gpus.done
        overtaken += [step for step in steps if step.startswith("copy")][-2:] == ["copy out", "copy out"]
        assert [each.collect()[0]["Y"].tolist() for each in launched] == [
            [[10.0 * each] * 2] for each in (value, value + 100)
        ]
    assert overtaken > 0


def test_answers_hold_their_memory_and_all_other_memory_goes_back(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    instance = gpu.start(on_gpu())
    empty = gpu.fake.cuda.memory_allocated(0)
    (kept,) = gpu.run(instance, x([1], [2]))
    for value in range(5):
        gpu.run(instance, x([value], [value]))
    gc.collect()
    assert kept["Y"].tolist() == [[2.0], [4.0]]
    assert gpu.fake.cuda.memory_allocated(0) == empty


def test_the_device_tells_how_long_the_phases_took(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    launched = gpu.launch(gpu.start(on_gpu()), x([1]))
    launched.batch.mark(Phase.COMPUTE_START)
    gpu.fake.gpus.run()
    launched.collect()
    launched.batch.finish()
    marks = launched.batch.marks
    assert marks == sorted(marks)
    computed = sum(name.startswith("aten") for name in gpu.fake.gpus.done)
    assert marks[Phase.OUTPUT_START] - marks[Phase.INFER_START] == 1000 * computed, "by the stand-in's clock"


def test_a_model_without_a_batch_dimension(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(AddSub())
    tensors = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }} ' for name in ("A__0", "B__1"))
    tensors += "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }} ' for name in ("S__0", "D__1"))
    values = {"A__0": [5, 0], "B__1": [5, 1]}
    given = {name: Tensor(name, FP32, (2,), np.array(each, np.float32).tobytes()) for name, each in values.items()}
    (answer,) = gpu.run(gpu.start(on_gpu("", tensors)), given)
    assert (answer["S__0"].tolist(), answer["D__1"].tolist()) == ([10, 1], [0, -1])


def test_instances_are_on_the_gpu_that_they_are_told(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    instance = gpu.start(on_gpu(gpus="1"), index=1)
    assert (gpu.fake.cuda.memory_allocated(0), gpu.fake.cuda.memory_allocated(1)) == (0, 4)
    (answer,) = gpu.run(instance, x([4]))
    assert answer["Y"].tolist() == [[8.0]]


def test_a_gpu_that_is_not_there_is_a_load_error(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    with pytest.raises(InvalidArgumentError) as caught:
        gpu.start(on_gpu(gpus="7"), index=7)
    assert str(caught.value).startswith("unable to load model 'm', instance ")
    assert str(caught.value).endswith(" is to run on a GPU: there is no GPU 7: torch knows 2, numbered from 0")


# Python classes, parameters


def test_a_python_class_runs_there(gpu: Gpu, models: Any, on_gpu: Any) -> None:
    write(models, LINEAR.format(""))
    (answer,) = gpu.run(gpu.start(on_gpu(PYTHON)), x([1, 1]))
    assert answer["Y"].tolist() == [[3.0, 7.0]]


def test_mixed_precision_reaches_the_operators(gpu: Gpu, models: Any, on_gpu: Any) -> None:
    write(models, LINEAR.format(".float()"))
    text = PYTHON + parameter("AUTOMATIC_MIXED_PRECISION", "BF16")
    (answer,) = gpu.run(gpu.start(on_gpu(text)), x([1.01, 1]))
    assert answer["Y"].tolist() == [[3.0, 7.03125]], "rounded to 8 bits"


def test_gradients_are_never_kept(gpu: Gpu, models: Any, on_gpu: Any) -> None:
    write(models, LINEAR.format(""))
    text = PYTHON + parameter("INFERENCE_MODE", "false")
    (answer,) = gpu.run(gpu.start(on_gpu(text)), x([1, 1]))
    assert answer["Y"].tolist() == [[3.0, 7.0]]


@pytest.mark.parametrize(("value", "emptied"), [("true", 3), ("false", 0)])
def test_the_cache_is_cleaned_after_each_run_if_told(
    gpu: Gpu, script: Any, on_gpu: Any, value: str, emptied: int
) -> None:
    script(Scale())
    instance = gpu.start(on_gpu(ROWS + parameter("ENABLE_CACHE_CLEANING", value)))
    for _ in range(3):
        gpu.run(instance, x([1]))
    assert gpu.fake.emptied == emptied


@pytest.mark.parametrize(("value", "enabled"), [("true", False), ("false", True)])
def test_cudnn_is_off_while_a_model_runs_that_wants_it_off(
    gpu: Gpu, models: Any, on_gpu: Any, value: str, enabled: bool
) -> None:
    write(models, LINEAR.format(" * float(torch.backends.cudnn.enabled)"))
    instance = gpu.start(on_gpu(PYTHON + parameter("DISABLE_CUDNN", value)))
    (answer,) = gpu.run(instance, x([1, 1]))
    assert answer["Y"].tolist() == ([[3.0, 7.0]] if enabled else [[0.0, 0.0]])
    assert torch.backends.cudnn.enabled


def test_weights_are_shared_if_told(gpu: Gpu, script: Any, on_gpu: Any, models: Any) -> None:
    script(Scale())
    for value, weights in (("true", 4), ("false", 8)):
        before = gpu.fake.cuda.memory_allocated(0)
        loaded = PyTorchBackend({}).load(on_gpu(ROWS + parameter("ENABLE_WEIGHT_SHARING", value)), models.files)
        instances = [loaded.create_instance(InstanceSpec(f"m_{n}", "KIND_GPU")) for n in range(2)]
        assert gpu.fake.cuda.memory_allocated(0) - before == weights
        launched = [gpu.launch(instance, x([value])) for value, instance in enumerate(instances)]
        gpu.fake.gpus.run()
        assert [each.collect()[0]["Y"].tolist() for each in launched] == [[[0.0]], [[2.0]]]
        del instances, loaded, launched
        gc.collect()


def test_strings_go_the_blocking_way(gpu: Gpu, script: Any, on_gpu: Any, run_instance: Any) -> None:
    script(Texts())
    tensors = (
        'input { name: "text" data_type: TYPE_STRING dims: [ 1 ] } '
        'output { name: "Y" data_type: TYPE_STRING dims: [ 1 ] }'
    )
    instance = gpu.start(on_gpu("", tensors))
    assert isinstance(instance, PyTorchInstance)
    array = np.array([b"a"], object)
    (answer,) = run_instance(instance).run({"text": Tensor("text", BYTES, (1,), array=array)})
    assert answer["Y"].tolist() == [b"a!"]


def test_kind_model_goes_the_blocking_way_on_the_device_of_its_choice(
    gpu: Gpu, models: Any, pytorch_config: Any, run_instance: Any
) -> None:
    write(
        models,
        LINEAR.format("").replace("zero_()", "zero_()\n        self.to(torch.device('cuda', 1))"),
    )
    config = pytorch_config(PYTHON + "instance_group { kind: KIND_MODEL count: 1 }")
    instance = gpu.start(config, kind="KIND_MODEL")
    assert isinstance(instance, PyTorchInstance)
    assert gpu.fake.cuda.memory_allocated(1) > 0
    (answer,) = run_instance(instance).run(x([1, 1]))
    assert answer["Y"].tolist() == [[3.0, 7.0]]


# Implicit state


class _State:
    """A sequence's memory, as much of it as backends use."""

    def __init__(self) -> None:
        self.written: list[list[float]] = []

    def write(self, output: Tensor) -> None:
        self.written.append(output.array.ravel().tolist())


def test_states_are_there_when_a_batch_is_collected_one_at_a_time(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(RunningSum())
    tensors = (
        'input { name: "X__0" data_type: TYPE_FP32 dims: [ 1 ] } '
        'output { name: "SUM__0" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    text = ROWS + (
        "sequence_batching { "
        'control_input { name: "START__1" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } '
        'state { input_name: "OLD__2" output_name: "NEW__1" data_type: TYPE_FP32 dims: [ 1 ] } }'
    )
    instance = gpu.start(on_gpu(text, tensors))
    assert instance.credits == 1
    states = [_State(), _State()]

    def given(value: float, start: float, old: float) -> dict[str, Tensor]:
        values = {"X__0": value, "START__1": start, "OLD__2": old}
        return {
            name: Tensor(name, FP32, (1, 1), np.array([[each]], np.float32).tobytes()) for name, each in values.items()
        }

    answers = gpu.run(instance, given(5, 1, 100), given(7, 0, 100), states=states)
    assert [answer["SUM__0"].tolist() for answer in answers] == [[[5.0]], [[107.0]]]
    assert [state.written for state in states] == [[[5.0]], [[107.0]]]


# What goes wrong


def test_an_exception_fails_its_batch_when_the_device_is_done_with_it(gpu: Gpu, models: Any, on_gpu: Any) -> None:
    write(models, LINEAR.format(" if x.shape[0] > 1 else 1 / 0"))
    instance = gpu.start(on_gpu(PYTHON))
    bad, good = gpu.launch(instance, x([1, 1])), gpu.launch(instance, x([1, 1], [1, 1]))
    gpu.fake.gpus.run()
    with pytest.raises(InternalError, match=r"^PyTorch execute failure: division by zero$"):
        bad.collect()
    assert good.collect()[0]["Y"].tolist() == [[3.0, 7.0]] * 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "output 'Y' is a scalar which is not supported."),
        (2, "configuration expects datatype TYPE_FP32 for output 'Y', model provides TYPE_INT32"),
        (3, "a bad day"),
    ],
)
def test_outputs_are_held_to_the_configuration(gpu: Gpu, script: Any, on_gpu: Any, value: float, text: str) -> None:
    script(Moody())
    instance = gpu.start(on_gpu())
    with pytest.raises(TriremeError, match=text):
        gpu.run(instance, x([value]))
    assert gpu.run(instance, x([0]))[0]["Y"].tolist() == [[0.0]]


def test_a_batch_for_which_there_is_no_memory_fails_and_the_next_one_does_not(
    gpu: Gpu, models: Any, on_gpu: Any
) -> None:
    write(models, "import torch\nclass Double(torch.nn.Module):\n    def forward(self, x): return x * 2")
    instance = gpu.start(on_gpu(PYTHON))
    gpu.fake.cuda.set_per_process_memory_fraction(1024 / gpu.fake.gpus.memory_bytes, 0)
    large = gpu.launch(instance, x([1.0] * 200))
    gpu.fake.gpus.run()
    with pytest.raises(OutOfDeviceMemoryError, match=r"^GPU 0 has no memory left: CUDA out of memory"):
        large.collect()
    assert gpu.run(instance, x([1]))[0]["Y"].tolist() == [[2.0]]


def test_a_sick_device_is_seen_when_launching_and_when_waiting(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    instance = gpu.start(on_gpu())
    flying = gpu.launch(instance, x([1]))
    instance.healthy(flying.launched)
    gpu.fake.gpus.sick = 700
    with pytest.raises(SickDeviceError, match="restart the server: CUDA error: an illegal memory access"):
        instance.healthy(flying.launched)
    with pytest.raises(SickDeviceError):
        gpu.launch(instance, x([1]))
    with pytest.raises(SickDeviceError):
        instance.collect(flying.batch, flying.launched)
    instance.close()


def test_a_batch_that_is_too_large_is_refused(gpu: Gpu, script: Any, on_gpu: Any) -> None:
    script(Scale())
    with pytest.raises(InternalError, match="batch size 9 for 'm_0', max allowed is 8"):
        gpu.launch(gpu.start(on_gpu()), x(*[[1]] * 9))
