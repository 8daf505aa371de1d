"""Errors that a model gives and gets (python-backend.md §3.5)."""

from __future__ import annotations

from typing import ClassVar


class TritonModelException(Exception):
    """What the utilities raise into user code, and what user code may raise to fail with exactly its text."""


class HostError(Exception):
    """The server refused what a model asked for; the text is the server's, without any prefix.

    Raised by a `Host`. The utilities turn it into the `TritonModelException` that the caller expects.
    """


class TritonError:
    """An error to answer a request with.

    Args:
        message: shown to the client as it stands.
        code: one of the class attributes.
    """

    __slots__ = ("_code", "_message")

    UNKNOWN: ClassVar[int] = 0
    INTERNAL: ClassVar[int] = 1
    NOT_FOUND: ClassVar[int] = 2
    INVALID_ARG: ClassVar[int] = 3
    UNAVAILABLE: ClassVar[int] = 4
    UNSUPPORTED: ClassVar[int] = 5
    ALREADY_EXISTS: ClassVar[int] = 6
    CANCELLED: ClassVar[int] = 7

    def __init__(self, message: str, code: int = 1) -> None:
        if not isinstance(message, str):
            raise TypeError(f"TritonError: message must be a str, got {type(message).__name__}")
        self._message = message
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __repr__(self) -> str:
        return f"<TritonError {self._code}: {self._message}>"
