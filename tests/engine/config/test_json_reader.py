"""Overrides are read as Triton reads them: what it accepts, what it refuses, and in which words.

The texts were observed on Triton 2.51.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config.json_text import read_json
from trireme.engine.errors import InvalidArgumentError

INPUT = "type.googleapis.com/inference.ModelInput"
DELAY = "max_queue_delay_microseconds"

REFUSED: list[tuple[str, str]] = [
    ('{"nosuchfield":1}', "nosuchfield: Cannot find field."),
    ('{"nosuch":null}', "nosuch: Cannot find field."),
    ('{"input":[{"nosuch":1}]}', "(input[0]) nosuch: Cannot find field."),
    ('{"input":[{"name":"a"},{"name":"b","foo":1}]}', "(input[1]) foo: Cannot find field."),
    ('{"parameters":{"a":{},"b":{"foo":1}}}', "(parameters[1].value) foo: Cannot find field."),
    ('{"ModelTransactionPolicy":{}}', "ModelTransactionPolicy: Cannot find field."),
    ('{"":1}', ": Proto fields must have a name."),
    ("[]", ": Root element must be a message."),
    ("5", ": Root element must be a message."),
    ("null", ": Root element must be a message."),
    (
        '{"input":[{"data_type":"TYPE_FOO"}]}',
        '(input[0].data_type): invalid value "TYPE_FOO" for type type.googleapis.com/inference.DataType',
    ),
    (
        '{"input":[{"data_type":"99"}]}',
        '(input[0].data_type): invalid value "99" for type type.googleapis.com/inference.DataType',
    ),
    (
        '{"input":[{"data_type":3000000000}]}',
        "(input[0].data_type): invalid value 3000000000 for type type.googleapis.com/inference.DataType",
    ),
    (
        '{"input":[{"data_type":true}]}',
        "(input[0].data_type): invalid value true for type type.googleapis.com/inference.DataType",
    ),
    (
        '{"instance_group":[{"kind":"cpu"}]}',
        '(instance_group[0].kind): invalid value "cpu" for type type.googleapis.com/inference.ModelInstanceGroup.Kind',
    ),
    ('{"max_batch_size":"x"}', '(max_batch_size): invalid value "x" for type TYPE_INT32'),
    ('{"max_batch_size":"1.0"}', '(max_batch_size): invalid value "1.0" for type TYPE_INT32'),
    ('{"max_batch_size":" 1"}', '(max_batch_size): invalid value " 1" for type TYPE_INT32'),
    ('{"max_batch_size":""}', '(max_batch_size): invalid value "" for type TYPE_INT32'),
    ('{"max_batch_size":1.5}', "(max_batch_size): invalid value 1.5 for type TYPE_INT32"),
    ('{"max_batch_size":1e15}', "(max_batch_size): invalid value 1e+15 for type TYPE_INT32"),
    ('{"max_batch_size":2147483648}', "(max_batch_size): invalid value 2147483648 for type TYPE_INT32"),
    (
        '{"max_batch_size":123456789012345678901234567890}',
        "(max_batch_size): invalid value 1.2345678901234568e+29 for type TYPE_INT32",
    ),
    ('{"max_batch_size":true}', "(max_batch_size): invalid value true for type TYPE_INT32"),
    ('{"max_batch_size":[1]}', "max_batch_size: Proto field is not repeating, cannot start list."),
    ('{"max_batch_size":{}}', ": invalid value Starting an object on a scalar field for type max_batch_size"),
    ('{"max_batch_size":1e400}', "Number exceeds the range of double."),
    (
        '{"optimization":{"graph":{"level":[1]}}}',
        "(optimization.graph) level: Proto field is not repeating, cannot start list.",
    ),
    (
        '{"optimization":{"graph":{"level":{}}}}',
        "(optimization.graph): invalid value Starting an object on a scalar field for type level",
    ),
    ('{"input":[{"dims":[1.5]}]}', "(input[0].dims[0]): invalid value 1.5 for type TYPE_INT64"),
    ('{"input":[{"dims":["1","x"]}]}', '(input[0].dims[1]): invalid value "x" for type TYPE_INT64'),
    (
        '{"input":[{"dims":[9223372036854775808]}]}',
        "(input[0].dims[0]): invalid value 9223372036854775808 for type TYPE_INT64",
    ),
    ('{"input":[{"dims":{}}]}', "(input[0]): invalid value Starting an object on a scalar field for type dims"),
    ('{"input":[{"dims":[{}]}]}', "(input[0].dims): invalid value Starting an object on a scalar field for type dims"),
    ('{"name":5}', "(name): invalid value 5 for type TYPE_STRING"),
    ('{"name":true}', "(name): invalid value true for type TYPE_STRING"),
    ('{"input":5}', f"(input): invalid value 5 for type {INPUT}"),
    ('{"input":["x"]}', f'(input[0]): invalid value "x" for type {INPUT}'),
    ('{"dynamic_batching":[]}', "dynamic_batching: Proto field is not repeating, cannot start list."),
    ('{"parameters":[]}', ": invalid value Cannot bind a list to map for field 'parameters'. for type Map"),
    (
        '{"parameters":5}',
        "(parameters): invalid value 5 for type type.googleapis.com/inference.ModelConfig.ParametersEntry",
    ),
    (
        '{"parameters":{"a":5}}',
        "(parameters[0].value): invalid value 5 for type type.googleapis.com/inference.ModelParameter",
    ),
    ('{"metric_tags":{"a":5}}', "(metric_tags[0].value): invalid value 5 for type TYPE_STRING"),
    ('{"metric_tags":{"a":["x"]}}', "(metric_tags[0].value) : Proto fields must have a name."),
    (
        '{"dynamic_batching":{"priority_queue_policy":{"-1":{}}}}',
        '(dynamic_batching.priority_queue_policy[0].key): invalid value "-1" for type TYPE_UINT64',
    ),
    (
        '{"dynamic_batching":{"priority_queue_policy":{"1":{},"2":{},"3":{},"2":{}}}}',
        "(dynamic_batching.priority_queue_policy[2]) 2: Repeated map key: '2' is already set.",
    ),
    (
        '{"dynamic_batching":{"preserve_ordering":"maybe"}}',
        '(dynamic_batching.preserve_ordering): invalid value "maybe" for type TYPE_BOOL',
    ),
    (
        '{"dynamic_batching":{"preserve_ordering":1}}',
        "(dynamic_batching.preserve_ordering): invalid value 1 for type TYPE_BOOL",
    ),
    (
        f'{{"dynamic_batching":{{"{DELAY}":18446744073709551616}}}}',
        f"(dynamic_batching.{DELAY}): invalid value 1.8446744073709552e+19 for type TYPE_UINT64",
    ),
    (
        '{"dynamic_batching":{},"sequence_batching":{}}',
        ": invalid value oneof field 'scheduling_choice' is already set. Cannot set 'sequence_batching' for type oneof",
    ),
    (
        '{"version_policy":{"all":{},"latest":{}}}',
        (
            "(version_policy): invalid value oneof field 'policy_choice' is already set. "
            "Cannot set 'latest' for type oneof"
        ),
    ),
    (
        '{"sequence_batching":{"direct":{"minimum_slot_utilization":1e39}}}',
        "(sequence_batching.direct.minimum_slot_utilization): invalid value 1e+39 for type TYPE_FLOAT",
    ),
    (
        '{"sequence_batching":{"direct":{"minimum_slot_utilization":"inf"}}}',
        '(sequence_batching.direct.minimum_slot_utilization): invalid value "inf" for type TYPE_FLOAT',
    ),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refusals_say_what_triton_says(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_json(text)
    assert str(caught.value) == f"Invalid config override: {reason}"


@pytest.mark.parametrize(
    "text",
    ["", "{", "{} x", '{"a" 1}', '{"max_batch_size":NaN}', '{"max_batch_size":01}', '{"name":"a', "nul", "[" * 100_000,
     '{"input":' * 100_000, '{"name":"\\ud800"}', '{"\\ud800":1}', '{"name":"\ud800"}',
     '{"max_batch_size":1' + "0" * 5000 + "}", '{"max_batch_size":"1' + "0" * 5000 + '"}'],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_broken_json_is_refused_in_text_that_can_be_sent(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^Invalid config override: ") as caught:
        read_json(text)
    str(caught.value).encode()


def test_numbers_may_come_as_strings_and_whole_floats() -> None:
    for value in (4, "4", "+4", "04", 4.0, "4"):
        assert read_json(json.dumps({"max_batch_size": value})).max_batch_size == 4
    message = read_json('{"input":[{"dims":["1",2.0,"-1"]}],"dynamic_batching":{"max_queue_delay_microseconds":1e3}}')
    assert list(message.input[0].dims) == [1, 2, -1]
    assert message.dynamic_batching.max_queue_delay_microseconds == 1000
    limits = read_json('{"input":[{"dims":["-9223372036854775808",9223372036854775807]}]}')
    assert list(limits.input[0].dims) == [-(2**63), 2**63 - 1]


@pytest.mark.parametrize("value", ["TYPE_FP32", "type_fp32", "Type-Fp32", 11, "11", 11.0])
def test_enum_names_have_no_case_and_numbers_will_do(value: Any) -> None:
    assert read_json(json.dumps({"input": [{"data_type": value}]})).input[0].data_type == 11


@pytest.mark.parametrize(("value", "meant"), [(True, True), ("true", True), ("T", True), ("yes", True), ("0", False)])
def test_words_for_true_and_false(value: Any, meant: bool) -> None:
    text = json.dumps({"dynamic_batching": {"preserve_ordering": value}})
    assert read_json(text).dynamic_batching.preserve_ordering is meant


def test_field_names_may_be_camel_case() -> None:
    message = read_json('{"dynamicBatching":{"preferredBatchSize":[1]},"maxBatchSize":3}')
    assert (message.max_batch_size, list(message.dynamic_batching.preferred_batch_size)) == (3, [1])


def test_null_leaves_a_field_alone() -> None:
    message = read_json('{"max_batch_size":null,"dynamic_batching":null,"input":[null],"version_policy":{"all":null}}')
    assert message.max_batch_size == 0
    assert not message.HasField("dynamic_batching")
    assert not message.input
    assert message.version_policy.WhichOneof("policy_choice") is None
    assert read_json('{"parameters":{"a":null}}').parameters["a"].string_value == ""


def test_a_lone_value_may_stand_for_a_list_and_lists_are_flattened() -> None:
    assert [tensor.name for tensor in read_json('{"input":{"name":"x"}}').input] == ["x"]
    assert list(read_json('{"input":[[{"dims":[[1,2],3]}]]}').input[0].dims) == [1, 2, 3]
    assert list(read_json('{"input":[{"dims":5}]}').input[0].dims) == [5]


def test_repeated_keys_overwrite_extend_or_merge() -> None:
    message = read_json(
        '{"name":"a","name":"b","input":[{"name":"x"}],"input":[{"name":"y"}],'
        '"optimization":{"eager_batching":true},"optimization":{"graph":{"level":1}}}'
    )
    assert message.name == "b"
    assert [tensor.name for tensor in message.input] == ["x", "y"]
    assert message.optimization.eager_batching
    assert message.optimization.graph.level == 1


def test_floats_may_be_words() -> None:
    values = '["NaN","Infinity","-Infinity","0.5",1,2.5]'
    text = f'{{"sequence_batching":{{"control_input":[{{"control":[{{"fp32_false_true":{values}}}]}}]}}}}'
    numbers = list(read_json(text).sequence_batching.control_input[0].control[0].fp32_false_true)
    assert numbers[0] != numbers[0]
    assert numbers[1:] == [float("inf"), float("-inf"), 0.5, 1.0, 2.5]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["name", "input", "dims", "data_type", "reshape", "shape", "parameters", "dynamic_batching", "string_value",
             "priority_queue_policy", "1", "maxBatchSize", "version_policy", "latest", "model_warmup", "inputs",
             "zero_data"]
        )
        | st.text(max_size=3),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON_VALUES)
def test_any_json_is_read_or_refused_in_words(value: Any) -> None:
    try:
        read_json(json.dumps(value)).SerializeToString()
    except InvalidArgumentError as error:
        str(error).encode()


@given(st.text())
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        read_json(text)
    except InvalidArgumentError as error:
        str(error).encode()
