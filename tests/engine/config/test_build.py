"""The typed view holds what the message says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from google.protobuf import text_format
from model_configs import read_config

from trireme.engine.config import ModelConfig, config_json, model_config
from trireme.engine.config.model import (
    UNSPECIFIED,
    Accelerator,
    BatchInput,
    BatchOutput,
    DynamicBatching,
    InstanceGroup,
    ModelConfigMessage,
    ModelInput,
    ModelOutput,
    QueuePolicy,
    TimeoutAction,
    VersionPolicy,
    copy_message,
)
from trireme.engine.config.platforms import normalize
from trireme.engine.datatypes import BYTES, FP16, INT32

EVERYTHING = """
platform: "onnxruntime_onnx" backend: "onnxruntime" runtime: "r" max_batch_size: 8
version_policy { specific { versions: [ 3, 1 ] } }
input { name: "A" data_type: TYPE_FP16 dims: [ 2, -1 ] reshape { shape: [ 1, 2, -1 ] } is_shape_tensor: true
  allow_ragged_batch: true optional: true }
input { name: "Z" }
output { name: "B" data_type: TYPE_STRING dims: 1 reshape { } label_filename: "l" is_shape_tensor: true }
batch_input { kind: BATCH_ITEM_SHAPE target_name: [ "S", "T" ] data_type: TYPE_INT32 source_input: "A" }
batch_output { target_name: "B" source_input: "A" }
optimization { graph { level: -1 } execution_accelerators {
  cpu_execution_accelerator { name: "openvino" parameters { key: "k" value: "v" } }
  gpu_execution_accelerator { name: "tensorrt" } } }
dynamic_batching {
  preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 5 preserve_ordering: true
  priority_levels: 9 default_priority_level: 3
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 6 allow_timeout_override: true }
  priority_queue_policy { key: 7 value { max_queue_size: 8 } }
}
instance_group { name: "g" kind: KIND_GPU count: 2 gpus: [ 0, 1 ] passive: true host_policy: "h" profile: "1" }
default_model_filename: "f.onnx"
cc_model_filenames { key: "8.0" value: "g.onnx" }
metric_tags { key: "t" value: "u" }
parameters { key: "p" value { string_value: "q" } }
model_operations { op_library_filename: [ "a.so", "b.so" ] }
model_transaction_policy { decoupled: true }
model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: [ 1, 2.5 ] } } }
"""


def _parsed(text: str) -> ModelConfig:
    return model_config(text_format.Parse(text, ModelConfigMessage()))


def test_every_field_is_taken_over() -> None:
    config = _parsed(f'name: "m" {EVERYTHING} response_cache {{ enable: true }}')
    expected = ModelConfig(
        name="m",
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        runtime="r",
        version_policy=VersionPolicy(specific=(3, 1)),
        max_batch_size=8,
        input=(ModelInput("A", FP16, (2, -1), (1, 2, -1), True, True, True), ModelInput("Z", UNSPECIFIED, ())),
        output=(ModelOutput("B", BYTES, (1,), (), "l", True),),
        batch_input=(BatchInput("BATCH_ITEM_SHAPE", ("S", "T"), INT32, ("A",)),),
        batch_output=(BatchOutput("BATCH_SCATTER_WITH_INPUT_SHAPE", ("B",), ("A",)),),
        graph_level=-1,
        cpu_accelerators=(Accelerator("openvino", {"k": "v"}),),
        gpu_accelerators=(Accelerator("tensorrt", {}),),
        dynamic_batching=DynamicBatching(
            preferred_batch_sizes=(2, 4),
            max_queue_delay_us=5,
            preserve_ordering=True,
            priority_levels=9,
            default_priority_level=3,
            default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 6, True, 0),
            priority_queue_policy={7: QueuePolicy(max_queue_size=8)},
        ),
        instance_group=(InstanceGroup("g", "KIND_GPU", 2, (0, 1), True, "h", ("1",)),),
        default_model_filename="f.onnx",
        cc_model_filenames={"8.0": "g.onnx"},
        metric_tags={"t": "u"},
        histogram_buckets={"f": (1.0, 2.5)},
        parameters={"p": "q"},
        op_library_filenames=("a.so", "b.so"),
        decoupled=True,
        response_cache=True,
        message=config.message,
    )
    assert config == expected
    empty = _parsed("")
    untouched = {field.name for field in fields(config) if getattr(config, field.name) == getattr(empty, field.name)}
    assert untouched == {"has_sequence_batching", "has_ensemble_scheduling"}


def test_schedulers_that_have_no_view_are_told() -> None:
    assert _parsed("sequence_batching { }").has_sequence_batching
    assert _parsed("ensemble_scheduling { }").has_ensemble_scheduling
    assert _parsed("").dynamic_batching is None


def test_version_policies() -> None:
    assert _parsed("").version_policy == VersionPolicy(latest=1)
    assert _parsed("version_policy { latest { num_versions: 3 } }").version_policy == VersionPolicy(latest=3)
    assert _parsed("version_policy { all { } }").version_policy == VersionPolicy(all_versions=True)
    assert _parsed("version_policy { }").version_policy == VersionPolicy(all_versions=True)


def test_the_view_does_not_change_with_the_message_it_came_from() -> None:
    message = ModelConfigMessage(name="m")
    config = model_config(message)
    message.name = "n"
    assert b'"name":"m"' in config_json(config)


def test_normalising_twice_changes_nothing(make_model: Callable[..., Path]) -> None:
    config = read_config(make_model(EVERYTHING.replace("preserve_ordering: true", "")))
    again = copy_message(config.message)
    normalize(again)
    assert again == config.message


def test_any_text_prints(make_model: Callable[..., Path]) -> None:
    config = read_config(
        make_model('backend: "python" parameters { key: "ü" value { string_value: "\\"\\\\\\n\\001" } }')
    )
    assert '"parameters":{"ü":{"string_value":"\\"\\\\\\n\\u0001"}}'.encode() in config_json(config)
