"""Errors that a model gives and gets, and checks of its arguments
(docs/reference/python-backend.md#responses-and-errors)."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable
from typing import Any


class TritonModelException(Exception):
    """What the utilities raise into user code, and what user code may raise to fail with exactly its text."""


class HostError(Exception):
    """The server refused what a model asked for; the text is the server's, without any prefix.

    Raised by a `Host`. The utilities turn it into the `TritonModelException` that the caller expects.
    """


class ErrorCode(enum.IntEnum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    __str__ = enum.Enum.__str__


class TritonError:
    """An error to answer a request with.

    Args:
        message: shown to the client as it stands.
        code: one of the class attributes.

    Raises:
        TypeError: the message is no str, or the code none such.
        ValueError: there is no such code.
    """

    __slots__ = ("_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: int = ErrorCode.INTERNAL) -> None:
        if not isinstance(code, int):
            raise TypeError(f"TritonError: code must be one such as TritonError.INTERNAL, found type {type(code)}")
        self._message = text("TritonError: message", message)
        self._code = ErrorCode(code)

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code

    def __repr__(self) -> str:
        return f"<TritonError {self._code.name}: {self._message}>"


# Arguments of user code, as Triton takes them: a str or UTF-8 bytes, whatever is an int, a TypeError for all else.
#
# What is wrong is told here, to the line that gives it, and not later, when it is sent.


INT64 = (-(1 << 63), (1 << 63) - 1)
"""Lowest and highest value."""
UINT32 = (0, (1 << 32) - 1)
UINT64 = (0, (1 << 64) - 1)


def text(what: str, value: Any) -> str:
    """`value` as a str. TypeError if it is neither str nor bytes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{what} must be a str, found type {type(value)}")


def whole(what: str, value: Any, limits: tuple[int, int]) -> int:
    """`value` as an int. TypeError if it is none, as a float is, or not within the limits."""
    if value.__class__ is int and limits[0] <= value <= limits[1]:
        return value
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, found type {type(value)}") from None
    if not limits[0] <= number <= limits[1]:
        raise TypeError(f"{what} must be from {limits[0]} to {limits[1]}, got {number}")
    return number


def items(what: str, value: Any) -> list[Any]:
    """The elements of a list, or of anything like it. TypeError if it is a str, or has no elements."""
    if value.__class__ is list:
        return value.copy()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a list, found type {type(value)}")
    return list(value)
