"""What the header list of an HTTP/2 request says, and the header blocks of responses.

A list that HTTP/2 lets through and HTTP does not costs its stream, as malformed requests do (RFC 9113 §8.1.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...http2.errors import ErrorCode, StreamFault
from ...http2.headers import Field, encode_block

_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PATH = re.compile(rb"/[!-~]*|\*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_BAD_IN_VALUE = re.compile(rb"[\0\r\n]")
_CONNECTION_SPECIFIC = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))

CONTINUE = encode_block([(b":status", b"100")])


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's headers.

    Attributes:
        target: path and query as received.
        headers: (lower-case name, value) in order, ``host`` first; no pseudo-headers.
        content_length: what the client has announced; None if nothing.
        expects_continue: the client waits for ``100`` before it sends the body.
    """

    method: str
    target: bytes
    headers: tuple[Field, ...]
    content_length: int | None
    expects_continue: bool


def parse_head(fields: Sequence[Field]) -> RequestHead:
    """Reads a header list whose form has been checked, pseudo-headers first.

    Raises:
        StreamFault: PROTOCOL_ERROR: it is no HTTP request.
    """
    pseudo = dict([field for field in fields if field[0][:1] == b":"])
    headers = [field for field in fields if field[0][:1] != b":"]
    method, target = pseudo[b":method"], pseudo[b":path"]
    if not _METHOD.fullmatch(method):
        raise _malformed("method is no token")
    if not _PATH.fullmatch(target):
        raise _malformed("path does not begin with a slash, or is not of printable ASCII characters")
    return RequestHead(
        method=method.decode("ascii"),
        target=target,
        headers=tuple(_with_host(headers, pseudo.get(b":authority"))),
        content_length=_content_length([value for name, value in headers if name == b"content-length"]),
        expects_continue=(b"expect", b"100-continue") in headers,
    )


def _with_host(headers: list[Field], authority: bytes | None) -> list[Field]:
    """The headers with exactly one ``host``, which ``:authority`` is another name of (RFC 9113 §8.3.1)."""
    hosts = {value for name, value in headers if name == b"host"}
    if authority is not None:
        hosts.add(authority)
    if len(hosts) > 1:
        raise _malformed("several hosts")
    if not hosts or b"" in hosts:
        raise _malformed("no host")
    return [(b"host", hosts.pop()), *[field for field in headers if field[0] != b"host"]]


def _content_length(values: list[bytes]) -> int | None:
    if not values:
        return None
    if len(set(values)) > 1 or not _LENGTH.fullmatch(values[0]):
        raise _malformed("content-length is no number, or several")
    return int(values[0])


def _malformed(debug: str) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, debug)


def response_block(status: int, headers: Iterable[Field]) -> bytes:
    """The header block of a response: names in lower case, without what concerns HTTP/1.1's connections.

    Raises:
        ValueError: a line break or a zero byte in a header.
    """
    fields = [(b":status", b"%d" % status)]
    for name, value in headers:
        lower = name.lower()
        if _BAD_IN_VALUE.search(name) or _BAD_IN_VALUE.search(value):
            raise ValueError(f"a line break or zero byte in a header: {name!r}: {value!r}")
        if lower not in _CONNECTION_SPECIFIC:
            fields.append((lower, value))
    return encode_block(fields)
