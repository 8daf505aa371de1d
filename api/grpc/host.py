"""One gRPC connection: its calls, and what they need of the connection. The rest of it is any HTTP/2 connection.

A call with one request message whose method is `immediate` has no task. It begins when its message is complete, in the
connection's task, and is answered from wherever its answer comes (call.py). Every other call has a task (streaming.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from ..http2.connection import Http2Connection
from ..http2.events import RequestReceived
from ..http2.group import Http2Group
from ..sockets.roster import Roster
from ..sockets.transport import PlainTransport, TlsTransport
from . import blocks, compression
from .call import DEADLINE_EXCEEDED, UnaryCall
from .call_head import CallHead, Refusal, parse_head
from .compression import IDENTITY, CompressionLevel
from .deadlines import Deadlines, Entry
from .dispatch import Dispatcher
from .methods import Method
from .stream import Peer
from .streaming import StreamingCall

_log = logging.getLogger(__name__)

_UNKNOWN_METHOD = blocks.trailers_only(Status.UNIMPLEMENTED)
_TOO_LATE = blocks.trailers_only(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the connections of a service share."""

    group: Http2Group
    dispatcher: Dispatcher
    deadlines: Deadlines
    max_message_bytes: int
    compression_level: CompressionLevel


class CallHost(Http2Connection[CallHead, UnaryCall | StreamingCall]):
    """One gRPC connection.

    Attributes:
        dispatcher, max_message_bytes: for the calls.
    """

    __slots__ = ("_deadlines", "_level", "_peer", "dispatcher", "max_message_bytes")

    def __init__(
        self,
        surroundings: Surroundings,
        transport: PlainTransport | TlsTransport,
        roster: Roster,
        client: tuple[str, int] | None,
    ) -> None:
        dispatcher = self.dispatcher = surroundings.dispatcher
        super().__init__(surroundings.group, transport, roster, client, parse_head, dispatcher.attend)
        self._deadlines = surroundings.deadlines
        self._level = surroundings.compression_level
        self._peer: Peer | None = None
        self.max_message_bytes = surroundings.max_message_bytes

    # ---- what the client does ----

    def _open(self, event: RequestReceived[CallHead]) -> None:
        """A call begins; or is refused, if its head says enough for that."""
        head = event.head
        stream_id = event.stream_id
        if head.refusal is not None:
            self._refuse(stream_id, head.refusal)
            return
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("GRPC request: %s", head.path)
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
            self.dispatcher.attend()

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

    # ---- tasks ----

    def _serve_call(self, call: StreamingCall) -> None:
        if self._peer is None:
            self._peer = self._make_peer()
        self._start(self.dispatcher.run, call, self._peer)

    def _make_peer(self) -> Peer:
        """The client, as handlers see it."""
        transport = self._transport
        return Peer(self._client, transport.stream.getpeercert() if isinstance(transport, TlsTransport) else None)
