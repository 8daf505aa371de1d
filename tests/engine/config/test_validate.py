"""Every refusal of docs/reference/model-configuration.md#settings, in its words, in the poll phase already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from model_configs import read_config

from trireme.engine.config import ModelConfig
from trireme.engine.errors import InvalidArgumentError

LISTS_OR = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
LISTS_AND = "'int32_false_true', 'fp32_false_true' and 'bool_false_true'"


def _control(kind: str, values: str) -> str:
    return f'sequence_batching {{ control_input {{ name: "C" control {{ kind: {kind} {values} }} }} }}'


SETTINGS: list[tuple[str, str]] = [
    ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
    (
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
        "dynamic batching preferred size must be positive for m",
    ),
    (
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 4, 5 ] }",
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    (
        "dynamic_batching { preferred_batch_size: 1 }",
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    ("dynamic_batching { priority_levels: 2 }", "default priority level must be in range [1, 2] for m"),
    (
        "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
        "default priority level must be in range [1, 2] for m",
    ),
    *(
        (
            (
                "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
                f"priority_queue_policy {{ key: {level} value {{ }} }} }}"
            ),
            "priority queue policy must have priority level in range [1, 2] for m",
        )
        for level in (0, 3)
    ),
    (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }",
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        (
            "dynamic_batching { preserve_ordering: true "
            "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        (
            "dynamic_batching { priority_levels: 1 default_priority_level: 1 preserve_ordering: true "
            "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        "response_cache { enable: true } sequence_batching { }",
        (
            "Response Cache does not currently support model m with sequence batching scheduler. "
            "Please disable the response cache."
        ),
    ),
    (
        "response_cache { enable: true } model_transaction_policy { decoupled: true }",
        (
            "Response Cache does not currently support model m with 'decoupled' transaction policy. "
            "Please disable the response cache."
        ),
    ),
    ("sequence_batching { control_input { } }", "sequence batching control tensor must have a name for m"),
    (
        'sequence_batching { control_input [ { name: "C" }, { name: "C" } ] }',
        "sequence batching control tensor 'C' is specified for multiple control kinds for m",
    ),
    (
        (
            'sequence_batching { control_input [ { name: "A" control { int32_false_true: [0, 1] } }, '
            '{ name: "B" control { int32_false_true: [0, 1] } } ] }'
        ),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        (
            'sequence_batching { control_input { name: "A" control [ '
            "{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 }, { kind: CONTROL_SEQUENCE_CORRID } ] } }"
        ),
        "sequence batching specifies multiple CONTROL_SEQUENCE_CORRID tensors for m",
    ),
    *(
        (_control(kind, ""), f"sequence batching must specify either {LISTS_OR} for {kind} for m")
        for kind in ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END")
    ),
    (
        _control("CONTROL_SEQUENCE_END", "int32_false_true: [0, 1] bool_false_true: [false, true]"),
        f"sequence batching specifies more than one from {LISTS_AND} for CONTROL_SEQUENCE_END for m",
    ),
    *(
        (
            _control("CONTROL_SEQUENCE_READY", f"{name}: [{values}]"),
            f"sequence batching control '{name}' must have exactly 2 entries for CONTROL_SEQUENCE_READY for m",
        )
        for name, values in (
            ("int32_false_true", "1"),
            ("fp32_false_true", "0, 1, 2"),
            ("bool_false_true", "true"),
        )
    ),
    (
        _control("CONTROL_SEQUENCE_CORRID", "data_type: TYPE_INT32 fp32_false_true: [0, 1]"),
        f"sequence batching must not specify either {LISTS_OR} for CONTROL_SEQUENCE_CORRID for m",
    ),
    (
        _control("CONTROL_SEQUENCE_CORRID", "data_type: TYPE_FP32"),
        (
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        ),
    ),
    (
        "max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: 0 } }",
        "sequence batching preferred batch size must be positive for m",
    ),
    (
        "max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: 5 } }",
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    *(
        (
            text,
            (
                "sequence batching of model m asks for 65537 sequences at a time on each instance, more than the 65536 "
                "that there can be"
            ),
        )
        for text in (
            "sequence_batching { oldest { max_candidate_sequences: 65537 } }",
            "max_batch_size: 65537 sequence_batching { direct { } }",
        )
    ),
    *(
        (
            f"sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}",
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        )
        for value in ("1.5", "-0.1")
    ),
    (
        "ensemble_scheduling { }",
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    ('platform: "ensemble"', "Ensemble model 'm' must have platform type 'ensemble' and empty backend type"),
    ("model_metrics { metric_control { } }", "metric control must specify 'metric_identifier'"),
    (
        "model_metrics { metric_control { metric_identifier { } } }",
        "metric identifier must specify non-empty 'family'",
    ),
    (
        'model_metrics { metric_control { metric_identifier { family: "f" } } }',
        "metric control must specify 'histogram_options'",
    ),
    (
        'model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }',
        "histogram options must specify non-empty 'buckets'",
    ),
    ('name: "other"', "unexpected directory name 'm' for model 'other', directory name must equal model name"),
]


@pytest.mark.parametrize("buckets", ["2, 1", "1, 1", "nan", "inf", "1, nan, 2"])
def test_the_bounds_of_a_histogram_increase(poll: Callable[[str], ModelConfig], buckets: str) -> None:
    control = f'metric_identifier {{ family: "f" }} histogram_options {{ buckets: [ {buckets} ] }}'
    with pytest.raises(InvalidArgumentError, match=r"^histogram options must specify finite 'buckets' in increasing"):
        poll(f"model_metrics {{ metric_control {{ {control} }} }}")


@pytest.mark.parametrize(("text", "reason"), SETTINGS)
def test_settings_are_refused_in_the_poll_phase(poll: Callable[[str], ModelConfig], text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        poll(text)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('platform: "foo"', "unexpected platform type 'foo' for m"),
        ('default_model_filename: "foo"', "unexpected platform type '' for m"),
        (
            'backend: "onnxruntime" platform: "tensorrt_plan"',
            "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
        ),
        ('backend: "tensorflow"', "unexpected 'platform' and 'backend' pair, got:, tensorflow"),
        ('platform: "libtorch"', "unexpected 'platform' and 'backend' pair, got:libtorch, pytorch"),
        (
            'platform: "ensemble"',
            "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        ),
    ],
)
def test_platforms_are_refused(make_model: Callable[..., Path], text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_config(make_model(text))
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "text",
    [
        "sequence_batching { direct { minimum_slot_utilization: 0.0 } }",
        "sequence_batching { direct { minimum_slot_utilization: 1.0 } }",
        "dynamic_batching { priority_queue_policy { key: 7 value { } } }",
        "dynamic_batching { priority_levels: 1 default_priority_level: 1 preserve_ordering: true }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
        'platform: "tensorrt_plan"',
        'platform: "onnxruntime_onnx"',
        _control("CONTROL_SEQUENCE_CORRID", "data_type: TYPE_STRING"),
    ],
)
def test_what_triton_accepts_is_accepted(poll: Callable[[str], ModelConfig], text: str) -> None:
    assert poll(text).name == "m"
