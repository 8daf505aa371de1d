"""One HTTP/1.x request, as the parser makes it."""

from __future__ import annotations

from ...engine.tensor import Buffer


class Request:
    """One request: its head, and as much of its body as has arrived and was not taken yet.

    Attributes:
        target: the request target as received, bytes.
        headers: (lower-case name, value), in order.
        header_names: the names as received, in the same order.
        keep_alive: whether the client lets the connection live on.
        expects_continue: the client waits for ``100 Continue`` before it sends the body.
        remaining: bytes of the body yet to come; None for a chunked body.
        pieces: arrived pieces of the body; their taker clears the list.
        complete: the whole body has arrived.
    """

    __slots__ = (
        "complete",
        "expects_continue",
        "header_names",
        "headers",
        "http_version",
        "keep_alive",
        "method",
        "pieces",
        "remaining",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        http_version: str,
        headers: list[tuple[bytes, bytes]],
        header_names: list[bytes],
    ) -> None:
        self.method = method
        self.target = target
        self.http_version = http_version
        self.headers = headers
        self.header_names = header_names
        self.keep_alive = True
        self.expects_continue = False
        self.remaining: int | None = 0
        self.pieces: list[Buffer] = []
        self.complete = False

    def again(self, body: bytes) -> Request:
        """A complete request with the same head and another body."""
        request = Request(self.method, self.target, self.http_version, self.headers.copy(), self.header_names.copy())
        request.complete = True
        if body:
            request.pieces.append(body)
        return request

    def head(self, *, without: bytes = b"") -> bytes:
        """The head in HTTP/1.1's form again, leaving out the header `without`."""
        lines = [b"%b %b HTTP/%b" % (self.method.encode(), self.target, self.http_version.encode())]
        named = zip(self.header_names, self.headers, strict=True)
        lines += [b"%b: %b" % (received, value) for received, (name, value) in named if name != without]
        return b"\r\n".join(lines) + b"\r\n\r\n"
