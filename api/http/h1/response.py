"""HTTP/1.x responses as buffers for the socket.

Rule 1: Only the application's headers are sent, and those that frame the message: no Server, no Date
        (docs/reference/http.md#transport). ``Connection: close`` is echoed to HTTP/1.1 clients, ``Connection:
        keep-alive`` to HTTP/1.0 ones.
Rule 2: A response to HEAD has no body, but the length of one (docs/reference/http.md#transport).
Rule 3: A body of unknown length is chunked; over HTTP/1.0 the end of the connection is its end.
"""

from __future__ import annotations

from http import HTTPStatus

from ....engine.tensor import Buffer
from ..exchange import Answer

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_STATUS_LINES[405] = b"HTTP/1.1 405 Not Allowed\r\n"  # as Triton's HTTP library has it
_JOIN_BYTES = 16_384

CHUNKED = b"Transfer-Encoding: chunked\r\n"


def whole_response(
    answer: Answer,
    keep_alive: bool = True,
    *,
    http10: bool = False,
    with_body: bool = True,
    framing: bytes | None = None,
) -> list[Buffer]:
    """A response.

    Args:
        keep_alive: the connection is kept after it.
        http10: to an HTTP/1.0 request.
        framing: what says in the head where the body ends, if its length does not.
    """
    body, tail = answer.body, answer.tail
    if framing is None:
        framing = b"Content-Length: %d\r\n" % (len(body) if tail is None else len(body) + len(tail))
    lines = b""
    for header in answer.headers:
        lines += b"%b: %b\r\n" % header
    if http10:
        if keep_alive:
            lines += b"Connection: keep-alive\r\n"
    elif not keep_alive:
        lines += b"Connection: close\r\n"
    head = b"%bContent-Type: %b\r\n%b%b\r\n" % (_STATUS_LINES[answer.status], answer.media, framing, lines)
    if http10:
        head = b"HTTP/1.0" + head[8:]
    if not with_body:
        return [head]
    if tail is None:
        return [head + body] if len(body) <= _JOIN_BYTES else [head, body]
    return [head + body, tail]


def chunk(piece: Buffer, last: bool) -> list[Buffer]:
    """A piece of a chunked body. An empty one is no chunk: that would end the body."""
    buffers: list[Buffer] = [b"%x\r\n" % len(piece), piece, b"\r\n"] if len(piece) else []
    return [*buffers, b"0\r\n\r\n"] if last else buffers
