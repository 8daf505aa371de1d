"""One HTTP/2 connection of the HTTP front end: each request runs the application in a task of its own."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ....engine.errors import RefusalReason
from ....engine.tensor import Buffer
from ...http2.connection import Http2Connection, Http2Group
from ...http2.frames import ErrorCode, RequestReceived, StreamFault
from ...http2.headers import Field, encode_block
from ...sockets.limits import BodyPace, Limits
from ...sockets.roster import Roster
from ...sockets.transport import Transport
from ..exchange import Answer, Application, Exchange, json_refusal

log = logging.getLogger(__name__)

_MAX_HELD_STREAMS = 1024
"""Of all connections of a service. What such a stream's window lets come is in no budget: 64 MiB in all."""


_LENT_BYTES = 2048
"""As many streams as a connection may have, with so much each, leave others room in the connection's window."""


# ---- what the header list of a request says, and the header blocks of responses; a list that HTTP/2 lets through and
# HTTP does not costs its stream, as malformed requests do (RFC 9113 §8.1.1) ----

_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PATH = re.compile(rb"/[!-~]*|\*")
_LENGTH = re.compile(rb"[0-9]{1,18}")

CONTINUE = encode_block([(b":status", b"100")])


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's headers.

    Attributes:
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


def _response_block(answer: Answer, size: int | None = None) -> bytes:
    """The header block of a response: names in lower case, with the size of its body, if that is known."""
    fields = [(b":status", b"%d" % answer.status), (b"content-type", answer.media)]
    if size is not None:
        fields.append((b"content-length", b"%d" % size))
    return encode_block(fields + [(name.lower(), value) for name, value in answer.headers])


# ---- requests and connections ----

_READ_BYTES = 65_536


class RequestBody:
    """The body of one request, between the frames that bring it and the application that asks for it.

    Rule 1: Only what the app has asked for is consumed. So the stream's window closes when it does not ask, and the
            client waits.
    Rule 2: A body of announced length comes whole; if it is larger than one read, it is received into a buffer of its
            size. The app has seen how long it is before it asks. Any other body comes as it arrives.
    Rule 3: A body that is not as long as its content-length is malformed (RFC 9113 §8.1.1).

    Args:
        length: the announced one; None if there is none.
        consumed: told how many received bytes the client may send anew.
        memory: see `Readiness`.

    Attributes:
        unconsumed: bytes that have come and have not been asked for.
        complete: all of it has arrived.
    """

    def __init__(
        self,
        length: int | None,
        limits: Limits,
        consumed: Callable[[int], None],
        memory: Callable[[int], memoryview],
    ) -> None:
        self._length = length
        self._limits = limits
        self._consumed = consumed
        self._memory = memory
        self._news = trio.lowlevel.ParkingLot()
        self._pieces: list[Buffer] = []
        self._buffer: memoryview | None = None  # of the piece that is being received
        self._filled = 0
        self.unconsumed = 0
        self._arrived = 0
        self._given = 0
        self.complete = False
        self._over = False
        self._dropping = False
        self._pace: BodyPace | None = None
        self._waits_since_s: float | None = None  # when something last came, while the app waits

    # ---- from the client ----

    def add(self, data: bytes) -> bool:
        """The next bytes. False: there are more than announced."""
        self._arrived += len(data)
        self.unconsumed += len(data)
        if self._length is not None and self._arrived > self._length:
            return False
        if self._buffer is not None:
            self._fill(data)
        elif data:
            self._pieces.append(data)
        if self._waits_since_s is not None:
            self._note_progress(len(data))
            self._consume()
            if self._length is None:
                self._news.unpark_all()
        elif self._dropping:
            self._news.unpark_all()
        return True

    def end(self) -> bool:
        """The body is complete. False: it is shorter than announced."""
        if self._length is not None and self._arrived != self._length:
            return False  # who waits is cancelled, and is not to see what has come
        self.complete = True
        self._news.unpark_all()
        return True

    def _fill(self, data: Buffer) -> None:
        assert self._buffer is not None, "only what is received into a buffer"
        end = self._filled + len(data)
        self._buffer[self._filled : end] = data
        self._filled = end

    def _consume(self) -> None:
        nbytes, self.unconsumed = self.unconsumed, 0
        if nbytes:
            self._consumed(nbytes)

    def _note_progress(self, nbytes: int) -> None:
        assert self._pace is not None, "who waits has one"
        now_s = self._waits_since_s = trio.current_time()
        self._pace.arrived(nbytes, now_s)
        self._pace.wait(now_s)

    # ---- for the app ----

    async def next(self) -> tuple[Buffer, bool]:
        """The next piece, and whether more follows. After the last one it waits until it is cancelled."""
        if self._over:
            await trio.sleep_forever()
        length = self._length
        if length is not None and length > _READ_BYTES and self._buffer is None:
            self._buffer = self._memory(length)  # not zeroed: what is only announced costs no memory
            for piece in self._pieces:
                self._fill(piece)
            self._pieces.clear()
        self._consume()
        if not self._has_next():
            await self._wait()
        piece: Buffer
        if self._buffer is not None:
            piece, self._buffer = self._buffer, None
        else:
            piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
        self._given += len(piece)
        self._over = self.complete and self._given == self._arrived
        return piece, not self._over

    def _has_next(self) -> bool:
        return self.complete or (self._length is None and bool(self._pieces))

    async def _wait(self) -> None:
        if self._pace is None:
            self._pace = BodyPace(self._limits)
        now_s = self._waits_since_s = trio.current_time()
        self._pace.wait(now_s)
        try:
            while not self._has_next():
                await self._news.park()
        finally:
            self._waits_since_s = None
            self._pace.arrived(0, trio.current_time())

    async def drop(self, limit_bytes: int) -> None:
        """Waits for the end. What still comes is dropped; the client may send so many bytes of it."""
        self._buffer = None
        self._dropping = True
        while not self.complete:
            self._pieces.clear()
            if limit_bytes > 0:
                limit_bytes -= self.unconsumed
                self._consume()
            await self._news.park()

    def is_late(self, now_s: float) -> bool:
        """Whether the app has waited too long."""
        since_s = self._waits_since_s
        if since_s is None or self._pace is None:
            return False
        return now_s - since_s > self._limits.body_timeout_s or self._pace.is_slow(now_s)


class H2Exchange(Exchange):
    """One request and its response.

    Rule 1: `respond` and `send` return when the client's windows, and its socket, have let through what was sent. A
            client that lets nothing through for `Limits.write_timeout_s` loses the stream.
    Rule 2: An exchange is ended from outside by cancelling its scope. The app sees trio's `Cancelled`, as over
            HTTP/1.1.
    Rule 3: What comes before the app asks for it, beyond `_LENT_BYTES`, does not count against the connection's window:
            streams that wait for room in the server-wide budget must not keep the others of their connection from
            going on.
    Rule 4: A response that is complete before its request is ended a little later: the end makes the server reset the
            stream, and there are clients (curl 7.88) that drop a response if they are reset while they send.

    Attributes:
        scope: of the app.
        gone: the response is not needed any more.
        refusal: what to answer instead of the app, once it has unwound.
    """

    def __init__(self, connection: H2Connection, stream_id: int, head: RequestHead) -> None:
        super().__init__("2", head.method, head.target.partition(b"?")[0], head.headers, None, connection._client)
        self.certificate = connection._transport.certificate
        self._connection = connection
        self._body = RequestBody(head.content_length, connection.limits, self._consumed, connection._transport.memory)
        self._held = False
        self._news = trio.lowlevel.ParkingLot()
        self._expects_continue = head.expects_continue
        self._head: bytes | None = None  # of a response of which nothing has been sent
        self._pending = 0
        self._sends_since_s: float | None = None  # when the client has last let something through
        self.stream_id = stream_id
        self.scope = trio.CancelScope()
        self.gone = False
        self.refusal: Answer | None = None

    # ---- told by the connection ----

    def receive(self, data: bytes | memoryview, end_stream: bool) -> None:
        self._expects_continue = False
        if not self._body.add(bytes(data)):
            self._malformed()
            return
        if self._body.unconsumed > _LENT_BYTES and not self._held:
            self._held = self._connection.hold(self.stream_id)
        if end_stream:
            self.request_ended()

    def request_ended(self) -> None:
        if not self._body.end():
            self._malformed()

    def let_go(self) -> None:
        """What comes counts against the connection's window again."""
        if self._held:
            self._held = False
            self._connection.let_go(self.stream_id)

    def _consumed(self, nbytes: int) -> None:
        self.let_go()
        self._connection.core.consumed(self.stream_id, nbytes)
        self._connection.mark(1)

    def drained(self) -> None:
        self._news.unpark_all()

    def cancel(self) -> None:
        self.gone = True
        self.scope.cancel()

    def _malformed(self) -> None:
        """The body is not as long as its content-length says (RFC 9113 §8.1.1)."""
        self._connection.core.reset(self.stream_id, ErrorCode.PROTOCOL_ERROR)
        self.cancel()

    def look_at_clock(self, now_s: float) -> None:
        """Gives up a client that sends its body, or takes the response, too slowly."""
        if self._body.is_late(now_s):
            self.refusal = json_refusal(408, "request body did not arrive in time")
            self._connection.count_refusal(RefusalReason.TOO_SLOW)
            self.scope.cancel()
        elif self._sends_since_s is not None:
            pending = self._connection.core.pending(self.stream_id)
            if pending != self._pending:
                self._pending = pending
                self._sends_since_s = now_s
            elif now_s - self._sends_since_s > self._connection.limits.write_timeout_s:
                self._connection.core.reset(self.stream_id, ErrorCode.CANCEL)
                self.cancel()

    # ---- for the app ----

    async def read(self) -> tuple[Buffer, bool]:
        if self.gone:
            await trio.lowlevel.checkpoint()  # raises Cancelled: what has come is not to be believed
        if self._expects_continue:
            self._expects_continue = False
            self._connection.core.send_headers(self.stream_id, CONTINUE)
            self._connection.mark(1)
        return await self._body.next()

    async def respond(self, answer: Answer) -> None:
        size = len(answer.body) + (0 if answer.tail is None else len(answer.tail))
        self._head = _response_block(answer, size)
        await self._send([each for each in (answer.body, answer.tail) if each], last=True)

    async def begin(self, answer: Answer) -> None:
        self._head = _response_block(answer)

    async def send(self, piece: Buffer, last: bool = False) -> None:
        await self._send([piece] if len(piece) else [], last)

    async def _send(self, pieces: list[Buffer], last: bool) -> None:
        core = self._connection.core
        bodiless = self.method == "HEAD"
        ends = bodiless or (last and self._body.complete)
        if self._head is not None:
            core.send_headers(self.stream_id, self._head, bodiless or (ends and not pieces))
            self._head = None
            ends = ends and bool(pieces)
        if not bodiless and (pieces or ends):
            core.send_data(self.stream_id, pieces, ends)
        self.begun = True
        self.done = last and (bodiless or self._body.complete)
        self._connection.mark(1)
        await self._until_sent()
        if last and not self.done:
            await self._end_early()
        elif not last:
            await trio.lowlevel.checkpoint()  # an app that streams faster than it computes lets others run too

    async def _end_early(self) -> None:
        """Ends a response that is sent before its request has come (rule 4)."""
        limits = self._connection.limits
        with trio.move_on_after(limits.linger_timeout_s):
            await self._body.drop(limits.drain_bytes)
        self.done = True
        self._connection.core.send_data(self.stream_id, [], True)
        self._connection.mark(1)

    async def _until_sent(self) -> None:
        connection = self._connection
        self._pending = connection.core.pending(self.stream_id)
        if self._pending:
            self._sends_since_s = trio.current_time()
            try:
                while connection.core.pending(self.stream_id):
                    await self._news.park()
            finally:
                self._sends_since_s = None
        if connection.blocked:
            await connection.until_unblocked()


class H2Connection(Http2Connection[RequestHead, H2Exchange]):
    """Serves one client until it leaves, misbehaves, or is cancelled."""

    def __init__(
        self,
        app: Application,
        group: Http2Group,
        transport: Transport,
        roster: Roster,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(group, transport, roster, client, parse_head)
        self._app = app

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
        exchange = self.calls[event.stream_id] = H2Exchange(self, event.stream_id, event.head)
        if event.data:
            exchange.receive(event.data, True)
        elif event.end_stream:
            exchange.request_ended()
        self.start(self._serve_exchange, exchange)

    async def _serve_exchange(self, exchange: H2Exchange) -> None:
        """Runs the app with a request. Raises nothing but cancellation from outside."""
        try:
            if not exchange.gone:
                with exchange.scope:
                    await self._run_app(exchange)
            if exchange.gone:
                return
            if exchange.refusal is not None:
                self._refuse(exchange, exchange.refusal)
            elif not exchange.done:
                log.error("the application left its response to %s %r unfinished", exchange.method, exchange.path)
                self._refuse(exchange, json_refusal(500, "the application gave no response"))
        finally:
            exchange.let_go()
            del self.calls[exchange.stream_id]
            self.mark(0)

    async def _run_app(self, exchange: H2Exchange) -> None:
        try:
            await self._app(exchange)
        except Exception:
            # The boundary to the application: a bug in a handler costs its own request, never the connection.
            log.exception("error while serving %s", self._client)
            exchange.refusal = json_refusal(500, "internal error")

    def _refuse(self, exchange: H2Exchange, answer: Answer) -> None:
        """Answers in place of the app, unless that has begun to."""
        if exchange.begun:
            self.core.reset(exchange.stream_id, ErrorCode.INTERNAL_ERROR)
            return
        self.core.send_headers(exchange.stream_id, _response_block(answer, len(answer.body)))
        self.core.send_data(exchange.stream_id, [answer.body], True)
