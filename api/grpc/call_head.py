"""What a call's request headers say, read once: equal header blocks give the same object.

A header list that HTTP/2 allows and gRPC does not is no error here. It makes a head with a `refusal`, which is answered
like any error of a call. The texts and statuses are those of gRPC's own server where that one answers. Where it only
resets the stream, clients get a status and a text: for an unreadable timeout the status that they would make of the
reset, for an unknown encoding the one that gRPC's specification asks for.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from grpclib.const import Status
from multidict import MultiDict, MultiDictProxy

from ...engine.access.credentials import NO_CREDENTIAL
from ..access import Identity, identity_of
from .compression import ALGORITHMS, IDENTITY

Metadata = MultiDictProxy[str | bytes]

_CONTENT_TYPE = re.compile(rb"application/grpc(?:$|[+;])")
_TIMEOUT = re.compile(rb" *(\d{1,20}) *([HMSmun]) *")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_TIMEOUT_S = 1e9
_NOT_METADATA = frozenset((b"te", b"content-type", b"user-agent"))


class CallRefusal(NamedTuple):
    """Why no call can be made of a request. `http_status` is 200 where the client is taken to speak gRPC."""

    status: Status
    message: str
    http_status: int = 200


@dataclass(frozen=True, slots=True)
class CallHead:
    """A request's headers.

    Attributes:
        path: ``/package.Service/Method``.
        metadata: custom metadata in the order received, names in lower case; values of ``-bin`` names are decoded.
        timeout_s: how long the client waits; None for ever.
        refusal: why the request is answered without calling anything.
        identity: who it says it is from.
    """

    path: str
    metadata: Metadata
    timeout_s: float | None = None
    encoding: str = IDENTITY
    accepted_encodings: tuple[str, ...] = ()
    user_agent: str | None = None
    refusal: CallRefusal | None = None
    identity: Identity = field(default_factory=partial(Identity, NO_CREDENTIAL), compare=False)


def parse_head(fields: Sequence[tuple[bytes, bytes]], certificate: bytes = b"") -> CallHead:
    """Reads a complete header list with lower-case names, pseudo-headers included. Of a repeated header that is no
    metadata, the last counts.

    Args:
        certificate: the names in that of the connection (`certificate_names`); empty if there is none.
    """
    values = dict(fields)
    encoding = values.get(b"grpc-encoding", b"identity").decode("latin-1")
    timeout = values.get(b"grpc-timeout")
    timeout_s = None if timeout is None else _timeout_s(timeout)
    user_agent = values.get(b"user-agent")
    refusal = _refusal(values, encoding)
    if timeout is not None and timeout_s is None:
        refusal = refusal or CallRefusal(Status.INTERNAL, f"Invalid grpc-timeout: '{timeout.decode('latin-1')}'")
    metadata: MultiDict[str | bytes] = MultiDict()
    try:
        _read_metadata(fields, metadata)
    except binascii.Error:
        refusal = refusal or CallRefusal(Status.INTERNAL, "Metadata with a -bin key is not valid base64")
    return CallHead(
        path=values[b":path"].decode("latin-1"),
        metadata=MultiDictProxy(metadata),
        timeout_s=timeout_s,
        encoding=encoding,
        accepted_encodings=_names(values.get(b"grpc-accept-encoding", b"")),
        user_agent=None if user_agent is None else user_agent.decode("latin-1"),
        refusal=refusal,
        identity=identity_of(fields, certificate),
    )


def _refusal(values: dict[bytes, bytes], encoding: str) -> CallRefusal | None:
    if values[b":method"] != b"POST":
        return CallRefusal(Status.UNKNOWN, "Bad method header", 405)
    content_type = values.get(b"content-type")
    if content_type and _CONTENT_TYPE.match(content_type) is None:
        return CallRefusal(Status.UNKNOWN, "Unacceptable content-type header", 415)
    if b"te" not in values:
        return CallRefusal(Status.UNKNOWN, "Missing :te header")
    if b":authority" not in values and b"host" not in values:
        return CallRefusal(Status.UNKNOWN, "Missing :authority header")
    if encoding not in ALGORITHMS:
        return CallRefusal(Status.UNIMPLEMENTED, f"Compression algorithm '{encoding}' is not supported")
    return None


def _timeout_s(value: bytes) -> float | None:
    """None if it cannot be read. What no clock would see the end of is cut."""
    match = _TIMEOUT.fullmatch(value)
    return None if match is None else min(int(match[1]) * _UNIT_S[match[2]], _MAX_TIMEOUT_S)


def _names(value: bytes) -> tuple[str, ...]:
    return tuple(name for each in value.decode("latin-1").split(",") if (name := each.strip(" ")))


def _read_metadata(fields: Sequence[tuple[bytes, bytes]], metadata: MultiDict[str | bytes]) -> None:
    """Raises binascii.Error for a binary value that is not base64."""
    for name, value in fields:
        if name[:1] == b":" or name in _NOT_METADATA or name.startswith(b"grpc-"):
            continue
        key = name.decode("latin-1")
        if name.endswith(b"-bin"):
            for each in value.split(b","):
                metadata.add(key, _decode(each.strip(b" ")))
        else:
            metadata.add(key, value.decode("latin-1"))


def _decode(value: bytes) -> bytes:
    digits = value.rstrip(b"=")
    return b64decode(digits + b"=" * (-len(digits) % 4), validate=True)
