"""Instances of one model on several devices. TensorFlow can have two CPU devices, which stand for GPUs here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from trireme.engine.backends import tensorflow
from trireme.engine.backends.interface import InstanceSpec, ModelFiles
from trireme.engine.backends.tensorflow import TensorFlowBackend, TensorFlowSettings
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfig, ModelConfigMessage
from trireme.engine.errors import InvalidArgumentError

ON_TWO = "instance_group { name: 'm' kind: KIND_GPU count: 1 gpus: [ 0, 1 ] }"


@pytest.fixture(scope="session")
def tf() -> Any:
    return TensorFlowBackend({}).library


@pytest.fixture
def two_devices(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices that are found as GPUs are, each session having both."""
    made = TensorFlowSettings.session_config

    def session_config(self: TensorFlowSettings, tf: Any, spec: InstanceSpec) -> Any:
        config = made(self, tf, spec)
        config.device_count["CPU"] = 2
        return config

    monkeypatch.setattr(TensorFlowSettings, "session_config", session_config)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _kind: ["one", "two"])
    monkeypatch.setattr(tensorflow, "device_name", lambda spec: f"/device:CPU:{spec.gpu}")


def config(platform: str, groups: str = ON_TWO) -> ModelConfig:
    tensors = (
        "input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] } output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }"
    )
    text = f"name: 'm' backend: 'tensorflow' platform: '{platform}' max_batch_size: 4 {tensors} {groups}"
    return model_config(text_format.Parse(text, ModelConfigMessage()))


def write_saved_model(tf: Any, path: Path) -> None:
    """y = 2x if that is positive, by a function in a function, with a variable."""

    class Double(tf.Module):
        def __init__(self) -> None:
            self.factor = tf.Variable([[2.0]])

        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
        def call(self, x: Any) -> Any:
            return {"y": tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, self.factor), lambda: x)}

    module = Double()
    tf.saved_model.save(module, str(path), signatures=module.call)


def write_frozen_graph(tf: Any, path: Path) -> None:
    """y = 2x, on a device that the model names."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as made, tf.device("/device:CPU:0"):
        x = v1.placeholder(tf.float32, [None, 1], name="x")
        tf.matmul(x, tf.constant([[2.0]]), name="y")
    path.write_bytes(made.as_graph_def().SerializeToString())


def products_computed_on(tf: Any, loaded: Any) -> set[str]:
    """Run it, and see which device has multiplied matrices."""
    v1 = tf.compat.v1
    seen = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    (result,) = loaded.session.run([loaded.outputs["y"]], {loaded.inputs["x"]: [[3.0]]}, options, seen)
    assert result.tolist() == [[6.0]]
    devices = [(each.device, node.node_name) for each in seen.step_stats.dev_stats for node in each.node_stats]
    return {device[-5:] for device, node in devices if node.endswith("MatMul") or node == "y"}


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    ("write", "platform", "name"),
    [
        (write_saved_model, "tensorflow_savedmodel", "model.savedmodel"),
        (write_frozen_graph, "tensorflow_graphdef", "model.graphdef"),
    ],
)
def test_each_instance_computes_on_its_device(tf: Any, tmp_path: Path, write: Any, platform: str, name: str) -> None:
    (tmp_path / "1").mkdir()
    write(tf, tmp_path / "1" / name)
    model = tensorflow.TensorFlowBackend({}).load(config(platform), ModelFiles(tmp_path, 1))
    for gpu in (0, 1):
        instance = model.create_instance(InstanceSpec(f"m_{gpu}", "KIND_GPU", gpu))
        assert products_computed_on(tf, instance._graph) == {f"CPU:{gpu}"}


@pytest.mark.usefixtures("two_devices")
def test_a_gpu_that_tensorflow_does_not_find_is_refused(tf: Any, tmp_path: Path) -> None:
    """Else it would compute somewhere else without a word."""
    (tmp_path / "1").mkdir()
    write_frozen_graph(tf, tmp_path / "1" / "model.graphdef")
    groups = "instance_group { name: 'm' kind: KIND_GPU count: 1 gpus: 2 }"
    with pytest.raises(InvalidArgumentError, match=r"instance 'm_0' is to run on GPU 2, and TensorFlow .* finds 2$"):
        tensorflow.TensorFlowBackend({}).load(config("tensorflow_graphdef", groups), ModelFiles(tmp_path, 1))


@pytest.mark.usefixtures("two_devices")
def test_the_file_is_that_of_the_gpus_compute_capability(tf: Any, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    write_frozen_graph(tf, tmp_path / "1" / "model.graphdef")
    groups = ON_TWO + "cc_model_filenames { key: '9.0' value: 'hopper.graphdef' }"
    model = tensorflow.TensorFlowBackend({}).load(
        config("tensorflow_graphdef", groups), ModelFiles(tmp_path, 1, {0: "8.0", 1: "9.0"})
    )
    model.create_instance(InstanceSpec("m_0", "KIND_GPU", 0))
    with pytest.raises(Exception, match=r"unable to find .*hopper.graphdef"):
        model.create_instance(InstanceSpec("m_1", "KIND_GPU", 1))


@pytest.mark.parametrize("there", [[], ["one"]])
def test_what_is_left_open_goes_to_gpus_if_tensorflow_finds_any(
    tf: Any, monkeypatch: pytest.MonkeyPatch, there: list[str]
) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _kind: there)
    assert tensorflow.TensorFlowBackend({}).uses_gpus() is bool(there)
