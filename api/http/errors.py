"""The only place that knows which HTTP status an error becomes, and how its body looks
(docs/reference/errors.md#error-kinds)."""

from __future__ import annotations

from ...engine.errors import ErrorKind, TriremeError
from .exchange import Answer, Headers
from .json import writer as json_writer

_STATUS = {
    ErrorKind.INVALID_ARGUMENT: 400,
    ErrorKind.UNKNOWN: 400,
    ErrorKind.ALREADY_EXISTS: 400,
    ErrorKind.CANCELLED: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.INTERNAL: 500,
    ErrorKind.UNSUPPORTED: 501,
    ErrorKind.UNAVAILABLE: 503,
    # Triton has no such class: a request that ran out of time is one that the server was not available for.
    ErrorKind.DEADLINE: 503,
}


def error_answer(error: TriremeError, media: bytes, headers: Headers = ()) -> Answer:
    """The answer to a request that ended with `error`."""
    return Answer(_STATUS[error.kind], media, error_body(error.message), headers)


def error_body(message: str) -> bytes:
    """``{"error":"<message>"}``."""
    return b'{"error":' + json_writer.string(message) + b"}"


def method_not_allowed(media: bytes) -> Answer:
    """The path has a route, but not for this method."""
    return Answer(405, media, error_body("Method Not Allowed"))


def unexpected_failure(media: bytes) -> Answer:
    """A defect of the server. What it was stands in the log, not in the answer."""
    return Answer(500, media, error_body("unexpected failure inside the server, see its log"))
