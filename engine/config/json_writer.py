"""The JSON text of a configuration, exactly as Triton prints it in ``/config``
(docs/reference/model-configuration.md#json-form).

Rule 1: fields print in declaration order, but scalars of a oneof print after all others.
Rule 2: every scalar, list and map prints, empty or not; a message, or a member of a oneof, prints only when set.
Rule 3: enums print as names, 64-bit integers as numbers, except the three fields that Triton leaves quoted.
Rule 4: a float prints as protobuf prints it (shortest of 6 or 9 digits), read back and printed by RapidJSON.
Rule 5: map entries print in key order (Triton's order is that of a hash table).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import rapidjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from .schema import Field, is_map

QUOTED_INTEGERS = frozenset(
    {
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    }
)
"""64-bit fields whose values keep protobuf's quotes in Triton's answer."""


def write_json(message: Message) -> bytes:
    """The JSON text of a configuration message, without blanks, UTF-8."""
    return _message(message).encode()


def _message(message: Message) -> str:
    return "{" + ",".join(f'"{field.name}":{_field(message, field)}' for field in _printed_fields(message)) + "}"


def _printed_fields(message: Message) -> Iterator[Field]:
    choices = []
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        if field.containing_oneof is not None and field.message_type is None:
            choices.append(field)
        else:
            yield field
    yield from choices


def _field(message: Message, field: Field) -> str:
    value = getattr(message, field.name)
    if is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return "{" + ",".join(f"{_string(str(key))}:{_value(value[key], inner)}" for key in sorted(value)) + "}"
    if field.is_repeated:
        return "[" + ",".join(_value(item, field) for item in value) + "]"
    return _value(value, field)


def _value(value: Any, field: Field) -> str:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return _message(value)
        case FieldDescriptor.CPPTYPE_ENUM:
            known = field.enum_type.values_by_number.get(value)
            return str(value) if known is None else _string(known.name)
        case FieldDescriptor.CPPTYPE_STRING:
            return _string(value)
        case FieldDescriptor.CPPTYPE_BOOL:
            return "true" if value else "false"
        case FieldDescriptor.CPPTYPE_FLOAT:
            return _float(_float32_digits(value))
        case FieldDescriptor.CPPTYPE_DOUBLE:
            short = f"{value:.15g}"
            return _float(short if math.isnan(value) or float(short) == value else f"{value:.17g}")
    return f'"{value}"' if field.full_name in QUOTED_INTEGERS else str(value)


def _string(text: str) -> str:
    return rapidjson.dumps(text, ensure_ascii=False)


def _float32_digits(value: float) -> str:
    """6 digits if they read back as the same float, else 9; always 9 below the smallest normal float."""
    short = f"{value:.6g}"
    is_subnormal = 0 < abs(value) < 2.0**-126
    return short if math.isnan(value) or (_as_float32(short) == value and not is_subnormal) else f"{value:.9g}"


def _as_float32(text: str) -> float:
    try:
        return struct.unpack("f", struct.pack("f", float(text)))[0]
    except OverflowError:  # six digits may round up beyond the largest float
        return math.inf


def _float(text: str) -> str:
    """A number in protobuf's digits, as RapidJSON prints it: 1e+06 is 1000000.0, 1e-07 is 1e-7, 1 stays 1."""
    value = float(text)
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if text.lstrip("-").isdigit():
        return str(int(text))
    return rapidjson_float(value)


def rapidjson_float(value: float) -> str:
    """A finite double in its shortest digits, laid out as RapidJSON does: exponents only outside [1e-6, 1e21)."""
    sign, digit_tuple, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # finite
    digits = "".join(map(str, digit_tuple))
    point = len(digits) + exponent
    if exponent >= 0 and point <= 21:
        text = f"{digits}{'0' * exponent}.0"
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{point - 1}"
    return "-" * sign + text
