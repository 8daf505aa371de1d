"""One request of an HTTP/1.x connection, and its response."""

from __future__ import annotations

import contextlib
from typing import Protocol

import httptools
import trio

from ....engine.tensor import Buffer
from ...sockets.limits import Limits
from ..exchange import Answer, Exchange
from .messages import CHUNKED, Request, RequestParser, chunk, whole_response

_CONTINUE: list[Buffer] = [b"HTTP/1.1 100 Continue\r\n\r\n"]
READ_BYTES = 65_536


class Carrier(Protocol):
    """The connection, as its exchange sees it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def certificate(self) -> bytes:
        """See `Transport.certificate`."""
        ...

    def ends_after(self, request: Request) -> bool:
        """Whether the client is to connect anew after the answer to `request`, whose head is about to be written."""
        ...

    async def write(self, buffers: list[Buffer]) -> None:
        """Send; wait until the socket has taken it all."""

    async def read_body(self, request: Request) -> None:
        """Read more of a body into `request.pieces`."""


class H1Exchange(Exchange):
    """One request and its response.

    Attributes:
        keep_alive: whether the connection may live on afterwards; settled when the head is written.
    """

    def __init__(
        self, connection: Carrier, request: Request, parser: RequestParser, client: tuple[str, int] | None
    ) -> None:
        path = request.target
        if not path.startswith(b"/") and b"://" in path:  # absolute form, as sent to proxies
            with contextlib.suppress(httptools.HttpParserInvalidURLError):  # then no route will match it
                path = httptools.parse_url(path).path or b"/"
        target, names = path.partition(b"?")[0], request.header_names
        super().__init__(request.http_version, request.method, target, request.headers, names, client)
        self.certificate = connection.certificate
        self._connection = connection
        self._parser = parser
        self._request = request
        self._received_all = False
        self._http10 = request.http_version == "1.0"
        self._head: list[Buffer] = []  # of a response that has no piece yet
        self.keep_alive = request.keep_alive

    async def read(self) -> tuple[Buffer, bool]:
        request = self._request
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
            self._parser.handed_over()  # the application has what has come of the body
        return body, not request.complete

    async def respond(self, answer: Answer) -> None:
        await self._write(self._response(answer, with_body=self.method != "HEAD"), last=True)

    async def begin(self, answer: Answer) -> None:
        if self._http10:
            self.keep_alive = False
        self._head = self._response(answer, framing=b"" if self._http10 else CHUNKED)

    async def send(self, piece: Buffer, last: bool = False) -> None:
        head, self._head = self._head, []
        await self._write(head + ([piece] if self._http10 else chunk(piece, last)), last)

    def _response(self, answer: Answer, with_body: bool = True, framing: bytes | None = None) -> list[Buffer]:
        request = self._request
        too_much = (request.remaining or 0) > self._connection.limits.drain_bytes
        if not request.complete and (request.expects_continue or too_much):
            self.keep_alive = False
        if self._connection.ends_after(request):
            self.keep_alive = False
        return whole_response(answer, self.keep_alive, http10=self._http10, with_body=with_body, framing=framing)

    async def _write(self, buffers: list[Buffer], last: bool) -> None:
        self.begun, self.done = True, last
        await self._connection.write(buffers)
        if not last:
            await trio.lowlevel.checkpoint()  # an app that streams faster than it computes lets others run too

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
