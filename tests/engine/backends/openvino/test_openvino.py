"""OpenVINO models (docs/reference/backends.md#openvino), with the real OpenVINO on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import openvino
import pytest
from google.protobuf import text_format
from openvino import opset8 as ops

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.openvino import OpenVinoBackend
from trireme.engine.clock import SystemClock
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfig, ModelConfigMessage
from trireme.engine.config.sequence import sequence_batching
from trireme.engine.datatypes import BY_NAME, FP32
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest
from trireme.engine.scheduling.sequence.initial_state import state_layout

XY = 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }'

TYPES = {
    "BOOL": "boolean",
    "UINT8": "u8",
    "UINT16": "u16",
    "UINT32": "u32",
    "UINT64": "u64",
    "INT8": "i8",
    "INT16": "i16",
    "INT32": "i32",
    "INT64": "i64",
    "FP16": "f16",
    "FP32": "f32",
}


def config(text: str = "max_batch_size: 4", tensors: str = XY) -> ModelConfig:
    return model_config(text_format.Parse(f'name: "m" backend: "openvino" {tensors} {text}', ModelConfigMessage()))


def parameter(key: str, value: str) -> str:
    return f'max_batch_size: 4 parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.fixture
def double(models: Any) -> Callable[..., Path]:
    """Save Y = X + X, or Y = X where the sum is not to be had."""

    def save(shape: Sequence[int] = (-1, 4), kind: str = "f32") -> Path:
        x: Any = ops.parameter(list(shape), getattr(openvino.Type, kind), name="X")
        x.output(0).set_names({"X"})
        y: Any = ops.add(x, x) if kind.startswith(("f", "i")) else ops.reshape(x, ops.shape_of(x), False)
        y.output(0).set_names({"Y"})
        path = models.files.version_directory / "model.xml"
        make: Any = openvino.Model
        openvino.save_model(make([y], [x], "m"), path, compress_to_fp16=False)
        return path

    return save


@pytest.fixture
def begin(models: Any, run_instance: Any) -> Callable[..., Any]:
    def make(config: ModelConfig) -> Any:
        return run_instance(OpenVinoBackend({}).load(config, models.files).create_instance(InstanceSpec("m_0")))

    return make


def refusal(begin: Any, config: ModelConfig, kind: type[TriremeError] = InvalidArgumentError) -> str:
    with pytest.raises(kind) as caught:
        begin(config)
    return str(caught.value)


# Execution


def test_requests_run_together_and_get_their_own_rows(double: Any, begin: Any, tensor: Any) -> None:
    double()
    runner = begin(config())
    answers = runner.run(
        {"X": tensor("X", FP32, [[1, 2, 3, 4]] * 2)}, {"X": tensor("X", FP32, [[5, 6, 7, 8]])}, rows=[2, 1]
    )
    assert [answer["Y"].tolist() for answer in answers] == [[[2.0, 4.0, 6.0, 8.0]] * 2, [[10.0, 12.0, 14.0, 16.0]]]


def test_answers_stay_what_they_are_when_the_next_batch_runs(double: Any, begin: Any, tensor: Any) -> None:
    double()
    runner = begin(config())
    (first,) = runner.run({"X": tensor("X", FP32, [[1, 1, 1, 1]])})
    runner.run({"X": tensor("X", FP32, [[9, 9, 9, 9]])})
    assert first["Y"].tolist() == [[2.0] * 4]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_goes_through(double: Any, begin: Any, tensor: Any, name: str) -> None:
    double([-1], TYPES[name])
    text = XY.replace("[ 4 ]", "[ -1 ]").replace("FP32", name)
    (answer,) = begin(config("", text)).run({"X": tensor("X", BY_NAME[name], [0, 1, 1])})
    factor = 2 if TYPES[name][0] in "fi" else 1
    assert answer["Y"].dtype == BY_NAME[name].storage
    assert answer["Y"].astype(int).tolist() == [0, factor, factor]


@pytest.mark.parametrize("kind", ["f64", "bf16"])
def test_other_types_are_refused(double: Any, begin: Any, kind: str) -> None:
    double([-1], kind)
    text = refusal(begin, config("", XY.replace("4", "-1")), InternalError)
    assert text == f"unsupported datatype TYPE_{kind.upper()} for input 'X' for model 'm'"


def test_a_shape_that_the_model_cannot_take_fails_its_batch(double: Any, begin: Any, tensor: Any) -> None:
    double([-1, 4])
    runner = begin(config())
    with pytest.raises(InternalError, match=r"^openvino error: (?!Exception from)"):
        runner.run({"X": tensor("X", FP32, [[1, 2, 3]])})
    (answer,) = runner.run({"X": tensor("X", FP32, [[1, 2, 3, 4]])})
    assert answer["Y"].tolist() == [[2.0, 4.0, 6.0, 8.0]]


# A batch size of the model's own


def test_a_fixed_batch_is_met_exactly_or_padded(double: Any, begin: Any, tensor: Any) -> None:
    double([4, 4])
    rows = {"X": tensor("X", FP32, [[1, 2, 3, 4]] * 3)}
    with pytest.raises(InternalError) as caught:
        begin(config()).run(rows, rows=[3])
    assert str(caught.value) == (
        "expected requests with batch size '4', got '3'... this error can be avoided by setting 'ENABLE_BATCH_PADDING' "
        "parameter in model configuration to 'YES' at a performance cost."
    )
    (answer,) = begin(config(parameter("ENABLE_BATCH_PADDING", "yes"))).run(rows, rows=[3])
    assert answer["Y"].tolist() == [[2.0, 4.0, 6.0, 8.0]] * 3
    full = {"X": tensor("X", FP32, [[1, 2, 3, 4]] * 4)}
    (answer,) = begin(config()).run(full, rows=[4])
    assert answer["Y"].shape == (4, 4)


def test_the_configuration_may_give_the_model_its_shapes(double: Any, begin: Any, tensor: Any) -> None:
    double([1, 7])
    assert "the model expects 2 dimensions (shape [1,7])" in refusal(begin, config(""))
    (answer,) = begin(config(parameter("RESHAPE_IO_LAYERS", "YES"))).run({"X": tensor("X", FP32, [[1, 2, 3, 4]])})
    assert answer["Y"].tolist() == [[2.0, 4.0, 6.0, 8.0]]


# Files, names and parameters


def test_a_missing_file_is_named(begin: Any, models: Any) -> None:
    path = models.files.version_directory / "model.xml"
    assert refusal(begin, config(), UnavailableError) == f"unable to find '{path}' for model instance 'm'"


def test_a_file_that_is_no_model_is_refused(begin: Any, models: Any) -> None:
    (models.files.version_directory / "model.xml").write_text("rubbish")
    assert refusal(begin, config(), InternalError).startswith("openvino error: ")


def test_a_wrong_name_is_told_with_those_there_are(double: Any, begin: Any) -> None:
    double()
    assert refusal(begin, config(tensors=XY.replace('"X"', '"Z"'))) == (
        "unexpected inference input 'Z', allowed inputs are: X"
    )


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("PERFORMANCE_HINT", "Speed", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got speed"),
        ("INFERENCE_NUM_THREADS", "-1", "to be a non-negative number, got -1"),
        ("COMPILATION_NUM_THREADS", "many", "to be a non-negative number, got many"),
        ("NUM_STREAMS", "All", "to be either AUTO/NUMA/<int_value>, got all"),
        ("HINT_BF16", "no", "to be YES, got no"),
    ],
)
def test_wrong_parameters_are_load_errors(double: Any, begin: Any, key: str, value: str, text: str) -> None:
    double()
    assert refusal(begin, config(parameter(key, value))) == f"expected the parameter '{key}' {text}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("PERFORMANCE_HINT", "latency"),
        ("INFERENCE_NUM_THREADS", "1"),
        ("NUM_STREAMS", "AUTO"),
        ("HINT_BF16", "YES"),
        ("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"),
    ],
)
def test_right_parameters_are_taken_by_openvino(double: Any, begin: Any, tensor: Any, key: str, value: str) -> None:
    double()
    (answer,) = begin(config(parameter(key, value))).run({"X": tensor("X", FP32, [[1, 2, 3, 4]])})
    assert answer["Y"].tolist() == [[2.0, 4.0, 6.0, 8.0]]


def test_a_device_that_is_not_there_is_a_load_error(double: Any, begin: Any) -> None:
    double()
    assert refusal(begin, config(parameter("TARGET_DEVICE", "NPU")), InternalError).startswith("openvino error: ")


def test_instances_are_on_the_cpu(double: Any, begin: Any) -> None:
    double()
    text = refusal(begin, config("max_batch_size: 4 instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] }"))
    assert text == "unable to load model 'm', Triton OpenVINO backend supports only Kind CPU and AUTO"


def test_without_the_package_it_says_what_to_install(double: Any, begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    double()
    monkeypatch.setitem(sys.modules, "openvino", None)
    text = refusal(begin, config(), UnavailableError)
    assert text.startswith("the backend 'openvino' needs the package openvino: pip install trireme-server[openvino]")


# What the file tells


def test_an_incomplete_configuration_is_completed(double: Any, models: Any) -> None:
    double()
    completion = OpenVinoBackend({}).auto_complete(config("", ""), models.files)
    assert completion is not None
    assert (completion.max_batch_size, completion.dynamic_batching) == (4, True)
    assert [(tensor.name, tensor.datatype, tensor.dims) for tensor in completion.input] == [("X", FP32, (4,))]
    assert [(tensor.name, tensor.datatype, tensor.dims) for tensor in completion.output] == [("Y", FP32, (4,))]


def test_a_model_in_onnx_format_is_read_as_well(begin: Any, models: Any, repository_root: Path, tensor: Any) -> None:
    """The digits network answers through OpenVINO as it does through ONNX Runtime."""
    file = repository_root / "model_repository" / "digits" / "1" / "model.onnx"
    (models.files.version_directory / "model.onnx").write_bytes(file.read_bytes())
    text = (
        'input { name: "IMAGE" data_type: TYPE_FP32 dims: [ 8, 8 ] } '
        'output { name: "PROBABILITIES" data_type: TYPE_FP32 dims: [ 10 ] } default_model_filename: "model.onnx"'
    )
    images = np.random.default_rng(3).uniform(0, 16, (4, 8, 8)).astype(np.float32)
    (answer,) = begin(config(tensors=text)).run({"IMAGE": tensor("IMAGE", FP32, images)}, rows=[4])
    expected: Any = onnxruntime.InferenceSession(file).run(["PROBABILITIES"], {"IMAGE": images})[0]
    # On processors that have BF16 units OpenVINO uses them unless told otherwise.
    np.testing.assert_allclose(answer["PROBABILITIES"], expected, atol=0.02)


def test_what_a_sequence_leaves_behind_is_kept(models: Any, tensor: Any) -> None:
    """NEW = X + OLD, and Y = NEW + NEW."""
    x, old = (ops.parameter([-1, 1], openvino.Type.f32, name=name) for name in ("X", "OLD"))
    new: Any = ops.add(x, old)
    y: Any = ops.add(new, new)
    for node, name in ((x, "X"), (old, "OLD"), (new, "NEW"), (y, "Y")):
        node.output(0).set_names({name})
    make: Any = openvino.Model
    model = make([y, new], [x, old], "m")
    openvino.save_model(model, models.files.version_directory / "model.xml", compress_to_fp16=False)
    state = 'state { input_name: "OLD" output_name: "NEW" data_type: TYPE_FP32 dims: [ 1 ] }'
    made = config(f"max_batch_size: 4 sequence_batching {{ {state} }}", XY.replace("[ 4 ]", "[ 1 ]"))
    sequences = sequence_batching(made)
    assert sequences is not None
    states = state_layout(sequences.states, True, Path("nowhere"))
    assert states is not None
    instance = OpenVinoBackend({}).load(made, models.files).create_instance(InstanceSpec("m_0"))
    given = states.start()
    inputs = {"X": tensor("X", FP32, [[3]]), **given.inputs}
    job: Any = Job(InferenceRequest("m"), inputs, 1, "m", 1, cast(Any, None))
    job.state = given
    batch = ExecutionBatch([job], "m_0", SystemClock())
    instance.execute(batch)
    answer: Any = batch.answers[0][1]
    assert [each.name for each in answer.outputs] == ["Y"]
    assert answer.outputs[0].array.tolist() == [[6.0]]
    assert job.state.inputs["OLD"].array.tolist() == [[3.0]]
