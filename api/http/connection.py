"""One HTTP/1.x connection: one task that parses requests and drives an ASGI app with each, in order.

The work for a small request is kept to one `recv`, one parse, one call of the app and one `send`:

- The app runs in the connection's own task, as soon as the head is complete. `receive` reads the socket when the app
  asks, so an app that does not read its body does not have it read, and TCP slows the client down.
- No timer, cancel scope or task is made for a request. The connection notes its phase and when it began, by the
  roster's coarse clock; the roster's sweep ends it when that takes too long or the client goes away (roster.py).
- Ending a connection from outside is cancelling its one scope; the app sees trio's `Cancelled` wherever it waits.
  What is to be said to the client then (408, 400) is left in `_farewell` and sent after the app has unwound.

Bodies of known length that are larger than one read bypass the parser: they are received straight into the buffer
that the app gets.
"""

from __future__ import annotations

import contextlib
import logging
from typing import NoReturn
from urllib.parse import unquote_to_bytes

import httptools
import numpy as np
import orjson
import trio

from ...engine.tensor import Buffer
from ..sockets.limits import Limits
from ..sockets.roster import Phase, Roster
from ..sockets.transport import PeerGoneError, PlainTransport, TlsTransport
from .asgi import HEADER_NAMES, AsgiApp, Message
from .h1_parser import Refusal, Request, RequestParser
from .h1_response import ResponseEncoder, ResponseMessageError, ResponseState, error_response
from .hypercorn_bridge import HTTP2_PREFACE, serve_http2

log = logging.getLogger(__name__)

_READ_BYTES = 65_536
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_CONTINUE: list[Buffer] = [b"HTTP/1.1 100 Continue\r\n\r\n"]


class Connection:
    """Serves one client until it leaves, misbehaves, or is cancelled.

    Args:
        app: the ASGI 3 application.
        transport: the accepted connection.
        roster: where the connection is entered while it lives.
        client, server: (address, port) of both ends, for the scope.
    """

    __slots__ = (
        "_app",
        "_client",
        "_encoder",
        "_farewell",
        "_parser",
        "_roster",
        "_scope",
        "_server",
        "_transport",
        "phase",
        "since_s",
    )

    def __init__(
        self,
        app: AsgiApp,
        transport: PlainTransport | TlsTransport,
        roster: Roster,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
    ) -> None:
        self._app = app
        self._transport = transport
        self._roster = roster
        self._client = client
        self._server = server
        self._scope = trio.CancelScope()
        self._parser = RequestParser(roster.limits, allow_h2c=isinstance(transport, PlainTransport))
        self._encoder: ResponseEncoder | None = None
        self._farewell: Refusal | None = None
        self.phase = Phase.IDLE
        self.since_s = roster.now_s

    def __repr__(self) -> str:
        return f"<Connection from {self._client}: {self.phase.value}>"

    # ---- seen by the roster ----

    def fileno(self) -> int:
        return self._transport.fileno()

    def time_out(self) -> None:
        if self.phase is Phase.HEAD or self.phase is Phase.BODY:
            what = "head" if self.phase is Phase.HEAD else "body"
            self._farewell = Refusal(408, f"request {what} did not arrive in time")
        self._end()

    def peer_gone(self) -> None:
        self._end()

    def abort(self) -> None:
        if self.phase is Phase.HTTP2:
            self._transport.shut_down()  # hypercorn shields its sends from cancellation; this ends them
        self._end()

    def _end(self) -> None:
        self.enter(Phase.ENDING)
        self._scope.cancel()

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since_s = self._roster.now_s

    # ---- the task ----

    async def run(self) -> None:
        """The connection's life. Raises nothing but cancellation from outside."""
        try:
            try:
                with self._scope:
                    await self._serve()
            except Exception:
                # The boundary to the application: a bug in a handler costs its own connection, never the server.
                log.exception("error while serving %s", self._client)
                self._farewell = Refusal(500, "internal error")
            if self._farewell is not None and self.phase is not Phase.HTTP2:
                self._scope = trio.CancelScope()
                with self._scope, contextlib.suppress(PeerGoneError):
                    await self._say_farewell(self._farewell)
        finally:
            self._parser.close()
            self._transport.close()
            self._roster.remove(self)

    async def _serve(self) -> None:
        transport = self._transport
        if isinstance(transport, TlsTransport):
            self.enter(Phase.HANDSHAKE)
            try:
                protocol = await transport.handshake()
            except PeerGoneError:
                return
            if protocol == "h2":
                await self._hand_over(b"")
                return
        self.enter(Phase.IDLE)
        data = await self._first_bytes()
        if data.startswith(HTTP2_PREFACE):
            await self._hand_over(data)
            return
        self._parser.feed(data)
        while (request := await self._next_request()) is not None:
            if request.upgrade:
                await self._hand_over(request.head() + self._parser.leftover)
                return
            if not await self._answer(request):
                return

    async def _first_bytes(self) -> bytes:
        """Enough to tell HTTP/2's preface from a request; empty if the client left."""
        data = await self._transport.receive(_READ_BYTES)
        while data and len(data) < len(HTTP2_PREFACE) and HTTP2_PREFACE.startswith(data):
            if self.phase is not Phase.HEAD:
                self.enter(Phase.HEAD)
            more = await self._transport.receive(_READ_BYTES)
            if not more:
                break
            data += more
        return data

    async def _next_request(self) -> Request | None:
        """The next request with a complete head; None when there will be none."""
        parser = self._parser
        while not parser.requests:
            if parser.failure is not None:
                self._farewell = parser.failure
                return None
            if parser.between_requests:
                self.enter(Phase.IDLE)
            elif self.phase is not Phase.HEAD:
                self.enter(Phase.HEAD)
            data = await self._transport.receive(_READ_BYTES)
            if not data:
                return None
            parser.feed(data)
        return parser.requests.pop(0)

    async def _answer(self, request: Request) -> bool:
        """Runs the app with a request. Returns whether another request may follow."""
        self._roster.requests += 1
        self.enter(Phase.APP)
        exchange = Exchange(self, request)
        self._encoder = encoder = exchange.encoder
        await self._app(exchange.scope(self._client, self._server), exchange.receive, exchange.send)
        if encoder.state is not ResponseState.DONE:
            log.error("the application left its response to %s %r unfinished", request.method, request.target)
            self._farewell = Refusal(500, "the application gave no response")
            return False
        if encoder.keep_alive and not request.complete:
            encoder.keep_alive = await exchange.drain()
        if not encoder.keep_alive:
            await self._part(lingering=not request.complete or self._parser.failure is not None)
            return False
        self._encoder = None
        if self._parser.requests:
            # Pipelined requests that are answered without waiting must not keep the other connections from running.
            await trio.lowlevel.checkpoint()
        return True

    async def _hand_over(self, replay: bytes) -> None:
        self.enter(Phase.HTTP2)
        await serve_http2(self._app, self._transport, replay, self.limits)

    async def _say_farewell(self, refusal: Refusal) -> None:
        """Tells the client why its connection ends, unless a response has begun already."""
        self.enter(Phase.CLOSING)
        begun = self._encoder is not None and self._encoder.state in (ResponseState.BODY, ResponseState.DONE)
        if refusal.status == 0 or begun:
            return
        body = b'{"error":%b}' % orjson.dumps(refusal.message)
        rest = self._transport.send_now([error_response(refusal.status, body)])
        while rest:
            rest = await self._transport.send_some(rest)
        await self._linger()

    async def _part(self, *, lingering: bool) -> None:
        """Closes the connection after a complete response."""
        with contextlib.suppress(PeerGoneError):
            if lingering:
                await self._linger()
            await self._transport.close_gracefully()

    async def _linger(self) -> None:
        """Takes in what the client is still sending. Closing with unread bytes would reset the connection, and the
        client might never see the answer."""
        self.enter(Phase.CLOSING)
        await self._transport.send_eof()
        while await self._transport.receive(_READ_BYTES):
            pass

    # ---- used by the exchange ----

    @property
    def limits(self) -> Limits:
        return self._roster.limits

    @property
    def scheme(self) -> str:
        return self._transport.scheme

    async def give_up(self, refusal: Refusal | None = None) -> NoReturn:
        """Ends the connection from inside the application, by cancellation."""
        self._farewell = refusal
        self._end()
        await trio.lowlevel.checkpoint()
        raise PeerGoneError  # only where the application has shielded itself

    def write_now(self, buffers: list[Buffer]) -> list[Buffer]:
        """Writes what goes without waiting; what is left is for `write`, which also finds out if the peer is gone."""
        try:
            return self._transport.send_now(buffers)
        except PeerGoneError:
            return buffers

    async def write(self, buffers: list[Buffer]) -> None:
        try:
            rest = self._transport.send_now(buffers)
            if rest:
                while rest:
                    self.enter(Phase.SENDING)
                    rest = await self._transport.send_some(rest)
                self.enter(Phase.APP)
        except PeerGoneError:
            await self.give_up()

    async def read_body(self, request: Request) -> None:
        """Reads more of a body into `request.pieces`."""
        self.enter(Phase.BODY)
        if request.bypass or (request.remaining is not None and request.remaining > _READ_BYTES):
            await self._read_large_body(request, request.remaining or 0)
        else:
            data = await self._transport.receive(_READ_BYTES)
            if not data:
                await self.give_up()
            self._parser.feed(data)
            if self._parser.failure is not None and not request.complete:
                await self.give_up(self._parser.failure)
        self.enter(Phase.APP)

    async def _read_large_body(self, request: Request, remaining: int) -> None:
        request.bypass = True
        self._parser.restart()
        filled = sum(map(len, request.pieces))
        size = filled + min(remaining, self.limits.body_piece_bytes)
        buffer = np.empty(size, np.uint8).data  # not zeroed: what a client only announces costs no memory
        buffer[:filled] = b"".join(request.pieces)
        while filled < size:
            count = await self._transport.receive_into(buffer[filled:])
            if not count:
                await self.give_up()
            self.enter(Phase.BODY)
            filled += count
        request.pieces = [buffer]
        request.remaining = remaining - min(remaining, self.limits.body_piece_bytes)
        request.complete = request.remaining == 0


class Exchange:
    """One request and its response: the app's `receive` and `send`."""

    __slots__ = ("_connection", "_received_all", "_request", "encoder")

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._received_all = False
        self.encoder = ResponseEncoder(
            http10=request.http_version == "1.0", head_only=request.method == "HEAD", keep_alive=request.keep_alive
        )

    def scope(self, client: tuple[str, int] | None, server: tuple[str, int] | None) -> Message:
        """The ASGI scope. ``raw_path`` is what the client sent, ``path`` its decoded form."""
        request = self._request
        target = request.target
        if not target.startswith(b"/") and b"://" in target:  # absolute form, as sent to proxies
            with contextlib.suppress(httptools.HttpParserInvalidURLError):  # then no route will match it
                url = httptools.parse_url(target)
                target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
        raw_path, _, query = target.partition(b"?")
        path = unquote_to_bytes(raw_path) if b"%" in raw_path else raw_path
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": request.http_version,
            "method": request.method,
            "scheme": self._connection.scheme,
            "path": path.decode("utf-8", "replace"),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": request.headers,
            HEADER_NAMES: request.header_names,
            "client": client,
            "server": server,
        }

    async def receive(self) -> Message:
        """``http.request`` with the next piece of the body. After the whole body it waits for the end of the
        connection, which cancels it; after the response it is ``http.disconnect``."""
        request = self._request
        if self.encoder.state is ResponseState.DONE:
            return {"type": "http.disconnect"}
        if self._received_all:
            await trio.sleep_forever()
        while not request.complete and (not request.pieces or (request.remaining or 0) > _READ_BYTES):
            if request.expects_continue:
                request.expects_continue = False
                await self._connection.write(_CONTINUE)
            await self._connection.read_body(request)
            if request.bypass:
                break
        pieces = request.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        request.pieces = []
        self._received_all = request.complete
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
