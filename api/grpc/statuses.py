"""The only place that knows which gRPC status an error becomes (docs/reference/errors.md#error-kinds)."""

from __future__ import annotations

from grpclib.const import Status

from ...engine.errors import ErrorKind, TriremeError

_STATUS = {
    ErrorKind.INVALID_ARGUMENT: Status.INVALID_ARGUMENT,
    ErrorKind.NOT_FOUND: Status.NOT_FOUND,
    ErrorKind.UNAVAILABLE: Status.UNAVAILABLE,
    ErrorKind.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    ErrorKind.UNSUPPORTED: Status.UNIMPLEMENTED,
    ErrorKind.CANCELLED: Status.CANCELLED,
    ErrorKind.DEADLINE: Status.DEADLINE_EXCEEDED,
    ErrorKind.INTERNAL: Status.INTERNAL,
    ErrorKind.UNKNOWN: Status.UNKNOWN,
}


def grpc_error(error: TriremeError) -> tuple[Status, str]:
    """The status and the text with which a call ends that ended with `error`."""
    return _STATUS[error.kind], error.message
