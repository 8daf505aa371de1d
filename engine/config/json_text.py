"""The JSON text of a configuration, exactly as Triton prints it in ``/config``
(docs/reference/model-configuration.md#json-form).

Rule 1: fields print in declaration order, but scalars of a oneof print after all others.
Rule 2: every scalar, list and map prints, empty or not; a message, or a member of a oneof, prints only when set.
Rule 3: enums print as names, 64-bit integers as numbers, except the three fields that Triton leaves quoted.
Rule 4: a float prints as protobuf prints it (shortest of 6 or 9 digits), read back and printed by RapidJSON.
Rule 5: map entries print in key order (Triton's order is that of a hash table).
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NoReturn

import rapidjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ..errors import InvalidArgumentError
from .model import ModelConfig, ModelConfigMessage, ProtoField

QUOTED_INTEGERS = frozenset(
    {
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    }
)
"""64-bit fields whose values keep protobuf's quotes in Triton's answer."""


def config_json(config: ModelConfig) -> bytes:
    """What ``/config`` answers: JSON text, UTF-8 (docs/reference/model-configuration.md#json-form)."""
    return write_json(config.message)


def is_map(field: ProtoField) -> bool:
    """Whether a field is a map, whose message type is then that of its entries."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def wide_fields() -> list[str]:
    """The 64-bit fields of a configuration, sorted: ``ModelConfig::input::dims`` and the like."""
    return sorted(set(_wide_fields(ModelConfigMessage.DESCRIPTOR, "ModelConfig")))


def _wide_fields(descriptor: Any, prefix: str) -> Iterator[str]:
    for field in descriptor.fields:
        path = f"{prefix}::{field.name}"
        if field.message_type is not None:
            yield from _wide_fields(field.message_type, path)
        elif field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
            yield path


def write_json(message: Message) -> bytes:
    """The JSON text of a configuration message, without blanks, UTF-8."""
    return _message(message).encode()


def _message(message: Message) -> str:
    return "{" + ",".join(f'"{field.name}":{_field(message, field)}' for field in _printed_fields(message)) + "}"


def _printed_fields(message: Message) -> Iterator[ProtoField]:
    choices = []
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        if field.containing_oneof is not None and field.message_type is None:
            choices.append(field)
        else:
            yield field
    yield from choices


def _field(message: Message, field: ProtoField) -> str:
    value = getattr(message, field.name)
    if is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return "{" + ",".join(f"{_string(str(key))}:{_value(value[key], inner)}" for key in sorted(value)) + "}"
    if field.is_repeated:
        return "[" + ",".join(_value(item, field) for item in value) + "]"
    return _value(value, field)


def _value(value: Any, field: ProtoField) -> str:
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


# Read a configuration message from JSON, the way protobuf's C++ reader does
# (docs/reference/model-configuration.md#where-an-error-shows).
#
# Rule 1: keys are proto field names or their camelCase forms; an unknown key is an error.
# Rule 2: ``null`` leaves a field alone; a lone value may stand for a list; lists inside lists are flattened.
# Rule 3: integers may be numbers (4, 4.0) or decimal strings; enums names in any case, or numbers.
# Rule 4: a oneof may be set once, a map key too; any other repeated key overwrites, extends or merges.
# Rule 5: every refusal says where: ``(input[0].dims[1]): invalid value "x" for type TYPE_INT64``.


_TYPE_NAMES = {
    getattr(FieldDescriptor, f"TYPE_{name}"): f"TYPE_{name}"
    for name in ("INT32", "INT64", "UINT32", "UINT64", "FLOAT", "DOUBLE", "BOOL", "STRING")
}
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31),
}
_TRUE = frozenset({"true", "t", "yes", "y", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SURROGATE = re.compile("[\ud800-\udfff]")
_FLOAT32_BOUND = (2 - 2**-24) * 2.0**127
"""From here on a double rounds beyond the largest 32-bit float."""


class _Object(tuple[tuple[str, Any], ...]):
    """A JSON object with its keys as they came, repeated ones included. No list: JSON's arrays are."""


def read_json(text: str) -> Any:
    """A `ModelConfigMessage` from JSON.

    Raises:
        InvalidArgumentError: ``Invalid config override: <what and where>``.
    """
    message = ModelConfigMessage()
    try:
        root = _parse(text)
        if not isinstance(root, _Object):
            _refuse(": Root element must be a message.")
        _read_object(message, root, "")
    except RecursionError:
        _refuse("Message too deep.")
    return message


def _refuse(detail: str) -> NoReturn:
    raise InvalidArgumentError(f"Invalid config override: {detail}")


def _parse(text: str) -> Any:
    def integer(digits: str) -> int | float:
        value = int(digits) if len(digits) <= 20 else 2**64
        return value if -(2**63) <= value < 2**64 else real(digits)

    def real(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            _refuse("Number exceeds the range of double.")
        return value

    def constant(word: str) -> NoReturn:
        _refuse(f"Unexpected token: {word}")

    try:
        if _SURROGATE.search(text):
            _refuse("Missing low surrogate.")
        return json.loads(text, object_pairs_hook=_Object, parse_int=integer, parse_float=real, parse_constant=constant)
    except json.JSONDecodeError as error:
        _refuse(str(error))


def _read_object(message: Message, pairs: _Object, path: str) -> None:
    for key, value in pairs:
        field = _find(message.DESCRIPTOR, key, path)
        if value is None:
            continue
        oneof = field.containing_oneof
        if oneof is not None and message.WhichOneof(oneof.name) is not None:
            what = f"oneof field '{oneof.name}' is already set. Cannot set '{field.name}'"
            _refuse(f"{_at(path)}: invalid value {what} for type oneof")
        inner = f"{path}.{field.name}" if path else field.name
        if is_map(field):
            _read_map(message, field, value, path, inner)
        elif field.is_repeated:
            _read_list(getattr(message, field.name), field, value, path, inner)
        elif isinstance(value, list):
            _refuse(f"{_named(path, field.name)}: Proto field is not repeating, cannot start list.")
        elif field.message_type is not None:
            child = getattr(message, field.name)
            child.SetInParent()
            _read_message(child, field, value, inner)
        else:
            setattr(message, field.name, _scalar(field, value, path, inner))


def _find(descriptor: Any, key: str, path: str) -> ProtoField:
    key = _safe(key)  # the look-up below breaks down over half a surrogate pair
    if not key:
        _refuse(f"{_named(path, '')}: Proto fields must have a name.")
    field = descriptor.fields_by_name.get(key) or descriptor.fields_by_camelcase_name.get(key)
    if field is None:
        _refuse(f"{_named(path, key)}: Cannot find field.")
    return field


def _read_message(message: Message, field: ProtoField, value: Any, path: str) -> None:
    if not isinstance(value, _Object):
        _invalid(path, value, f"type.googleapis.com/{field.message_type.full_name}")
    _read_object(message, value, path)


def _read_list(target: Any, field: ProtoField, value: Any, outer: str, path: str) -> None:
    is_list = isinstance(value, list)
    for index, item in enumerate(_flat(value)):
        inner = f"{path}[{index}]" if is_list else path
        if field.message_type is not None:
            _read_message(target.add(), field, item, inner)
        else:
            target.append(_scalar(field, item, path if is_list else outer, inner))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield value


def _read_map(message: Message, field: ProtoField, value: Any, outer: str, path: str) -> None:
    if not isinstance(value, _Object):
        if isinstance(value, list):
            _refuse(f"{_at(outer)}: invalid value Cannot bind a list to map for field '{field.name}'. for type Map")
        _invalid(path, value, f"type.googleapis.com/{field.message_type.full_name}")
    target = getattr(message, field.name)
    key_field, value_field = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    seen: set[str] = set()
    for text, item in value:
        if text in seen:
            _refuse(f"({path}[{len(seen) - 1}]) {_safe(text)}: Repeated map key: '{_safe(text)}' is already set.")
        entry = f"{path}[{len(seen)}]"
        seen.add(text)
        key = _scalar(key_field, text, entry, f"{entry}.key")
        if value_field.message_type is not None:
            child = target[key]
            if item is not None:
                _read_message(child, value_field, item, f"{entry}.value")
        else:
            target[key] = "" if item is None else _scalar(value_field, item, entry, f"{entry}.value")


def _scalar(field: ProtoField, value: Any, outer: str, path: str) -> Any:
    if isinstance(value, _Object):
        _refuse(f"{_at(outer)}: invalid value Starting an object on a scalar field for type {field.name}")
    type_name = f"type.googleapis.com/{field.enum_type.full_name}" if field.enum_type else _TYPE_NAMES[field.type]
    converted: Any = None
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            converted = value if isinstance(value, str) and not _SURROGATE.search(value) else None
        case FieldDescriptor.CPPTYPE_BOOL:
            converted = _boolean(value)
        case FieldDescriptor.CPPTYPE_ENUM:
            converted = _enum_number(field, value)
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            converted = _real(value, single=field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT)
        case _:
            converted = _integer(value, *_RANGES[field.cpp_type])
    if converted is None:
        _invalid(path, value, type_name)
    return converted


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    return True if word in _TRUE else False if word in _FALSE else None


def _integer(value: Any, low: int, end: int) -> int | None:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value < end:
        return value
    return None


def _real(value: Any, *, single: bool) -> float | None:
    if isinstance(value, str):
        if value in _SPECIAL:
            return _SPECIAL[value]
        value = float(value) if _NUMBER.fullmatch(value) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if math.isinf(value) or (single and abs(value) >= _FLOAT32_BOUND):
        return None
    return float(value)


def _enum_number(field: ProtoField, value: Any) -> int | None:
    values = field.enum_type.values_by_name
    if not isinstance(value, str):
        return _integer(value, *_RANGES[FieldDescriptor.CPPTYPE_ENUM])
    known = values.get(value) or values.get(value.upper().replace("-", "_"))
    if known is not None:
        return known.number
    number = _integer(value, *_RANGES[FieldDescriptor.CPPTYPE_ENUM])
    return number if number in field.enum_type.values_by_number else None


def _invalid(path: str, value: Any, type_name: str) -> NoReturn:
    if isinstance(value, list):
        _refuse(f"({path}) : Proto fields must have a name.")
    _refuse(f"({path}): invalid value {_shown(value)} for type {type_name}")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{_safe(value)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        short = f"{value:.15g}"
        return short if float(short) == value else f"{value:.17g}"
    return str(value)


def _safe(text: str) -> str:
    """Text that can be sent: half a surrogate pair cannot."""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def _at(path: str) -> str:
    return f"({path})" if path else ""


def _named(path: str, name: str) -> str:
    return f"{_at(path)} {_safe(name)}" if path else _safe(name)
