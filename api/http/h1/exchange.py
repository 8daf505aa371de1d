"""One HTTP/1.x request and its response, as the ASGI app sees them: the scope, `receive` and `send`."""

from __future__ import annotations

import contextlib
from typing import Protocol

import httptools
import trio

from ....engine.tensor import Buffer
from ...sockets.limits import Limits
from ..asgi import HEADER_NAMES, Message, http_scope
from .parser import Request
from .response import ResponseEncoder, ResponseMessageError, ResponseState

_CONTINUE: list[Buffer] = [b"HTTP/1.1 100 Continue\r\n\r\n"]
READ_BYTES = 65_536


class ExchangeConnection(Protocol):
    """What an exchange needs of its connection (`connection.H1Connection`)."""

    @property
    def limits(self) -> Limits: ...

    @property
    def scheme(self) -> str: ...

    def handed_over(self) -> None: ...

    def write_now(self, buffers: list[Buffer]) -> list[Buffer]: ...

    async def write(self, buffers: list[Buffer]) -> None: ...

    async def read_body(self, request: Request) -> None: ...


class Exchange:
    """One request and its response: the app's `receive` and `send`."""

    def __init__(self, connection: ExchangeConnection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._received_all = False
        self.encoder = ResponseEncoder(
            http10=request.http_version == "1.0", head_only=request.method == "HEAD", keep_alive=request.keep_alive
        )

    def scope(self, client: tuple[str, int] | None, server: tuple[str, int] | None) -> Message:
        """The ASGI scope."""
        request = self._request
        target = request.target
        if not target.startswith(b"/") and b"://" in target:  # absolute form, as sent to proxies
            with contextlib.suppress(httptools.HttpParserInvalidURLError):  # then no route will match it
                url = httptools.parse_url(target)
                target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
        scheme = self._connection.scheme
        scope = http_scope(request.http_version, request.method, scheme, target, request.headers, client, server)
        scope[HEADER_NAMES] = request.header_names
        return scope

    async def receive(self) -> Message:
        """``http.request`` with the next piece of the body. After the whole body it waits for the end of the
        connection, which cancels it; after the response it is ``http.disconnect``."""
        request = self._request
        if self.encoder.state is ResponseState.DONE:
            return {"type": "http.disconnect"}
        if self._received_all:
            await trio.sleep_forever()
        while not request.complete and (not request.pieces or (request.remaining or 0) > READ_BYTES):
            if request.expects_continue:
                request.expects_continue = False
                await self._connection.write(_CONTINUE)
            await self._connection.read_body(request)
        pieces = request.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        request.pieces = []
        self._received_all = request.complete
        if request.remaining is None:
            self._connection.handed_over()
        return {"type": "http.request", "body": body, "more_body": not request.complete}

    async def send(self, message: Message) -> None:
        """``http.response.start`` (with an optional ``reason``, bytes) and ``http.response.body``."""
        kind = message["type"]
        if kind == "http.response.body":
            request = self._request
            encoder = self.encoder
            if not request.complete and encoder.state is ResponseState.HEAD and self._hard_to_drain():
                encoder.keep_alive = False
            rest = self._connection.write_now(encoder.body(message))
            if rest:
                await self._connection.write(rest)
            if encoder.state is ResponseState.BODY:
                await trio.lowlevel.checkpoint()  # an app that streams faster than it computes lets others run too
        elif kind == "http.response.start":
            self.encoder.start(message)
        else:
            raise ResponseMessageError(f"unknown message type {kind!r}")

    def _hard_to_drain(self) -> bool:
        request = self._request
        return request.expects_continue or (request.remaining or 0) > self._connection.limits.drain_bytes

    async def drain(self) -> bool:
        """Reads what the app left of the body. False if there is too much of it."""
        request = self._request
        dropped = 0
        while not request.complete:
            dropped += sum(map(len, request.pieces))
            request.pieces = []
            if dropped > self._connection.limits.drain_bytes:
                return False
            await self._connection.read_body(request)
        return True
