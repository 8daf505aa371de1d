"""Errors that a model gives and gets (docs/reference/python-backend.md#responses-and-errors)."""

from __future__ import annotations

import enum

from .arguments import text


class TritonModelException(Exception):
    """What the utilities raise into user code, and what user code may raise to fail with exactly its text."""


class HostError(Exception):
    """The server refused what a model asked for; the text is the server's, without any prefix.

    Raised by a `Host`. The utilities turn it into the `TritonModelException` that the caller expects.
    """


class ErrorCode(enum.IntEnum):
    """Kinds of errors, numbered as in Triton's API."""

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


def refused(what: str, instance_name: str, error: HostError) -> TritonModelException:
    """What the caller sees when the server refuses `what` ("Failed to load model")."""
    return TritonModelException(f"{what}: Failed to process the request for model '{instance_name}', message: {error}")
