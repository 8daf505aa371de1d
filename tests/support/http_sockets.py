"""Real sockets for tests of the HTTP front end: a service on a free port, and clients that send exact bytes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httptools
import trio

from trireme.api.http.app import HttpService
from trireme.api.http.exchange import TEXT, Answer, Application, Exchange
from trireme.api.sockets.limits import Limits
from trireme.api.sockets.service import ServiceOptions
from trireme.api.sockets.transport import TlsOptions
from trireme.engine.admission.client_bytes import ClientAccounts

PATIENCE_S = 60.0
"""How long a test waits for what must happen; only a broken test or server gets there."""

QUICK = Limits(
    head_timeout_s=0.05,
    body_timeout_s=0.05,
    write_timeout_s=0.05,
    linger_timeout_s=0.5,
    sweep_interval_s=0.01,
)
"""Limits for tests in which a limit is to be met, and nothing has to be done before."""

LONG_S = 20.0
UNHURRIED = Limits(
    head_timeout_s=LONG_S,
    body_timeout_s=LONG_S,
    write_timeout_s=LONG_S,
    linger_timeout_s=LONG_S,
    sweep_interval_s=0.01,
)
"""Limits for tests in which there is something to do before a limit is met; with the `leaping_clock`."""


@asynccontextmanager
async def serving(
    app: Application,
    *,
    limits: Limits | None = None,
    tls: TlsOptions | None = None,
    accounts: ClientAccounts | None = None,
) -> AsyncIterator[HttpService]:
    """A service of `app` on a free port of the loopback interface."""
    service = HttpService(app, ServiceOptions(bind=("127.0.0.1:0",), limits=limits or Limits(), tls=tls), accounts)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            yield service
            service.close()


async def connect(service: HttpService) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", service.ports[0])


def connect_now(service: HttpService) -> socket.socket:
    """A connected socket; the kernel takes the connection, whether the service accepts or not."""
    return socket.create_connection(("127.0.0.1", service.ports[0]), timeout=PATIENCE_S)


async def read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    """All that comes until the server closes."""
    received = []
    with contextlib.suppress(trio.BrokenResourceError):
        async for data in stream:
            received.append(data)  # noqa: PERF401 - what came before an error counts
    return b"".join(received)


async def tell(service: HttpService, *pieces: bytes) -> bytes:
    """What the server says, until it closes, to a client that sends `pieces`, each in its own time, and waits."""
    async with await connect(service) as stream:
        for piece in pieces:
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked(0.001)
        return await read_to_end(stream)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that shows in no event."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nothing announces it
            await trio.sleep(0.002)


@dataclass
class Response:
    status: int = 0
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""


class Responses:
    """Reads responses off a stream, one after the other."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._parser = httptools.HttpResponseParser(self)
        self._current = Response()
        self._done: list[Response] = []
        self._body: list[bytes] = []

    async def next(self) -> Response:
        while not self._done:
            data = await self._stream.receive_some()
            if not data:
                raise EOFError("the server closed the connection")
            self._parser.feed_data(data)
        return self._done.pop(0)

    def on_message_begin(self) -> None:
        self._current = Response()
        self._body = []

    def on_status(self, status: bytes) -> None:
        self._current.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._current.body = b"".join(self._body)
        self._current.status = self._parser.get_status_code()
        if self._current.status != 100:
            self._done.append(self._current)


async def read_body(exchange: Exchange) -> bytes:
    body = b""
    more = True
    while more:
        piece, more = await exchange.read()
        body += piece
    return body


async def reply(exchange: Exchange, body: bytes = b"", *, status: int = 200) -> None:
    await exchange.respond(Answer(status, TEXT, body))


async def echo(exchange: Exchange) -> None:
    """Answers with what was asked: method, path and body."""
    body = await read_body(exchange)
    await reply(exchange, b"%b %b %b" % (exchange.method.encode(), exchange.path, body))
