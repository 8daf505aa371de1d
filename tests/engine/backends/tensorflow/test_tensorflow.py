"""TensorFlow models (docs/reference/backends.md#tensorflow), with the real TensorFlow on the CPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.tensorflow import TensorFlowBackend, TensorFlowSettings
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfig, ModelConfigMessage
from trireme.engine.datatypes import BY_NAME, BYTES, FP32, INT32
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError

XY = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }'
SAVED, FROZEN = "tensorflow_savedmodel", "tensorflow_graphdef"

NAMES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]


@pytest.fixture(scope="session")
def tf() -> Any:
    return TensorFlowBackend({}).library


def config(text: str = "max_batch_size: 4", tensors: str = XY, platform: str = SAVED) -> ModelConfig:
    full = f'name: "m" backend: "tensorflow" platform: "{platform}" {tensors} {text}'
    return model_config(text_format.Parse(full, ModelConfigMessage()))


def parameter(key: str, value: str) -> str:
    return f'max_batch_size: 4 parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.fixture
def save(tf: Any, models: Any) -> Callable[..., Path]:
    """``save(function, *specs)``: as the SavedModel of the model."""

    def write(function: Any, *specs: Any, **more: Any) -> Path:
        module = tf.Module()
        module.variables_kept = more.get("variables", ())
        module.function = tf.function(function, input_signature=specs)
        path = models.files.version_directory / "model.savedmodel"
        names = more.get("signatures", ("serving_default",))
        tf.saved_model.save(module, str(path), signatures=dict.fromkeys(names, module.function))
        return path

    return write


@pytest.fixture
def double(tf: Any, save: Any) -> Path:
    """y = x times a variable, which is 2."""
    factor = tf.Variable(2.0)
    return save(lambda x: {"y": x * factor}, tf.TensorSpec([None, 4], tf.float32, name="x"), variables=(factor,))


@pytest.fixture
def frozen(tf: Any, models: Any) -> Path:
    """y = x + 1, as a frozen graph."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        tf.add(x, 1.0, name="y")
    path = models.files.version_directory / "model.graphdef"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


@pytest.fixture
def begin(models: Any, run_instance: Any) -> Callable[..., Any]:
    def make(config: ModelConfig) -> Any:
        return run_instance(TensorFlowBackend({}).load(config, models.files).create_instance(InstanceSpec("m_0")))

    return make


def refusal(begin: Any, config: ModelConfig, kind: type[TriremeError] = InvalidArgumentError) -> str:
    with pytest.raises(kind) as caught:
        begin(config)
    return str(caught.value)


# Execution


def test_requests_run_together_and_get_their_own_rows(double: Path, begin: Any, tensor: Any) -> None:
    answers = begin(config()).run(
        {"x": tensor("x", FP32, [[1, 2, 3, 4]] * 2)}, {"x": tensor("x", FP32, [[5, 6, 7, 8]])}, rows=[2, 1]
    )
    assert [answer["y"].tolist() for answer in answers] == [[[2.0, 4.0, 6.0, 8.0]] * 2, [[10.0, 12.0, 14.0, 16.0]]]


@pytest.mark.parametrize("name", NAMES)
def test_every_type_goes_through(tf: Any, save: Any, begin: Any, tensor: Any, name: str) -> None:
    datatype = BY_NAME[name]
    save(lambda x: {"y": tf.identity(x)}, tf.TensorSpec([None], datatype.storage, name="x"))
    text = XY.replace("[ 4 ]", "[ -1 ]").replace("FP32", name)
    (answer,) = begin(config("", text)).run({"x": tensor("x", datatype, [0, 1, 1])})
    assert answer["y"].dtype == datatype.storage
    assert answer["y"].astype(int).tolist() == [0, 1, 1]


def test_strings_go_through_and_need_not_be_text(tf: Any, save: Any, begin: Any, tensor: Any) -> None:
    save(lambda x: {"y": tf.strings.join([x, "!"])}, tf.TensorSpec([None, 1], tf.string, name="x"))
    runner = begin(config(tensors=XY.replace("[ 4 ]", "[ 1 ]").replace("FP32", "STRING")))
    (answer,) = runner.run({"x": tensor("x", BYTES, [["größe".encode()], [b"\xff\x00"]])}, rows=[2])
    assert answer["y"].tolist() == [["größe!".encode()], [b"\xff\x00!"]]


def test_bf16_is_refused(tf: Any, save: Any, begin: Any) -> None:
    save(lambda x: {"y": x}, tf.TensorSpec([None], tf.bfloat16, name="x"))
    text = XY.replace("[ 4 ]", "[ -1 ]").replace("FP32", "BF16")
    assert refusal(begin, config("", text), InternalError) == (
        "unsupported datatype TYPE_BFLOAT16 for input 'x' for model 'm'"
    )


def test_an_error_of_the_graph_is_the_answer_of_its_batch(tf: Any, save: Any, begin: Any, tensor: Any) -> None:
    save(lambda x: {"y": 12 // x}, tf.TensorSpec([None], tf.int32, name="x"))
    runner = begin(config("", XY.replace("[ 4 ]", "[ -1 ]").replace("FP32", "INT32")))
    with pytest.raises(InternalError, match=r"^tensorflow error: .*[Dd]ivision by zero") as caught:
        runner.run({"x": tensor("x", INT32, [3, 0])})
    assert "\n" not in str(caught.value)
    (answer,) = runner.run({"x": tensor("x", INT32, [3, 4])})
    assert answer["y"].tolist() == [4, 3]


def test_an_optional_input_may_be_absent(tf: Any, save: Any, begin: Any, tensor: Any) -> None:
    """The graph fails without it here, but says so, instead of running with something else."""
    specs = [tf.TensorSpec([None], tf.float32, name=name) for name in ("x", "z")]
    save(lambda x, z: {"y": x + z}, *specs)
    text = XY.replace("[ 4 ]", "[ -1 ]") + ' input { name: "z" data_type: TYPE_FP32 dims: [ -1 ] optional: true }'
    runner = begin(config("", text))
    (answer,) = runner.run({"x": tensor("x", FP32, [1]), "z": tensor("z", FP32, [2])})
    assert answer["y"].tolist() == [3.0]
    with pytest.raises(InternalError, match="must feed a value for placeholder"):
        runner.run({"x": tensor("x", FP32, [1])})


def test_scalars_are_one_element(tf: Any, save: Any, begin: Any, tensor: Any) -> None:
    save(lambda x: {"y": x * 2}, tf.TensorSpec([], tf.float32, name="x"))
    (answer,) = begin(config("", XY.replace("[ 4 ]", "[ 1 ]"))).run({"x": tensor("x", FP32, [4])})
    assert answer["y"].tolist() == [8.0]


# Which graph


def test_a_frozen_graph_goes_by_the_names_of_its_nodes(frozen: Path, begin: Any, tensor: Any) -> None:
    (answer,) = begin(config(platform=FROZEN)).run({"x": tensor("x", FP32, [[1, 2, 3, 4]])})
    assert answer["y"].tolist() == [[2.0, 3.0, 4.0, 5.0]]
    text = refusal(begin, config(tensors=XY.replace('"y"', '"z"'), platform=FROZEN))
    assert text == "unexpected inference output 'z', the graph has no node of that name"


def test_a_signature_can_be_chosen(tf: Any, save: Any, begin: Any, tensor: Any) -> None:
    save(lambda x: {"y": -x}, tf.TensorSpec([None, 4], tf.float32, name="x"), signatures=("negative", "minus"))
    (answer,) = begin(config(parameter("TF_SIGNATURE_DEF", "minus"))).run({"x": tensor("x", FP32, [[1, 2, 3, 4]])})
    assert answer["y"].tolist() == [[-1.0, -2.0, -3.0, -4.0]]
    assert refusal(begin, config()) == (
        "unable to load model 'm', the SavedModel has no signature 'serving_default', only: minus, negative"
    )


def test_a_wrong_tag_is_a_load_error(double: Path, begin: Any) -> None:
    text = refusal(begin, config(parameter("TF_GRAPH_TAG", "train")), InternalError)
    assert text.startswith("unable to load model 'm': MetaGraphDef associated with tags 'train' could not be found")


def test_operations_to_begin_with_are_run(tf: Any, models: Any, begin: Any, tensor: Any) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        variable = v1.get_variable("v", [], initializer=v1.zeros_initializer(), use_resource=False)
        v1.assign(variable, 7.0, name="set_to_seven")
        tf.add(x, variable, name="y")
    (models.files.version_directory / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
    (models.files.model_directory / "init.json").write_text(json.dumps({"init_ops": ["set_to_seven"]}))
    runner = begin(config(parameter("TF_INIT_OPS_FILE", "init.json"), platform=FROZEN))
    (answer,) = runner.run({"x": tensor("x", FP32, [[0, 1, 2, 3]])})
    assert answer["y"].tolist() == [[7.0, 8.0, 9.0, 10.0]]


# Files, names and parameters


def test_operations_to_begin_with_come_from_the_models_directory(models: Any) -> None:
    (models.files.model_directory.parent / "init.json").write_text('{"init_ops": []}')
    with pytest.raises(InvalidArgumentError, match=r"'\.\./\.\./init\.json' is neither in"):
        TensorFlowSettings.of(config(parameter("TF_INIT_OPS_FILE", "../../init.json"), platform=FROZEN), models.files)


def test_a_missing_file_is_named(begin: Any, models: Any) -> None:
    path = models.files.version_directory / "model.savedmodel"
    assert refusal(begin, config(), UnavailableError) == f"unable to find '{path}' for model instance 'm'"


@pytest.mark.parametrize(("name", "platform"), [("model.savedmodel", SAVED), ("model.graphdef", FROZEN)])
def test_a_file_that_is_no_model_is_refused(begin: Any, models: Any, name: str, platform: str) -> None:
    (models.files.version_directory / name).write_bytes(b"rubbish")
    assert refusal(begin, config(platform=platform), InternalError).startswith("unable to load model 'm': ")


def test_more_inputs_than_the_model_has_are_refused(double: Path, begin: Any) -> None:
    more = XY + ' input { name: "z" data_type: TYPE_FP32 dims: [ 4 ] }'
    assert refusal(begin, config(tensors=more)) == (
        "unable to load model 'm', configuration expects 2 inputs, model provides at most 1"
    )


def test_shapes_and_types_are_held_to_the_signature(double: Path, begin: Any) -> None:
    assert "the model expects 2 dimensions (shape [-1,4])" in refusal(begin, config(tensors=XY.replace("4", "5", 1)))
    assert refusal(begin, config(tensors=XY.replace("FP32", "FP64", 1))) == (
        "unable to load model 'm', configuration expects datatype TYPE_FP64 for input 'x', model provides TYPE_FP32"
    )


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("TF_NUM_INTRA_THREADS", "many", "failed to convert 'many' to integral number"),
        ("TF_NUM_INTER_THREADS", "-1", "parameter 'TF_NUM_INTER_THREADS' must be a non-negative number, got -1"),
        (
            "TF_USE_PER_SESSION_THREADS",
            "Maybe",
            "parameter 'TF_USE_PER_SESSION_THREADS' must be yes or no, 1 or 0, on or off, got 'Maybe'",
        ),
    ],
)
def test_wrong_parameters_are_load_errors(double: Path, begin: Any, key: str, value: str, text: str) -> None:
    assert refusal(begin, config(parameter(key, value))) == text


def test_threads_are_the_sessions_own_if_told(double: Path, begin: Any, tensor: Any) -> None:
    text = " ".join(
        parameter(key, value).removeprefix("max_batch_size: 4")
        for key, value in {
            "TF_NUM_INTRA_THREADS": "1",
            "TF_NUM_INTER_THREADS": "1",
            "TF_USE_PER_SESSION_THREADS": "yes",
        }.items()
    )
    (answer,) = begin(config(f"max_batch_size: 4 {text}")).run({"x": tensor("x", FP32, [[1, 2, 3, 4]])})
    assert answer["y"].tolist() == [[2.0, 4.0, 6.0, 8.0]]


@pytest.mark.parametrize(("share", "sessions"), [("1", 3), ("2", 2), ("3", 1)])
def test_instances_share_sessions_as_told(double: Path, models: Any, share: str, sessions: int) -> None:
    loaded = TensorFlowBackend({}).load(config(parameter("MAX_SESSION_SHARE_COUNT", share)), models.files)
    instances = [loaded.create_instance(InstanceSpec(f"m_{n}")) for n in range(3)]
    assert len({id(instance._graph) for instance in instances}) == sessions


@pytest.mark.parametrize("name", ["openvino", "tensorrt"])
def test_accelerators_that_are_not_there_are_refused(double: Path, begin: Any, name: str) -> None:
    where = "cpu" if name == "openvino" else "gpu"
    text = f'optimization {{ execution_accelerators {{ {where}_execution_accelerator {{ name: "{name}" }} }} }}'
    assert name in refusal(begin, config(f"max_batch_size: 4 {text}"))


def test_without_the_package_it_says_what_to_install(double: Path, begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    text = refusal(begin, config(), UnavailableError)
    assert text.startswith(
        "the backend 'tensorflow' needs the package tensorflow: pip install trireme-server[tensorflow]"
    )


# What the file tells


def test_an_incomplete_configuration_is_completed(double: Path, models: Any) -> None:
    completion = TensorFlowBackend({}).auto_complete(config("", ""), models.files)
    assert completion is not None
    assert (completion.max_batch_size, completion.dynamic_batching) == (4, True)
    assert [(tensor.name, tensor.datatype, tensor.dims) for tensor in completion.input] == [("x", FP32, (4,))]
    assert [(tensor.name, tensor.datatype, tensor.dims) for tensor in completion.output] == [("y", FP32, (4,))]
