"""One HTTP/2 connection of the HTTP front end: each request runs the ASGI app in a task of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ...http2.connection import Http2Connection, Http2Group
from ...http2.errors import ErrorCode
from ...http2.events import RequestReceived
from ...http2.frames import PREFACE
from ...http2.limits import Http2Limits, KeepaliveOptions, Rate
from ...sockets.limits import Limits
from ...sockets.roster import Roster
from ...sockets.transport import Transport
from ..asgi import AsgiApp, http_scope
from ..errors import error_body
from ..h1.parser import Refusal
from ..h1.response import ResponseState
from .exchange import Exchange
from .heads import RequestHead, parse_head, response_block

log = logging.getLogger(__name__)

_SMALLEST_WINDOW_BYTES = 65_535
_CONNECTION_WINDOW_BYTES = 1 << 18
_SMALLEST_FRAME_BYTES = 16_384
_MAX_HELD_STREAMS = 1024
"""Of all connections of a service. What such a stream's window lets come is in no budget: 64 MiB in all."""


def http2_limits(limits: Limits) -> Http2Limits:
    """Bounds of an HTTP/2 connection that carries HTTP requests.

    Windows are small, because what fills them has been received and is in no budget yet. Clients may ask as often as
    `Http2Limits.pings` allows whether the server is still there: that rule of gRPC's is not HTTP's.
    """
    return Http2Limits(
        max_concurrent_streams=limits.streams,
        header_list_bytes=limits.head_bytes,
        header_block_bytes=limits.head_bytes,
        max_frame_bytes=_SMALLEST_FRAME_BYTES,
        stream_window_bytes=_SMALLEST_WINDOW_BYTES,
        connection_window_bytes=_CONNECTION_WINDOW_BYTES,
        resets=Rate(1024, 100.0),
        tiny_data=Rate(1024, 100.0),
        keepalive=KeepaliveOptions(time_s=float("inf"), permit_without_calls=True, max_ping_strikes=0),
    )


@dataclass(frozen=True, slots=True)
class H2Front:
    """What serves the HTTP/2 connections of a service."""

    app: AsgiApp
    group: Http2Group


class H2Connection(Http2Connection[RequestHead, Exchange]):
    """Serves one client until it leaves, misbehaves, or is cancelled.

    Args:
        front: what it shares with others.
        transport: the accepted connection.
        roster: where the connection is entered while it lives.
        client, server: (address, port) of both ends, for the scope.
    """

    def __init__(
        self,
        front: H2Front,
        transport: Transport,
        roster: Roster,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
    ) -> None:
        super().__init__(front.group, transport, roster, client, parse_head)
        self._app = front.app
        self._server = server

    @property
    def limits(self) -> Limits:
        return self._roster.limits

    def consumed(self, stream_id: int, nbytes: int) -> None:
        """So many received bytes have been used up."""
        self.core.consumed(stream_id, nbytes)
        self.mark(1)

    def hold(self, stream_id: int) -> bool:
        """Have a stream's data not count against the connection's window (`Http2Server.hold`), until `let_go`; whether
        that is possible."""
        group = self._group
        if group.held_streams >= _MAX_HELD_STREAMS:
            return False
        group.held_streams += 1
        self.core.hold(stream_id, True)
        return True

    def let_go(self, stream_id: int) -> None:
        """The end of `hold`."""
        self._group.held_streams -= 1
        self.core.hold(stream_id, False)

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        for exchange in list(self.calls.values()):
            exchange.look_at_clock(now_s)
        if self.core.has_output:
            self.flush()

    def _open(self, event: RequestReceived[RequestHead]) -> None:
        self._roster.requests += 1
        exchange = self.calls[event.stream_id] = Exchange(self, event.stream_id, event.head)
        if event.end_stream:
            exchange.request_ended()
        self.start(self._serve_exchange, exchange)

    async def _serve_exchange(self, exchange: Exchange) -> None:
        """Runs the app with a request. Raises nothing but cancellation from outside."""
        try:
            if not exchange.gone:
                with exchange.scope:
                    await self._run_app(exchange)
            if exchange.gone:
                return
            if exchange.refusal is not None:
                self._refuse(exchange, exchange.refusal)
            elif exchange.state is not ResponseState.DONE:
                head = exchange.head
                log.error("the application left its response to %s %r unfinished", head.method, head.target)
                self._refuse(exchange, Refusal(500, "the application gave no response"))
        finally:
            exchange.let_go()
            del self.calls[exchange.stream_id]
            self.mark(0)

    async def _run_app(self, exchange: Exchange) -> None:
        head = exchange.head
        scheme = self._transport.scheme
        scope = http_scope("2", head.method, scheme, head.target, list(head.headers), self._client, self._server)
        try:
            await self._app(scope, exchange.take, exchange.send)
        except Exception:
            # The boundary to the application: a bug in a handler costs its own request, never the connection.
            log.exception("error while serving %s", self._client)
            exchange.refusal = Refusal(500, "internal error")

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        """Answers in place of the app, unless that has begun to."""
        if exchange.state in (ResponseState.BODY, ResponseState.DONE):
            self.core.reset(exchange.stream_id, ErrorCode.INTERNAL_ERROR)
            return
        body = error_body(refusal.message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        self.core.send_headers(exchange.stream_id, response_block(refusal.status, headers))
        self.core.send_data(exchange.stream_id, [body], True)


async def first_bytes(transport: Transport, max_bytes: int, in_part: Callable[[], None]) -> bytes:
    """What a client sends first: enough to tell HTTP/2's preface from a request; empty if it left.

    Args:
        max_bytes: most that is received at once.
        in_part: called when that was not enough.
    """
    data = await transport.receive(max_bytes)
    while data and len(data) < len(PREFACE) and PREFACE.startswith(data):
        in_part()
        more = await transport.receive(max_bytes)
        if not more:
            break
        data += more
    return data
