"""Which gRPC status an error becomes (docs/reference/errors.md#error-kinds)."""

from __future__ import annotations

import pytest
from grpclib.const import Status

from trireme.api.grpc.blocks import grpc_error
from trireme.engine.errors import ErrorKind, TriremeError


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (ErrorKind.UNKNOWN, Status.UNKNOWN),
        (ErrorKind.INTERNAL, Status.INTERNAL),
        (ErrorKind.NOT_FOUND, Status.NOT_FOUND),
        (ErrorKind.INVALID_ARGUMENT, Status.INVALID_ARGUMENT),
        (ErrorKind.UNAVAILABLE, Status.UNAVAILABLE),
        (ErrorKind.UNSUPPORTED, Status.UNIMPLEMENTED),
        (ErrorKind.ALREADY_EXISTS, Status.ALREADY_EXISTS),
        (ErrorKind.CANCELLED, Status.CANCELLED),
        (ErrorKind.DEADLINE, Status.DEADLINE_EXCEEDED),
    ],
)
def test_each_kind_has_its_status_and_keeps_its_text(kind: ErrorKind, status: Status) -> None:
    error = TriremeError("what was wrong")
    error.kind = kind  # type: ignore[misc]
    assert grpc_error(error) == (status, "what was wrong")


def test_every_kind_has_a_status() -> None:
    """A kind added later must not surprise a client."""
    for kind in ErrorKind:
        error = TriremeError("text")
        error.kind = kind  # type: ignore[misc]
        grpc_error(error)
