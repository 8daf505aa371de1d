"""The header blocks of answers, and which gRPC status an error becomes (docs/reference/errors.md#error-kinds). What
does not change is made once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from grpclib.const import Status
from grpclib.metadata import encode_grpc_message

from ...engine.errors import ErrorKind, RefusalReason, TriremeError
from ..http2.frames import AnswerBlocks
from ..http2.headers import encode_block
from .compression import ALGORITHMS, IDENTITY

MAX_MESSAGE_BYTES = 6144
"""Of an error text on the wire. Clients take header lists of 8 KiB; a longer one would cost them the status as well."""

REFUSED = b"trireme-refused"
"""The trailer that says why a request was refused before anything of it was executed (`RefusalReason`)."""

_CONTENT_TYPE = (b"content-type", b"application/grpc")
_ACCEPT_ENCODING = (b"grpc-accept-encoding", ", ".join(ALGORITHMS).encode())


def _headers(encoding: str) -> list[tuple[bytes, bytes]]:
    named = [] if encoding == IDENTITY else [(b"grpc-encoding", encoding.encode())]
    return [(b":status", b"200"), _CONTENT_TYPE, *named, _ACCEPT_ENCODING]


HEADERS: Mapping[str, bytes] = {encoding: encode_block(_headers(encoding)) for encoding in ALGORITHMS}
"""Response headers by the algorithm that messages may be packed with."""

OK: Mapping[str, AnswerBlocks] = {
    encoding: AnswerBlocks(headers, encode_block([(b"grpc-status", b"0")])) for encoding, headers in HEADERS.items()
}
"""What is around a message that answers a call, by the same."""


def trailers(status: Status, message: str | None = None, refused: RefusalReason | None = None) -> bytes:
    """What ends a call whose response headers have been sent. See `REFUSED`."""
    return encode_block(_status(status, message, refused))


def trailers_only(
    status: Status,
    message: str | None = None,
    refused: RefusalReason | None = None,
    *,
    http_status: int = 200,
    tell_encodings: bool = False,
) -> bytes:
    """An answer without response headers and messages. Under overload many calls get the same. What a model says may be
    long, and no more of it is kept than is sent.

    Args:
        refused: see `REFUSED`.
        tell_encodings: to a client that packs in an unknown way, which ways are known.
    """
    if message is not None and len(message) > MAX_MESSAGE_BYTES:
        message = message[: MAX_MESSAGE_BYTES + 1]
    return _kept_trailers_only(status, message, refused, http_status, tell_encodings)


@lru_cache(maxsize=256)
def _kept_trailers_only(
    status: Status, message: str | None, refused: RefusalReason | None, http_status: int, tell_encodings: bool
) -> bytes:
    encodings = [_ACCEPT_ENCODING] if tell_encodings else []
    said = _status(status, message, refused)
    return encode_block([(b":status", b"%d" % http_status), _CONTENT_TYPE, *said, *encodings])


def _status(status: Status, message: str | None, refused: RefusalReason | None) -> list[tuple[bytes, bytes]]:
    fields = [(b"grpc-status", b"%d" % status.value)]
    if message:
        fields.append((b"grpc-message", _encode(message)))
    if refused is not None:
        fields.append((REFUSED, refused.value.encode()))
    return fields


def _encode(message: str) -> bytes:
    """Percent-encoded, and cut to `MAX_MESSAGE_BYTES` between two characters. What is no character becomes ``?``."""
    if not message.isascii():
        message = message.encode("utf-8", "replace").decode("utf-8")
    encoded = encode_grpc_message(message[: MAX_MESSAGE_BYTES + 1])
    if len(encoded) > MAX_MESSAGE_BYTES:
        cut = encoded[:MAX_MESSAGE_BYTES]
        escape = cut.rfind("%", MAX_MESSAGE_BYTES - 2)
        whole = unquote_to_bytes(cut if escape < 0 else cut[:escape]).decode("utf-8", "ignore")
        encoded = encode_grpc_message(whole)
    return encoded.encode("ascii")


GRPC_STATUS: Mapping[ErrorKind, Status] = {
    ErrorKind.INVALID_ARGUMENT: Status.INVALID_ARGUMENT,
    ErrorKind.NOT_FOUND: Status.NOT_FOUND,
    ErrorKind.UNAVAILABLE: Status.UNAVAILABLE,
    ErrorKind.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    ErrorKind.UNSUPPORTED: Status.UNIMPLEMENTED,
    ErrorKind.CANCELLED: Status.CANCELLED,
    ErrorKind.DEADLINE: Status.DEADLINE_EXCEEDED,
    ErrorKind.INTERNAL: Status.INTERNAL,
    ErrorKind.UNKNOWN: Status.UNKNOWN,
    ErrorKind.UNAUTHENTICATED: Status.UNAUTHENTICATED,
    ErrorKind.PERMISSION_DENIED: Status.PERMISSION_DENIED,
    ErrorKind.LIMIT_EXCEEDED: Status.RESOURCE_EXHAUSTED,
}


def grpc_error(error: TriremeError) -> tuple[Status, str]:
    """The status and the text with which a call ends that ended with `error`."""
    return GRPC_STATUS[error.kind], error.message
