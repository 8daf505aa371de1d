"""One gRPC connection: one task that reads, feeds the HTTP/2 core, serves what can be served at once, and writes once.

- A call with one request message whose method is `immediate` has no task. It begins when its message is complete, in
  the connection's task, and is answered from wherever its answer comes (call.py). Every other call has a task
  (streaming.py).
- What is answered while the core's events are handled is written after the last of them. What is answered later is
  written by the flusher, together with all that the same pass of the loop brings; or at once, if no other call is open.
- The roster's sweep ends a connection whose handshake takes too long, or that does not read (roster.py).
- Ending a connection from outside is cancelling its scope, and with it every task in it. Calls without a task are told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from ..sockets.roster import Phase, Roster
from ..sockets.transport import PeerGoneError, PlainTransport, TlsTransport
from . import blocks, compression
from .call import DEADLINE_EXCEEDED, UnaryCall
from .call_head import CallHead, Refusal, parse_head
from .compression import IDENTITY, CompressionLevel
from .deadlines import Deadlines, Entry
from .dispatch import Dispatcher
from .flusher import Flusher
from .http2.events import DataReceived, Event, RequestReceived, StreamDrained, StreamEnded, StreamReset
from .http2.limits import Http2Limits
from .http2.server import Http2Server
from .methods import Method
from .outbox import Outbox
from .stream import Peer
from .streaming import StreamingCall

log = logging.getLogger(__name__)

_GREETING_BYTES = 24 + 9
"""HTTP/2's preface, and the header of the frame that must follow it."""
_DISCARDED_BYTES = 65_536
_UNKNOWN_METHOD = blocks.trailers_only(Status.UNIMPLEMENTED)
_TOO_LATE = blocks.trailers_only(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
_ENDING = (Phase.ENDING, Phase.CLOSING)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the connections of a service share.

    Attributes:
        buffer: for reading into, between two checkpoints.
        connections: that run.
    """

    dispatcher: Dispatcher
    deadlines: Deadlines
    flusher: Flusher
    buffer: memoryview
    limits: Http2Limits
    max_message_bytes: int
    compression_level: CompressionLevel
    connections: set[Connection] = field(default_factory=set)


class Connection:
    """Serves one client until it leaves, misbehaves, or is cancelled.

    Attributes:
        core: the HTTP/2 connection.
        calls: the open calls by their streams.
        dispatcher, max_message_bytes: for the calls.
    """

    __slots__ = (
        "_client",
        "_deadlines",
        "_dirty",
        "_flusher",
        "_handling",
        "_level",
        "_nursery",
        "_outbox",
        "_peer",
        "_reading",
        "_received_bytes",
        "_roster",
        "_scope",
        "_surroundings",
        "_transport",
        "calls",
        "core",
        "dispatcher",
        "max_message_bytes",
        "phase",
        "since_s",
    )

    def __init__(
        self,
        surroundings: Surroundings,
        transport: PlainTransport | TlsTransport,
        roster: Roster,
        client: tuple[str, int] | None,
    ) -> None:
        self._surroundings = surroundings
        self._flusher = surroundings.flusher
        self._deadlines = surroundings.deadlines
        self._level = surroundings.compression_level
        self._transport = transport
        self._roster = roster
        self._client = client
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._handling = False
        self._dirty = False
        self._received_bytes = 0
        self._peer: Peer | None = None
        self.dispatcher = surroundings.dispatcher
        self.max_message_bytes = surroundings.max_message_bytes
        self.core: Http2Server[CallHead] = Http2Server(surroundings.limits, parse_head, trio.current_time())
        self.calls: dict[int, UnaryCall | StreamingCall] = {}
        self._outbox = Outbox(transport, self.core)
        self.phase = Phase.HEAD
        self.since_s = roster.now_s

    def __repr__(self) -> str:
        return f"<Connection from {self._client}: {self.phase.value}, {len(self.calls)} calls>"

    # ---- seen by the roster and the service ----

    def fileno(self) -> int:
        return self._transport.fileno()

    def time_out(self) -> None:
        self._end()

    def peer_gone(self) -> None:
        self._end()

    def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        self._enter(Phase.ENDING)
        self._scope.cancel()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since_s = self._roster.now_s

    def go_away(self) -> None:
        """Finishes what is open, takes nothing new, and closes."""
        self.core.go_away(trio.current_time())
        if self.phase is not Phase.HANDSHAKE:
            self.flush()

    def tick(self, now_s: float) -> None:
        """Does what time demands of HTTP/2: keepalive, the connection's age."""
        if self.core.next_timer_s <= now_s:
            self._handle(self.core.tick(now_s))
            self.flush()

    # ---- the task ----

    async def run(self) -> None:
        """The connection's life. Raises nothing but cancellation from outside."""
        self._surroundings.connections.add(self)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._serve()
                    nursery.cancel_scope.cancel()
        except Exception:
            # Handlers have a boundary of their own: this is a defect of ours. It costs the connection, not the server.
            log.exception("error while serving %s", self._client)
        finally:
            self._nursery = None
            self._cancel_calls()
            self._transport.close()
            self._surroundings.connections.discard(self)
            self._roster.remove(self)

    async def _serve(self) -> None:
        transport = self._transport
        if isinstance(transport, TlsTransport):
            self._enter(Phase.HANDSHAKE)
            try:
                protocol = await transport.handshake()
            except PeerGoneError:
                return
            if protocol != "h2":
                return
            self._enter(Phase.HEAD)
        if not self._roster.accepting:
            self.core.go_away(trio.current_time())
        self.flush()
        with self._reading:
            if not await self._read():
                self._lose_calls()
                return
        await self._part()

    async def _read(self) -> bool:
        """Reads until the connection is over. False: the client has closed it."""
        core = self.core
        buffer = self._surroundings.buffer
        while not core.terminated:
            count = await self._transport.receive_into(buffer)
            if not count:
                return False
            self._received_bytes += count
            self._handle(core.receive(buffer[:count], trio.current_time()))
            self.flush()
            if count == len(buffer):
                # There may be more at once, without end; others want to be served too.
                await trio.lowlevel.checkpoint()
        return True

    async def _part(self) -> None:
        """Closes after all has been said. What the client still sends is taken in: closing with unread bytes would
        reset the connection, and the client might never see the last words."""
        self._enter(Phase.CLOSING)
        self._cancel_calls()
        try:
            await self._outbox.until_unblocked()
            await self._transport.send_eof()
        except PeerGoneError:
            return
        while await self._transport.receive(_DISCARDED_BYTES):
            pass

    # ---- what the client does ----

    def _handle(self, events: list[Event[CallHead]]) -> None:
        calls = self.calls
        self._handling = True
        for event in events:
            if isinstance(event, DataReceived):
                call = calls.get(event.stream_id)
                if call is not None:
                    call.receive(event.data, event.flow_bytes, event.end_stream)
            elif isinstance(event, RequestReceived):
                self._open(event)
            else:
                self._handle_rare(event)
        self._handling = False

    def _handle_rare(self, event: Event[CallHead]) -> None:
        if isinstance(event, StreamEnded | StreamReset | StreamDrained):
            call = self.calls.get(event.stream_id)
            if call is None:
                return
            if isinstance(event, StreamEnded):
                call.request_ended()
            elif isinstance(event, StreamDrained):
                call.drained()
            else:
                self._roster.disconnects += 1
                call.cancel()
        else:  # Terminated
            self._lose_calls()

    def _open(self, event: RequestReceived[CallHead]) -> None:
        """A call begins; or is refused, if its head says enough for that."""
        head = event.head
        stream_id = event.stream_id
        if head.refusal is not None:
            self._refuse(stream_id, head.refusal)
            return
        method = self.dispatcher.methods.get(head.path)
        if method is None:
            self.core.send_headers(stream_id, _UNKNOWN_METHOD, True)
            return
        error = self.dispatcher.refusal(head)
        if error is not None:
            self.core.send_headers(stream_id, blocks.trailers_only(error.status, error.message), True)
            return
        self._roster.requests += 1
        timeout_s = head.timeout_s
        if timeout_s is not None and timeout_s <= 0:
            self.core.send_headers(stream_id, _TOO_LATE, True)
            return
        call: UnaryCall | StreamingCall
        if method.client_streaming:
            call = StreamingCall(self, stream_id, head, method)
        else:
            call = UnaryCall(self, stream_id, head, method)
        self.calls[stream_id] = call
        if timeout_s is not None:
            call.set_deadline(self._deadlines.add(trio.current_time() + timeout_s, call))
        if isinstance(call, StreamingCall):
            self._serve_call(call)
        if event.end_stream:
            call.request_ended()

    def _refuse(self, stream_id: int, refusal: Refusal) -> None:
        if refusal.status is Status.UNIMPLEMENTED:
            block = blocks.unknown_encoding(refusal.status, refusal.message)
        else:
            block = blocks.trailers_only(refusal.status, refusal.message, http_status=refusal.http_status)
        self.core.send_headers(stream_id, block, True)

    def _serve_call(self, call: StreamingCall) -> None:
        peer = self._peer
        if peer is None:
            transport = self._transport
            certificate = transport.stream.getpeercert() if isinstance(transport, TlsTransport) else None
            peer = self._peer = Peer(self._client, certificate)
        self._start(self.dispatcher.run, call, peer)

    def _lose_calls(self) -> None:
        """The client is gone."""
        self._roster.disconnects += len(self.calls)
        self._cancel_calls()

    def _cancel_calls(self) -> None:
        for call in list(self.calls.values()):
            call.cancel()

    # ---- for the calls ----

    def begin(self, call: UnaryCall) -> None:
        """The call's message is complete."""
        if not self.dispatcher.begin(call):
            deadline = call.hand_over()
            served = StreamingCall(self, call.stream_id, call.head, call.method, call.message, deadline)
            self.calls[call.stream_id] = served
            self._serve_call(served)

    def unpack(self, call: UnaryCall) -> None:
        """The call's message is complete, and packed."""
        try:
            message = compression.decompress_small(call.message, call.head.encoding, self.max_message_bytes)
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        if message is None:
            self._start(self._unpack_on_thread, call)
        else:
            call.message = message
            self.begin(call)

    async def _unpack_on_thread(self, call: UnaryCall) -> None:
        try:
            message = await compression.unpacked(call.message, call.head.encoding, self.max_message_bytes)
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        if not call.over:
            call.message = message
            self.begin(call)

    def response_encoding(self, method: Method, head: CallHead) -> str:
        """What the method's responses are packed with."""
        if self._level is CompressionLevel.NONE or not method.compresses:
            return IDENTITY
        return compression.choose(self._level, head.accepted_encodings)

    def pack(self, payload: bytes, encoding: str, send: Callable[[list[Buffer]], None]) -> None:
        """Packs a response message, and sends it with its prefix."""
        if len(payload) < compression.LARGE_BYTES:
            send(compression.packed_small(payload, encoding))
        else:
            self._start(self._pack_on_thread, payload, encoding, send)

    async def _pack_on_thread(self, payload: bytes, encoding: str, send: Callable[[list[Buffer]], None]) -> None:
        send(await compression.packed(payload, encoding))

    def forget(self, stream_id: int, deadline: Entry | None) -> None:
        """The call is over."""
        self.calls.pop(stream_id, None)
        if deadline is not None:
            self._deadlines.remove(deadline)

    def _start(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(function, *arguments)

    # ---- writing ----

    def mark(self) -> None:
        """The core has something to say."""
        if not (self._handling or self._dirty):
            if self.calls:
                self._dirty = True
                self._flusher.add(self)
            else:
                self.flush()

    def flush(self) -> None:
        """Writes what there is. Does not wait, and does not raise."""
        self._dirty = False
        try:
            rest = self._outbox.write_now()
        except PeerGoneError:
            self._lose_calls()
            self._end()
            return
        if rest:
            self._start(self._write_rest, rest)
        self._settle()

    async def _write_rest(self, rest: list[Buffer]) -> None:
        try:
            await self._outbox.write_rest(rest, self._settle)
        except PeerGoneError:
            self._lose_calls()
            self._end()
        self._settle()

    @property
    def blocked(self) -> bool:
        """The client does not read."""
        return self._outbox.blocked

    async def until_unblocked(self) -> None:
        await self._outbox.until_unblocked()

    def _settle(self) -> None:
        """Notes what the connection is doing now, and whether it is done for good."""
        if self.phase in _ENDING:
            return
        if self._outbox.blocked:
            self._enter(Phase.SENDING)
            return
        if self.core.terminated or self.core.idle_after_goaway:
            self._reading.cancel()
        elif self.calls:
            if self.phase is not Phase.CALLS:
                self._enter(Phase.CALLS)
        elif self._received_bytes >= _GREETING_BYTES and self.phase is not Phase.IDLE:
            self._enter(Phase.IDLE)
