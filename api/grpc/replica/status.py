"""What the headers of a replica's answer say: how a call has ended, and which error that is here. The inverse of
`api.grpc.blocks`: of one server's error, gateway and replica say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpclib.metadata import decode_grpc_message

from ....engine.errors import ERROR_CLASSES, ErrorKind, RefusalReason, TriremeError
from ...http2.headers import Field
from ..blocks import GRPC_STATUS, REFUSED

_KINDS: Mapping[int, ErrorKind] = {
    **{status.value: kind for kind, status in GRPC_STATUS.items()},
    9: ErrorKind.INVALID_ARGUMENT,  # FAILED_PRECONDITION; this and those below no Trireme sends
    10: ErrorKind.UNAVAILABLE,  # ABORTED
    11: ErrorKind.INVALID_ARGUMENT,  # OUT_OF_RANGE
    15: ErrorKind.INTERNAL,  # DATA_LOSS
}
_HTTP_KINDS: Mapping[int, ErrorKind] = {
    400: ErrorKind.INTERNAL,
    401: ErrorKind.UNAUTHENTICATED,
    403: ErrorKind.PERMISSION_DENIED,
    404: ErrorKind.UNSUPPORTED,
    429: ErrorKind.UNAVAILABLE,
    502: ErrorKind.UNAVAILABLE,
    503: ErrorKind.UNAVAILABLE,
    504: ErrorKind.UNAVAILABLE,
}
"""As gRPC's own clients take them, of answers without a status of gRPC's."""


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """The headers of an answer, or its trailers.

    Attributes:
        http_status: 0 in trailers.
        is_grpc: the content type says so.
        status: of gRPC; None if there is none.
        refused: the request was refused, for this reason, before anything was executed.
    """

    http_status: int
    is_grpc: bool
    status: int | None
    message: str = ""
    refused: RefusalReason | None = None

    def error(self) -> TriremeError:
        """What the call has failed with, if its `status` is not 0."""
        if self.status is None:
            kind = _HTTP_KINDS.get(self.http_status, ErrorKind.UNKNOWN)
            return error_of_kind(kind, f"the replica answered with HTTP status {self.http_status}, expected gRPC")
        return error_of_kind(_KINDS.get(self.status, ErrorKind.UNKNOWN), self.message, self.refused)


def parse_reply_head(fields: Sequence[Field]) -> ReplyHead:
    values = dict(fields)
    status = values.get(b"grpc-status")
    refused = values.get(REFUSED)
    return ReplyHead(
        int(values.get(b":status", b"0")),
        values.get(b"content-type", b"").startswith(b"application/grpc"),
        int(status) if status is not None and len(status) < 4 and status.isdigit() else None if status is None else 2,
        decode_grpc_message(values.get(b"grpc-message", b"").decode("latin-1")),
        None if refused is None else refusal_named(refused.decode("latin-1")),
    )


def refusal_named(text: str) -> RefusalReason | None:
    """None if there is no such reason here: the replica may be newer."""
    try:
        return RefusalReason(text)
    except ValueError:
        return None


def error_of_kind(kind: ErrorKind, message: str, refusal: RefusalReason | None = None) -> TriremeError:
    """An error with exactly this text."""
    error = ERROR_CLASSES[kind]("", refusal=refusal)
    error.message = message
    error.args = (message,)
    return error
