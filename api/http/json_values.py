"""Values of a parsed JSON document by type, refused with Triton's texts (docs/reference/json.md#type-errors).

Types are told apart as in the document: ``true`` is no integer, ``1.0`` is no integer, ``1`` will do as a double.
Every function raises `InternalError` for a value that is not what it asks for.
"""

from __future__ import annotations

from typing import Any

from ...engine.errors import InternalError

INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1


def as_string(value: Any) -> str:
    if type(value) is not str:
        raise InternalError("attempt to access JSON non-string as string")
    return value


def as_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise InternalError("attempt to access JSON non-boolean as boolean")
    return value


def as_unsigned(value: Any) -> int:
    """An integer token from 0 to 2^64 - 1; ``1.0`` is none."""
    if type(value) is not int or not 0 <= value <= UINT64_MAX:
        raise InternalError("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def as_signed(value: Any) -> int:
    """An integer token from -2^63 to 2^63 - 1; ``1.0`` is none."""
    if type(value) is not int or not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise InternalError("attempt to access JSON non-signed-integer as signed-integer")
    return value


def as_double(value: Any) -> float:
    """Any number."""
    kind = type(value)
    if kind is not float and kind is not int:
        raise InternalError("attempt to access JSON non-number as double")
    return float(value)


def as_array(value: Any) -> list[Any]:
    if type(value) is not list:
        raise InternalError("attempt to access JSON non-array as array")
    return value


def as_object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise InternalError("attempt to access JSON non-object as object")
    return value


def member(value: Any, name: str) -> Any:
    """The member `name` of an object."""
    if type(value) is not dict or name not in value:
        raise InternalError(f"attempt to access non-existing object member '{name}'")
    return value[name]


def members(value: Any) -> list[str]:
    """The names of an object's members."""
    if type(value) is not dict:
        raise InternalError("attempt to get members for non-object")
    return list(value)
