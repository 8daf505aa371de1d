"""Errors in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}`` (docs/openai.md#errors)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import orjson

from ...engine.errors import CONTEXT_LENGTH, ErrorKind, InvalidArgumentError, TriremeError
from ..http.exchange import JSON, Answer, Headers, error_answer
from ..http.json import writer as json_writer

_INVALID, _SERVER = "invalid_request_error", "server_error"
_FORMED = b'{"error":{'
_CANCELLED = 499
_TOO_LONG = "context_length_exceeded"

_KINDS: Mapping[int, tuple[str, str | None]] = {
    400: (_INVALID, None),
    401: (_INVALID, "invalid_api_key"),
    403: (_INVALID, "permission_denied"),
    404: (_INVALID, "not_found"),
    405: (_INVALID, "method_not_allowed"),
    408: (_INVALID, "request_timeout"),
    413: (_INVALID, "request_too_large"),
    429: ("requests", "rate_limit_exceeded"),
    _CANCELLED: (_SERVER, "request_cancelled"),
    500: (_SERVER, "internal_error"),
    501: (_INVALID, "unsupported"),
    503: (_SERVER, "service_unavailable"),
}
"""Type and code, by status."""


class FieldError(InvalidArgumentError):
    """A member of a request is not what it has to be.

    Attributes:
        param: which one, as its path in the body.
        code: what clients tell errors apart by.
    """

    def __init__(self, param: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def __copy__(self) -> FieldError:
        return type(self)(self.param, self.message, self.code)


def error_object(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """What an error says, as a document."""
    kind, usual = _KINDS.get(status, (_SERVER if status >= 500 else _INVALID, None))
    return {"error": {"message": message, "type": kind, "param": param, "code": code or usual}}


def refusal(
    status: int, message: str, param: str | None = None, code: str | None = None, headers: Headers = ()
) -> Answer:
    """The answer that says it."""
    return Answer(status, JSON, json_writer.dumps(error_object(status, message, param, code)), headers)


def of_request(error: TriremeError, params: Mapping[str, str]) -> TriremeError:
    """A model's error as one of the client's request, if it says which part of that is wrong; else a copy of it.

    Args:
        params: what clients call parts of a request, by what errors are about (`TriremeError.about`).
    """
    param = params.get(error.about)
    if param is None:
        return copy(error)
    return FieldError(param, error.message, _TOO_LONG if error.about == CONTEXT_LENGTH else "invalid_value")


def refused(error: TriremeError) -> Answer:
    """The answer to a request that ended with an error."""
    if isinstance(error, FieldError):
        return refusal(400, error.message, error.param, error.code)
    answer = error_answer(error, JSON)
    code = "model_not_found" if error.kind is ErrorKind.NOT_FOUND else None
    status = _CANCELLED if error.kind is ErrorKind.CANCELLED else answer.status
    return refusal(status, error.message, "model" if code else None, code, answer.headers)


def openai_form(answer: Answer) -> Answer:
    """A refusal of the HTTP front end's in OpenAI's form; what is none, or has it, as it is."""
    if answer.status < 400 or answer.body.startswith(_FORMED):
        return answer
    return refusal(answer.status, orjson.loads(answer.body)["error"], headers=answer.headers)
