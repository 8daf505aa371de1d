"""One HTTP/2 request and its response, as the ASGI app sees them: the scope, `take` and `send`.

Rule 1: `send` returns when the client's windows, and its socket, have let through what was sent. A client that lets
        nothing through for `Limits.write_timeout_s` loses the stream.
Rule 2: An exchange is ended from outside by cancelling its scope. The app sees trio's `Cancelled`, as over HTTP/1.1.
Rule 3: What comes before the app asks for it, beyond `_LENT_BYTES`, does not count against the connection's window:
        streams that wait for room in the server-wide budget must not keep the others of their connection from going on.
Rule 4: A response that is complete before its request is ended a little later: the end makes the server reset the
        stream, and there are clients (curl 7.88) that drop a response if they are reset while they send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import trio

from ....engine.tensor import Buffer
from ...http2.errors import ErrorCode
from ...http2.server import Http2Server
from ...sockets.limits import Limits
from ...sockets.pace import BodyPace
from ..asgi import Message
from ..h1.parser import Refusal
from ..h1.response import ResponseMessageError, ResponseState
from .heads import CONTINUE, RequestHead, response_block

_LENT_BYTES = 2048
"""As many streams as a connection may have, with so much each, leave others room in the connection's window."""


class ExchangeConnection(Protocol):
    """What an exchange needs of its connection (`h2_connection.H2Connection`)."""

    @property
    def core(self) -> Http2Server[Any]: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def blocked(self) -> bool: ...

    def hold(self, stream_id: int) -> bool: ...

    def let_go(self, stream_id: int) -> None: ...

    def consumed(self, stream_id: int, nbytes: int) -> None: ...

    def mark(self, own: int) -> None: ...

    async def until_unblocked(self) -> None: ...


class Exchange:
    """One request and its response: the app's `take` (ASGI's receive) and `send`.

    Attributes:
        scope: of the app.
        state: how much of the response has been sent.
        gone: the response is not needed any more.
        refusal: what to answer instead of the app, once it has unwound.
    """

    def __init__(self, connection: ExchangeConnection, stream_id: int, head: RequestHead) -> None:
        self._connection = connection
        self._body = RequestBody(head.content_length, connection.limits, self._consumed)
        self._held = False
        self._news = trio.lowlevel.ParkingLot()
        self._expects_continue = head.expects_continue
        self._status = 200
        self._headers = b""
        self._left: int | None = None  # of the response's announced length
        self._pending = 0
        self._sends_since_s: float | None = None  # when the client has last let something through
        self.stream_id = stream_id
        self.head = head
        self.scope = trio.CancelScope()
        self.state = ResponseState.START
        self.gone = False
        self.refusal: Refusal | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.stream_id}: {self.head.method} {self.head.target!r}, response {self.state.value}>"

    # ---- told by the connection ----

    def receive(self, data: bytes, flow_bytes: int, end_stream: bool) -> None:
        self._expects_continue = False
        if not self._body.add(data, flow_bytes):
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
        self._connection.consumed(self.stream_id, nbytes)

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
            self.refusal = Refusal(408, "request body did not arrive in time")
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

    async def take(self) -> Message:
        """``http.request`` with the next piece of the body. After the whole body it waits for the end of the stream,
        which cancels it; after the response it is ``http.disconnect``."""
        if self.state is ResponseState.DONE:
            return {"type": "http.disconnect"}
        if self.gone:
            await trio.lowlevel.checkpoint()  # raises Cancelled: what has come is not to be believed
        if self._expects_continue:
            self._expects_continue = False
            self._connection.core.send_headers(self.stream_id, CONTINUE)
            self._connection.mark(1)
        body, more = await self._body.next()
        return {"type": "http.request", "body": body, "more_body": more}

    async def send(self, message: Message) -> None:
        """``http.response.start`` and ``http.response.body``."""
        kind = message["type"]
        if kind == "http.response.body":
            await self._send_body(message)
        elif kind != "http.response.start":
            raise ResponseMessageError(f"unknown message type {kind!r}")
        elif self.state is not ResponseState.START:
            raise ResponseMessageError(f"http.response.start in state {self.state.value}")
        else:
            self._status = message["status"]
            headers = [(name.lower(), value) for name, value in message.get("headers", ())]
            self._left = next((int(value) for name, value in headers if name == b"content-length"), None)
            self._headers = response_block(self._status, headers)
            self.state = ResponseState.HEAD

    async def _send_body(self, message: Message) -> None:
        body: Buffer = message.get("body", b"")
        last = not message.get("more_body", False)
        if type(body) is not bytes:
            body = memoryview(body).cast("B")
        if self.state not in (ResponseState.HEAD, ResponseState.BODY):
            raise ResponseMessageError(f"http.response.body in state {self.state.value}")
        allowed = self.head.method != "HEAD" and self._status not in (204, 304)
        if self._left is not None and allowed:
            self._left -= len(body)
            if self._left < 0 or (last and self._left):
                raise ResponseMessageError(f"the body does not have the length in its Content-Length: {message!r:.200}")
        core = self._connection.core
        ends = last and self._body.complete
        if self.state is ResponseState.HEAD:
            core.send_headers(self.stream_id, self._headers, not allowed or (ends and not body))
        if allowed and (body or ends):
            core.send_data(self.stream_id, [body], ends)
        self.state = ResponseState.DONE if ends or (last and not allowed) else ResponseState.BODY
        self._connection.mark(1)
        await self._until_sent()
        if last and self.state is not ResponseState.DONE:
            await self._end_early()
        elif not last:
            await trio.lowlevel.checkpoint()  # an app that streams faster than it computes lets others run too

    async def _end_early(self) -> None:
        """Ends a response that is sent before its request has come (rule 4)."""
        limits = self._connection.limits
        with trio.move_on_after(limits.linger_timeout_s):
            await self._body.drop(limits.drain_bytes)
        self.state = ResponseState.DONE
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


READ_BYTES = 65_536


class RequestBody:
    """The body of one request, between the frames that bring it and the app that asks for it.

    Rule 1: Only what the app has asked for is consumed. So the stream's window closes when it does not ask, and the
            client waits.
    Rule 2: A body of announced length comes whole; if it is larger than one read, it is received into a buffer of its
            size. The app has seen how long it is before it asks. Any other body comes as it arrives.
    Rule 3: A body that is not as long as its content-length is malformed (RFC 9113 §8.1.1).

    Args:
        length: the announced one; None if there is none.
        limits: of times.
        consumed: told how many received bytes the client may send anew.
    """

    def __init__(self, length: int | None, limits: Limits, consumed: Callable[[int], None]) -> None:
        self._length = length
        self._limits = limits
        self._consumed = consumed
        self._news = trio.lowlevel.ParkingLot()
        self._pieces: list[Buffer] = []
        self._buffer: memoryview | None = None  # of the piece that is being received
        self._filled = 0
        self._unconsumed = 0
        self._arrived = 0
        self._given = 0
        self._ended = False
        self._over = False
        self._dropping = False
        self._pace: BodyPace | None = None
        self._waits_since_s: float | None = None  # when something last came, while the app waits

    def __repr__(self) -> str:
        return f"<RequestBody: {self._arrived} of {self._length} bytes{', complete' if self._ended else ''}>"

    # ---- from the client ----

    def add(self, data: bytes, flow_bytes: int) -> bool:
        """The next bytes. False: there are more than announced."""
        self._arrived += len(data)
        self._unconsumed += flow_bytes
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
        self._ended = True
        self._news.unpark_all()
        return True

    def _fill(self, data: Buffer) -> None:
        assert self._buffer is not None, "only what is received into a buffer"
        end = self._filled + len(data)
        self._buffer[self._filled : end] = data
        self._filled = end

    def _consume(self) -> None:
        nbytes, self._unconsumed = self._unconsumed, 0
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
        if length is not None and length > READ_BYTES and self._buffer is None:
            self._buffer = np.empty(length, np.uint8).data  # not zeroed: what is only announced costs no memory
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
        self._over = self._ended and self._given == self._arrived
        return piece, not self._over

    def _has_next(self) -> bool:
        return self._ended or (self._length is None and bool(self._pieces))

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
        while not self._ended:
            self._pieces.clear()
            if limit_bytes > 0:
                limit_bytes -= self._unconsumed
                self._consume()
            await self._news.park()

    @property
    def unconsumed(self) -> int:
        """Bytes that have come and have not been asked for."""
        return self._unconsumed

    @property
    def complete(self) -> bool:
        """All of it has arrived."""
        return self._ended

    def is_late(self, now_s: float) -> bool:
        """Whether the app has waited too long."""
        since_s = self._waits_since_s
        if since_s is None or self._pace is None:
            return False
        return now_s - since_s > self._limits.body_timeout_s or self._pace.is_slow(now_s)
