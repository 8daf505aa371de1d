"""Reading JSON in Triton's dialect (docs/reference/json.md#reading): documents, and their values by type.

orjson reads; its answer is taken when it can only be Triton's:

* What orjson refuses (NaN, byte order marks, bytes that are no UTF-8, syntax errors) is read again by `strict`.
* orjson keeps the last of duplicate members, Triton the first. Every member has one colon outside strings, so a
  document with as many colons as members found has no duplicates. Colons within strings can spoil that count, never
  feign it; then those that follow a quotation mark are counted; if that fails too, the document is read again.

Values are plain Python ones. A string that held bytes that are no UTF-8 has them as ``surrogateescape`` characters.
Values of another type than what is asked for are refused with Triton's texts (docs/reference/json.md#type-errors).
Types are told apart as in the document: ``true`` is no integer, ``1.0`` is no integer, ``1`` will do as a double. Every
function ``as_…`` raises `InternalError` for a value that is not what it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from ....engine.errors import InternalError
from .pieces import count_members
from .strict import parse_strictly

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


# ---- with errors that name the member ----


T = TypeVar("T")


def converted(convert: Callable[[Any], T], value: Any, name: str, verb: str = "parse") -> T:
    """`value` as `convert` reads it.

    Raises:
        InternalError: it cannot; the text starts with ``Unable to <verb> '<name>': ``.
    """
    try:
        return convert(value)
    except InternalError as error:
        raise InternalError(f"Unable to {verb} '{name}': {error.message}") from None


def read_member(convert: Callable[[Any], T], value: Any, name: str) -> T:
    """The member `name` of the object `value` as `convert` reads it.

    Raises:
        InternalError: there is none, or it has another type; the text starts with ``Unable to parse '<name>': ``.
    """
    try:
        return convert(member(value, name))
    except InternalError as error:
        raise InternalError(f"Unable to parse '{name}': {error.message}") from None


def members_of(value: Any) -> dict[str, Any]:
    """The members of `value`; none, if it is no object: looking for a member that may be absent never fails."""
    return value if type(value) is dict else {}


# ---- documents ----


_MEMBER_COLON = re.compile(rb'"[ \t\r\n]*:')


def parse(body: bytes | memoryview) -> Any:
    """The value of a JSON document.

    Raises:
        InternalError: ``failed to parse the request JSON buffer: <reason> at <byte offset>``.
        InvalidArgumentError: it is nested too deeply to be read.
    """
    if not isinstance(body, bytes):
        body = bytes(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_strictly(body)
    members = count_members(value)
    if members == body.count(b":") or members == sum(1 for _ in _MEMBER_COLON.finditer(body)):
        return value
    return parse_strictly(body)
