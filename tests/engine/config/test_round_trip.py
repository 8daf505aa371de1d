"""Messages survive printing and reading, whatever is in them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.config.json_text import is_map, rapidjson_float, read_json, write_json
from trireme.engine.config.model import ModelConfigMessage

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32, allow_nan=False).map(
        lambda value: value + 0.0
    ),  # no negative zero
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False).map(lambda value: value + 0.0),
    FieldDescriptor.CPPTYPE_STRING: st.text(max_size=5),
}


def _fill(draw: st.DrawFn, message: Any) -> None:
    fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    for field in draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda field: field.name)):
        target = getattr(message, field.name)
        if is_map(field):
            key_field, value_field = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for key in draw(st.lists(SCALARS[key_field.cpp_type], max_size=2, unique=True)):
                if value_field.message_type is None:
                    target[key] = draw(SCALARS[value_field.cpp_type])
                else:
                    _fill(draw, target[key])
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                _fill(draw, target.add()) if field.message_type else target.append(draw(_scalar(field)))
        elif field.message_type is not None:
            target.SetInParent()
            _fill(draw, target)
        else:
            setattr(message, field.name, draw(_scalar(field)))


def _scalar(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return SCALARS[field.cpp_type]


@st.composite
def messages(draw: st.DrawFn) -> Any:
    message = ModelConfigMessage()
    _fill(draw, message)
    return message


@settings(deadline=None)
@given(messages())
def test_our_json_reads_back_to_the_same_message(message: Any) -> None:
    again = read_json(write_json(message).decode())
    assert _comparable(again) == _comparable(message)


@settings(deadline=None)
@given(messages())
def test_our_json_is_json_and_always_the_same(message: Any) -> None:
    text = write_json(message)
    json.loads(text)
    copy = ModelConfigMessage()
    copy.ParseFromString(message.SerializeToString())
    assert write_json(copy) == text


@settings(deadline=None)
@given(messages())
def test_text_form_reads_back_to_the_same_json(message: Any) -> None:
    again = text_format.Parse(text_format.MessageToString(message), ModelConfigMessage())
    assert write_json(again) == write_json(message)


def _comparable(message: Any) -> bytes:
    return message.SerializeToString(deterministic=True)


def test_a_negative_zero_prints_as_zero() -> None:
    """As in Triton; it is the only value that does not come back as it was, so the messages above have none."""
    message = ModelConfigMessage()
    message.sequence_batching.direct.minimum_slot_utilization = -0.0
    assert b'"minimum_slot_utilization":0}' in write_json(message)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_their_value(value: float) -> None:
    assert float(rapidjson_float(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1e20, "100000000000000000000.0"),
        (1e21, "1e21"),
        (1.5e21, "1.5e21"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (-1.25e-9, "-1.25e-9"),
        (123456.75, "123456.75"),
        (math.pi, "3.141592653589793"),
    ],
)
def test_floats_look_as_rapidjson_prints_them(value: float, text: str) -> None:
    assert rapidjson_float(value) == text
