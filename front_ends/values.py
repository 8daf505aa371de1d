"""Plain values in heads: texts, numbers, parameters and errors, written and read.

A head is JSON, which has no text with lone surrogates (clients' headers become such), no number that is not finite, and
here no integer of more than 64 bits. Such a value is written as a list: ``["x", bytes in hex]`` for a text,
``["f", digits]`` and ``["i", digits]`` for numbers.

The other end may be hostile: what is read is either a value of the type that is due, or a `LinkError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..engine.errors import (
    ERROR_CLASSES,
    ColdModelError,
    ErrorKind,
    FailureReason,
    LimitExceededError,
    RefusalReason,
    TriremeError,
)
from ..engine.request import ParameterValue
from .link import LinkError

T = TypeVar("T")

MOST_ITEMS = 65_536
"""Of one list in a head."""

_LEAST_INTEGER, _END_INTEGER = -(2**63), 2**64
_MOST_DIGITS = 400

_MOST_CHARACTERS = 32_768
"""Of the text of an error, which may repeat what a client has sent: as JSON they fit into a head, whatever they are."""


# ---- written ----


def write_text(text: str) -> Any:
    """A text as it can stand in a head."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return ["x", text.encode("utf-8", "surrogatepass").hex()]
    return text


def write_value(value: ParameterValue) -> Any:
    """A parameter's value."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return write_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else ["f", repr(value)]
    return int(value) if _LEAST_INTEGER <= value < _END_INTEGER else ["i", str(value)]


def write_parameters(parameters: Mapping[str, ParameterValue]) -> list[Any]:
    """Parameters, in their order."""
    return [[write_text(name), write_value(value)] for name, value in parameters.items()]


# ---- read ----


def broken(what: str, value: object) -> LinkError:
    """What came is not what was due."""
    try:
        shown = repr(value)
    except RecursionError:
        shown = "a list of lists of lists"
    return LinkError(f"{what} is due, and not {shown if len(shown) < 100 else shown[:100] + '...'}")


def read_list(value: Any, least: int = 0, most: int = MOST_ITEMS) -> list[Any]:
    """A list of so many items."""
    if value.__class__ is not list or not least <= len(value) <= most:
        raise broken(f"a list of {least} to {most} items", value)
    return value


def read_integer(value: Any, least: int = 0, end: int = 2**63) -> int:
    """An integer, at least `least` and less than `end`."""
    if value.__class__ is not int or not least <= value < end:
        raise broken(f"an integer from {least} to {end - 1}", value)
    return value


def read_bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise broken("a boolean", value)


def read_text(value: Any) -> str:
    """See `write_text`."""
    if value.__class__ is str:
        return value
    if value.__class__ is list and len(value) == 2 and value[0] == "x" and value[1].__class__ is str:
        try:
            return bytes.fromhex(value[1]).decode("utf-8", "surrogatepass")
        except ValueError:
            pass
    raise broken("a text", value)


def read_value(value: Any) -> ParameterValue:
    """See `write_value`."""
    if value.__class__ in (str, bool, int):
        return value
    if value.__class__ is float:
        return value
    if value.__class__ is list and len(value) == 2 and value[1].__class__ is str and len(value[1]) <= _MOST_DIGITS:
        try:
            if value[0] == "f":
                return float(value[1])
            if value[0] == "i":
                return int(value[1])
        except ValueError:
            pass
    return read_text(value)


def read_parameters(value: Any) -> dict[str, ParameterValue]:
    """See `write_parameters`."""
    parameters: dict[str, ParameterValue] = {}
    for pair in read_list(value):
        name, its_value = read_list(pair, 2, 2)
        parameters[read_text(name)] = read_value(its_value)
    return parameters


# ---- errors ----


def write_error(error: TriremeError) -> list[Any]:
    """An error: its kind, why an accepted request has failed by it, its text, why it refuses one, whether that has
    been counted, when to try again, and what part of the request it is about."""
    refusal = None if error.refusal is None else error.refusal.value
    text = error.message
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}... ({len(text)} characters)"
    retry_ms = math.ceil(error.retry_after_s * 1000) if isinstance(error, LimitExceededError) else 0
    about = write_text(error.about)
    return [error.kind.value, error.reason.value, write_text(text), refusal, error.refusal_counted, retry_ms, about]


def read_error(value: Any) -> TriremeError:
    """An error of the kind's class, or of a model that is not in memory: what any other subclass adds means nothing to
    front ends."""
    kind, reason, message, refusal, counted, retry_ms, about = read_list(value, 7, 7)
    text = read_text(message)
    error = _member(lambda: ERROR_CLASSES[ErrorKind(kind)], kind)(text, reason=FailureReason.BACKEND)
    error.reason = _member(lambda: FailureReason(reason), reason)
    error.refusal = None if refusal is None else _member(lambda: RefusalReason(refusal), refusal)
    if error.refusal is RefusalReason.NOT_IN_MEMORY:
        return ColdModelError.read(text)
    error.refusal_counted = read_bool(counted)
    error.about = read_text(about)
    retry_after_s = read_integer(retry_ms) / 1000
    if isinstance(error, LimitExceededError):
        error.retry_after_s = retry_after_s
    return error


def _member(find: Callable[[], T], value: Any) -> T:
    try:
        return find()
    except (KeyError, TypeError, ValueError):
        raise broken("a member of an enumeration", value) from None
