"""One HTTP/1.x connection: one task that parses requests and drives an application with each, in order.

- The application runs in the connection's own task, as soon as the head is complete. The socket is read when it asks
  for the body, so TCP slows a client down whose body is not asked for.
- No timer, cancel scope or task is made for a request: the roster's sweep looks at the connection's phase.
- Ending a connection from outside is cancelling its one scope. What is to be said to the client then (408, 400) is left
  in `_farewell` and sent after the application has unwound.
- Where the application has an `immediate` way for small requests, and the transport can listen, those are not given to
  the task: `_hear` takes them in where their data is noticed, `_respond` sends the answer from where it comes. Only
  what is not over with that wakes the task. There is one such request at a time; what follows stays in the socket.
- Bodies of known length that are larger than one read bypass the parser, into the buffer that the application gets.
- What a read leaves of a request that is not complete, or of those behind another, is counted as unfinished
  (`engine.admission.client_bytes`). At the limit, connections that wait for their clients close; shortly before, reads
  are small. So are the task's while sockets wait for their turn (`actors.socket_readiness`).
"""

from __future__ import annotations

import contextlib
import logging
from typing import NoReturn

import trio

from ....actors.offload import ArrivingBytes
from ....actors.socket_readiness import Watch
from ....engine.admission.client_bytes import ClientBytes
from ....engine.tensor import Buffer
from ...http2.connection import Http2Group
from ...http2.frames import PREFACE
from ...sockets.limits import BodyPace
from ...sockets.roster import Connection, ConnectionPhase, Roster
from ...sockets.transport import PeerGoneError, PlainTransport, TlsTransport, Transport, has_come, linger
from ..exchange import Answer, Application, json_refusal
from ..h2.connection import H2Connection
from ..infer.handler import ImmediateCall, ImmediateInfer
from .exchange import READ_BYTES, H1Exchange
from .messages import HeadMemory, Refusal, Request, RequestParser, whole_response

_TIGHT_READ_BYTES = 4096
_APP, _IDLE = ConnectionPhase.APP, ConnectionPhase.IDLE  # a member of an enumeration takes longer to look up
_FEW_BYTES = 16_384
_TOO_MUCH = "the server holds too many requests that are not complete; try again later"

log = logging.getLogger(__name__)


class H1Connection(Connection):
    """Serves one client until it leaves, misbehaves, or is cancelled.

    Args:
        http2: of connections whose clients begin to speak HTTP/2.
        immediate: answers requests without a task; None for none.
        heads: of requests that clients may repeat.
    """

    def __init__(
        self,
        app: Application,
        transport: Transport,
        roster: Roster,
        client: tuple[str, int] | None,
        http2: Http2Group,
        immediate: ImmediateInfer | None = None,
        heads: HeadMemory | None = None,
    ) -> None:
        super().__init__(transport, roster, client, ConnectionPhase.IDLE)
        self._app = app
        self._http2 = http2
        heard = transport if isinstance(transport, PlainTransport) and transport.watch.listens else None
        self._heard = heard  # whose listener is called
        self._immediate = None if heard is None else immediate
        self._call: ImmediateCall | None = None
        self._unsent: list[Buffer] = []
        self._unfinished = False  # the account has an entry
        self._parser = RequestParser(roster.limits, heads=heads)
        self._exchange: H1Exchange | None = None
        self._farewell: Refusal | None = None
        self._last_answered = False  # an answer has said that the connection ends, outside of the task
        self._pace: BodyPace | None = None  # of the body that the application waits for

    # ---- seen by the roster ----

    def time_out(self) -> None:
        if self.phase is ConnectionPhase.HEAD or self.phase is ConnectionPhase.BODY:
            self._farewell = Refusal(408, f"request {self.phase.name.lower()} did not arrive in time")
        self.abort()

    def retire(self) -> None:
        """Each answer settles it (`ends_after`)."""

    def go_away(self) -> None:
        if self.phase is ConnectionPhase.HANDSHAKE or (self.phase is _IDLE and not self._transport.has_more):
            self.abort()
        elif self._exchange is not None:
            self._exchange.keep_alive = False

    def is_slow(self, now_s: float) -> bool:
        return self._pace is not None and self._pace.is_slow(now_s)

    def make_way(self, account: ClientBytes) -> bool:
        if account is self._unfinished_account:
            if self.phase is ConnectionPhase.APP and not self._parser.requests:
                return False  # the body waits for the application
            asks = self.phase is ConnectionPhase.HEAD or self.phase is ConnectionPhase.BODY
            self._farewell = Refusal(503, _TOO_MUCH) if asks else Refusal(0, _TOO_MUCH)
            self._parser.abandon(self._farewell)
        self.abort()
        return True

    def _enter_head(self) -> None:
        if self.phase is not ConnectionPhase.HEAD:
            self.enter(ConnectionPhase.HEAD)

    @property
    def _read_bytes(self) -> int:
        return _TIGHT_READ_BYTES if self._unfinished_account.tight or self._transport.crowded else READ_BYTES

    # ---- the task ----

    async def run(self) -> None:
        try:
            try:
                with self._scope:
                    await self._serve()
            except Exception:
                # The boundary to the application: a bug in a handler costs its own connection, never the server.
                log.exception("error while serving %s", self._client)
                self._farewell = Refusal(500, "internal error")
            if self._farewell is not None:
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
            self.enter(ConnectionPhase.HANDSHAKE)
            try:
                protocol = await transport.handshake()
            except PeerGoneError:
                return
            if protocol == "h2":
                await self._hand_over(b"")
                return
        self.enter(ConnectionPhase.IDLE)
        data = await transport.receive(self._read_bytes)
        while data and len(data) < len(PREFACE) and PREFACE.startswith(data):  # it may become HTTP/2's preface
            self._enter_head()
            more = await transport.receive(self._read_bytes)
            if not more:
                break
            data += more
        if data.startswith(PREFACE):
            await self._hand_over(data)
            return
        await self._take_in(data)
        while (request := await self._next_request()) is not None:
            if not await self._answer(request):
                return

    async def _next_request(self) -> Request | None:
        """The next request with a complete head; None when there will be none."""
        parser = self._parser
        while not parser.requests:
            if parser.failure is not None:
                self._farewell = parser.failure
                return None
            if parser.read_on():
                continue
            if parser.between_requests:
                if not self._roster.accepting:
                    if self._transport.has_more:
                        await self._part(lingering=True)  # or a request that comes too late resets the last answer
                    return None
                self.enter(ConnectionPhase.IDLE)
            else:
                self._enter_head()
            if self._immediate is not None and self._heard is not None and not self._heard.has_more:
                await self._listen(self._heard.watch)
                if self._last_answered:
                    await self._part(lingering=self._transport.has_more or not parser.between_requests)
                    return None
                continue
            data = await self._transport.receive(self._read_bytes)
            if not data:
                return None
            await self._take_in(data)
        return parser.requests.pop(0)

    async def _take_in(self, data: bytes) -> None:
        self._parser.feed(data)
        if not self._parser.requests:
            self._count_unfinished()
            if len(data) >= _TIGHT_READ_BYTES:
                await self._transport.yield_turn()  # a head of many headers takes long

    def _count_unfinished(self) -> None:
        """Notes what is held of a request that is not complete, or of those that wait behind the current one."""
        nbytes = self._parser.held_bytes
        if nbytes or self._unfinished:
            self._unfinished = nbytes > 0
            self._roster.hold(self._unfinished_account, self, nbytes)

    # ---- requests without the task ----

    async def _listen(self, watch: Watch) -> None:
        """Waits while requests are answered without this task."""
        watch.listener = self._hear
        try:
            await watch.wait()
        finally:
            watch.listener = None
            call, self._call = self._call, None
            if call is not None:
                call.cancel()
        if self._unsent:
            rest, self._unsent = self._unsent, []
            await self.write(rest)

    def _hear(self) -> bool:
        """Takes in what comes while the task listens. False: the task is to go on."""
        if self._call is not None:
            return True  # its answer comes first; then this is looked at
        transport = self._heard
        assert transport is not None, "it has a listener"
        view = transport.buffer[:_TIGHT_READ_BYTES] if self._unfinished_account.tight else transport.buffer
        count = transport.receive_now(view)
        if count <= 0:
            return count < 0
        try:
            if self._pace is not None:
                self._pace.arrived(count, self._roster.now_s)
            self._parser.feed(bytes(view[:count]))
            return self._take_up() and not (transport.watch.ready and self._call is None)
        except Exception:
            # The same defect as in `run`, and the same price.
            log.exception("error while serving %s", self._client)
            self.abort()
            return True

    def _take_up(self) -> bool:
        """Begins the request that has come, or waits for the rest of it. False: that is for the task."""
        parser = self._parser
        immediate = self._immediate
        assert immediate is not None, "else there is no listener"
        if parser.failure is not None or len(parser.requests) > 1 or not self._roster.accepting:
            return False
        if not parser.requests:
            self._enter_head()
            self._count_unfinished()
            return True
        request = parser.requests[0]
        if not request.complete:
            self._wait_for_body()
            self._count_unfinished()
            short = request.remaining is not None and request.remaining <= READ_BYTES
            return short and not request.expects_continue and immediate.wants(request)
        self._pace = None
        self.phase, self.since_s = _APP, self._roster.now_s  # as `enter`, without a call
        call = immediate.begin(request, self._respond)
        if call is None:
            return False
        if not call.over:
            self._call = call
        self._roster.requests += 1
        parser.requests.clear()
        if self._unfinished:
            self._count_unfinished()
        return True

    def _respond(self, answer: Answer) -> None:
        """Sends the answer to the request that has been taken up."""
        self._call = None
        transport, roster = self._heard, self._roster
        lasts = roster.lasting or (roster.accepting and not self._nothing_behind())
        assert transport is not None, "it has a listener"
        try:
            self._unsent = transport.send_now(whole_response(answer, lasts))
        except PeerGoneError:
            self.abort()
            return
        if self._unsent:
            self.enter(ConnectionPhase.SENDING)
            self._count_unread(self._unsent)
        elif self._parser.between_requests:
            self.phase, self.since_s = _IDLE, self._roster.now_s  # as in `_take_up`
        else:
            self.enter(ConnectionPhase.HEAD)
            self._count_unfinished()
        if self._unsent or transport.watch.ready or not lasts:
            self._last_answered = not lasts
            transport.watch.wake()

    async def _answer(self, request: Request) -> bool:
        """Runs the app with a request. Returns whether another request may follow."""
        self._roster.requests += 1
        self.enter(ConnectionPhase.APP)
        self._count_unfinished()
        if self._pace is not None:
            self._pace.arrived(0, self._roster.now_s)  # from here on, it may be the application that waits for room
        self._exchange = exchange = H1Exchange(self, request, self._parser, self._client)
        if not self._roster.accepting:
            exchange.keep_alive = False
        await self._app(exchange)
        if not exchange.done:
            log.error("the application left its response to %s %r unfinished", request.method, request.target)
            self._farewell = Refusal(500, "the application gave no response")
            return False
        if exchange.keep_alive and not request.complete:
            exchange.keep_alive = self._parser.failure is None and await exchange.drain()
        if not exchange.keep_alive:
            behind = not self._roster.lasting and self._transport.has_more  # sent before the client is told
            await self._part(lingering=behind or not request.complete or self._parser.failure is not None)
            return False
        self._exchange = None
        self._pace = None
        if self._parser.requests:
            # Pipelined requests that are answered without waiting must not keep the other connections from running.
            await self._transport.yield_turn()
        return True

    async def _hand_over(self, received: bytes) -> None:
        """The client speaks HTTP/2, of which `received` is the beginning: another connection takes this one's place."""
        connection = H2Connection(self._app, self._http2, self._transport, self._roster, self._client)
        self._roster.replace(self, connection)
        await connection.run(received)

    async def _say_farewell(self, refusal: Refusal) -> None:
        """Tells the client why its connection ends, unless a response has begun already."""
        self.enter(ConnectionPhase.CLOSING)
        begun = self._exchange is not None and self._exchange.begun
        self.count_refusal(None if begun else refusal.reason)
        if begun or refusal.status == 0:
            return
        answer = whole_response(json_refusal(refusal.status, refusal.message), keep_alive=False)
        rest = self._transport.send_now(answer)
        while rest:
            rest = await self._transport.send_some(rest)
        await linger(self._transport)

    async def _part(self, *, lingering: bool) -> None:
        """Closes the connection after a complete response."""
        with contextlib.suppress(PeerGoneError):
            if lingering:
                self.enter(ConnectionPhase.CLOSING)
                await linger(self._transport)
            await self._transport.close_gracefully()

    def _nothing_behind(self) -> bool:
        """Nothing has come behind the current request, which is complete."""
        return self._parser.between_requests and not has_come(self._transport)

    # ---- used by the exchange ----

    @property
    def certificate(self) -> bytes:
        return self._transport.certificate

    def ends_after(self, request: Request) -> bool:
        """Whether the service drains, and the answer to `request` is the one to say so (`Roster`, rule 6)."""
        if self._roster.lasting or self._parser.requests:
            return False
        return not request.complete or self._nothing_behind()

    async def give_up(self, refusal: Refusal | None = None) -> NoReturn:
        """Ends the connection from inside the application, by cancellation."""
        self._farewell = refusal
        self.abort()
        await trio.lowlevel.checkpoint()
        raise PeerGoneError  # only where the application has shielded itself

    async def write(self, buffers: list[Buffer]) -> None:
        try:
            rest = self._transport.send_now(buffers)
            if rest:
                self._count_unread(rest)
                while rest:
                    self.enter(ConnectionPhase.SENDING)
                    rest = await self._transport.send_some(rest)
                    self._unread_account.progressed(self)
                self.enter(ConnectionPhase.APP)
            self._unread_account.drop(self)  # also if `_respond` has counted it, and it goes at once now
        except PeerGoneError:
            await self.give_up()

    def _count_unread(self, rest: list[Buffer]) -> None:
        """Notes what the client does not take; all of it is in memory until the last of it has gone."""
        nbytes = sum(map(len, rest))
        if nbytes > _FEW_BYTES:  # TLS leaves all that is small for later, whatever the client does
            self._roster.hold(self._unread_account, self, nbytes)

    async def read_body(self, request: Request) -> None:
        """Reads more of a body into `request.pieces`."""
        if self._parser.failure is not None:  # it came with what has been read already
            await self.give_up(self._parser.failure)
        if self._parser.read_on():
            return
        self._wait_for_body()
        if request.remaining is not None and request.remaining > READ_BYTES:
            await self._read_large_body(request, request.remaining)
        else:
            data = await self._transport.receive(READ_BYTES)
            if not data:
                await self.give_up()
            if self._pace is not None:
                self._pace.arrived(len(data), self._roster.now_s)
            self._parser.feed(data)
            self._count_unfinished()
            if self._parser.failure is not None and not request.complete:
                await self.give_up(self._parser.failure)
            if len(data) == READ_BYTES:
                await self._transport.yield_turn()  # a client that sends as fast as this reads lets others run, too
        self.enter(ConnectionPhase.APP)

    def _wait_for_body(self) -> None:
        self.enter(ConnectionPhase.BODY)
        if self._pace is None:
            self._pace = BodyPace(self.limits)
        self._pace.wait(self.since_s)

    async def _read_large_body(self, request: Request, remaining: int) -> None:
        self._parser.restart()
        self._count_unfinished()  # nothing: the application has room for all of it
        filled = sum(map(len, request.pieces))
        size = filled + remaining
        body = ArrivingBytes(size, self._transport.memory)
        await body.begin(request.pieces)
        while filled < size:
            place = await body.place(filled)
            count = await self._transport.receive_into(place)
            if not count:
                await self.give_up()
            if self._pace is not None:
                self._pace.arrived(count, self._roster.now_s)
            self._wait_for_body()
            filled += count
            if count == len(place):
                await self._transport.yield_turn()
        request.pieces = [body.whole]
        request.remaining = 0
        request.complete = True
