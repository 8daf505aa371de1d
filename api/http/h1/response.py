"""Writes HTTP/1.x responses: ASGI messages in, buffers for the socket out.

Rule 1: One response a request: ``http.response.start``, then bodies, the last with ``more_body`` false.
Rule 2: The head waits for the first body, so that a small response is one write.
Rule 3: Framing: the application's Content-Length, else ours if the body comes at once, else chunked, else (HTTP/1.0)
        the end of the connection.
Rule 4: HEAD, 204 and 304 have no body, whatever the application sends (docs/reference/http.md#transport).
Rule 5: Only the application's headers are sent, and those that frame the message: no Server, no Date
        (docs/reference/http.md#transport). ``Connection: close`` is echoed to HTTP/1.1 clients, ``Connection:
        keep-alive`` to HTTP/1.0 ones.

States: START -(start)-> HEAD -(body, more)-> BODY -(body, last)-> DONE; HEAD -(body, last)-> DONE.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

from ....engine.tensor import Buffer
from ..exchange import Answer

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in _REASONS.items()}


class ResponseState(enum.Enum):
    START = "START"
    HEAD = "HEAD"
    BODY = "BODY"
    DONE = "DONE"


class ResponseMessageError(Exception):
    """The application sent a message that its response's state does not allow, or one that cannot be written."""


class ResponseEncoder:
    """One response.

    Attributes:
        state: see above.
        keep_alive: whether the connection may live on afterwards. The owner clears it before the head is written;
            the encoder clears it when the framing leaves no other way to end the body.
    """

    def __init__(self, *, http10: bool = False, head_only: bool = False, keep_alive: bool = True) -> None:
        self.state = ResponseState.START
        self.keep_alive = keep_alive
        self._http10 = http10
        self._body_allowed = not head_only
        self._chunked = False
        self._remaining: int | None = None
        self._status = 200
        self._reason: bytes | None = None
        self._headers: Iterable[tuple[bytes, bytes]] = ()

    def start(self, message: MutableMapping[str, Any]) -> None:
        """``http.response.start``: ``status``, ``headers``, and as an extension ``reason`` (bytes), a reason phrase."""
        if self.state is not ResponseState.START:
            raise ResponseMessageError(f"http.response.start in state {self.state.value}")
        self._status = status = message["status"]
        self._headers = message.get("headers", ())
        self._reason = message.get("reason")
        if status == 204 or status == 304:
            self._body_allowed = False
        self.state = ResponseState.HEAD

    def body(self, message: MutableMapping[str, Any]) -> list[Buffer]:
        """``http.response.body``: returns what is to be written now. The body is not copied."""
        body: Buffer = message.get("body", b"")
        last = not message.get("more_body", False)
        if type(body) is not bytes:
            body = memoryview(body).cast("B")
        if self.state is ResponseState.HEAD:
            buffers: list[Buffer] = [self._head(len(body) if last else None)]
        elif self.state is ResponseState.BODY:
            buffers = []
        else:
            raise ResponseMessageError(f"http.response.body in state {self.state.value}")
        self.state = ResponseState.DONE if last else ResponseState.BODY
        if self._body_allowed:
            self._frame(buffers, body, last)
        return buffers

    def _frame(self, buffers: list[Buffer], body: Buffer, last: bool) -> None:
        size = len(body)
        if self._chunked:
            if size:
                buffers += (b"%x\r\n" % size, body, b"\r\n")
            if last:
                buffers.append(b"0\r\n\r\n")
            return
        if self._remaining is not None:
            self._remaining -= size
            if self._remaining < 0 or (last and self._remaining):
                raise ResponseMessageError(f"the body does not have the length in its Content-Length: {self._headers}")
        if size:
            buffers.append(body)

    def _head(self, length: int | None) -> bytes:
        """The head; `length` is the body's if it is known."""
        headers = list(self._headers)
        if self._reason is None and self._status in _STATUS_LINES:
            lines = [_STATUS_LINES[self._status]]
        else:
            reason = _REASONS.get(self._status, b"Unknown") if self._reason is None else self._reason
            lines = [b"HTTP/1.1 %d %b\r\n" % (self._status, reason)]
        if self._http10:
            lines[0] = b"HTTP/1.0" + lines[0][8:]
        lines += [b"%b: %b\r\n" % header for header in headers]
        declared = None
        for name, value in headers:
            if len(name) == 14 and name.lower() == b"content-length":
                declared = int(value)
        if declared is not None:
            self._remaining = declared
        elif length is not None:
            self._remaining = length
            if self._status != 204 and self._status != 304:
                lines.append(b"Content-Length: %d\r\n" % length)
        elif not self._body_allowed:
            pass
        elif self._http10:
            self.keep_alive = False
        else:
            self._chunked = True
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if self._http10:
            if self.keep_alive:
                lines.append(b"Connection: keep-alive\r\n")
        elif not self.keep_alive:
            lines.append(b"Connection: close\r\n")
        count = len(lines)
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != count + 1 or head.count(b"\r") != count + 1:
            raise ResponseMessageError(f"a line break in the status line or in a header: {headers}")
        return head


def error_response(status: int, json_body: bytes) -> bytes:
    """A whole response that ends its connection."""
    encoder = ResponseEncoder(keep_alive=False)
    encoder.start({"status": status, "headers": [(b"Content-Type", b"application/json")]})
    return b"".join(encoder.body({"body": json_body}))


def whole_response(answer: Answer, keep_alive: bool = True) -> list[Buffer]:
    """The response to an HTTP/1.1 request, in one piece; its headers are known to be lines.

    Args:
        keep_alive: the connection is kept after it.
    """
    body, tail = answer.body, answer.tail
    size = len(body) if tail is None else len(body) + len(tail)
    lines = b""
    for header in answer.headers:
        lines += b"%b: %b\r\n" % header
    if not keep_alive:
        lines += b"Connection: close\r\n"
    status = _STATUS_LINES[answer.status]
    head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n" % (status, answer.media, size, lines)
    return [head + body] if tail is None else [head + body, tail]
