"""The calls of one connection: what a client's frames do to them, and what they need of the connection.

No socket is known here. `Connection` is this, and reads and writes.

- A call with one request message whose method is `immediate` has no task. It begins when its message is complete, in
  the connection's task, and is answered from wherever its answer comes (call.py). Every other call has a task
  (streaming.py).
- What is answered while the core's events are handled is written after the last of them. What is answered later is
  written by the flusher, together with all that the same pass of the loop brings; or at once, if no other call is open.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from ..http2.events import DataReceived, Event, RequestReceived, StreamDrained, StreamEnded, StreamReset
from ..http2.flusher import Flusher
from ..http2.limits import Http2Limits
from ..http2.server import Http2Server
from ..sockets.roster import Roster
from . import blocks, compression
from .call import DEADLINE_EXCEEDED, UnaryCall
from .call_head import CallHead, Refusal, parse_head
from .compression import IDENTITY, CompressionLevel
from .deadlines import Deadlines, Entry
from .dispatch import Dispatcher
from .methods import Method
from .stream import Peer
from .streaming import StreamingCall

if TYPE_CHECKING:
    from .connection import Connection

_log = logging.getLogger(__name__)

_UNKNOWN_METHOD = blocks.trailers_only(Status.UNIMPLEMENTED)
_TOO_LATE = blocks.trailers_only(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)


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


class CallHost(ABC):
    """The calls of a connection.

    Attributes:
        core: the HTTP/2 connection.
        calls: the open calls by their streams.
        dispatcher, max_message_bytes: for the calls.
    """

    __slots__ = (
        "_deadlines",
        "_dirty",
        "_flusher",
        "_handling",
        "_level",
        "_nursery",
        "_peer",
        "_roster",
        "calls",
        "core",
        "dispatcher",
        "max_message_bytes",
    )

    def __init__(self, surroundings: Surroundings, roster: Roster) -> None:
        self._flusher = surroundings.flusher
        self._deadlines = surroundings.deadlines
        self._level = surroundings.compression_level
        self._roster = roster
        self._nursery: trio.Nursery | None = None
        self._peer: Peer | None = None
        self._handling = False
        self._dirty = False
        self.dispatcher = surroundings.dispatcher
        self.max_message_bytes = surroundings.max_message_bytes
        self.core: Http2Server[CallHead] = Http2Server(surroundings.limits, parse_head, trio.current_time())
        self.calls: dict[int, UnaryCall | StreamingCall] = {}

    @abstractmethod
    def flush(self) -> None:
        """Writes what the core has to say. Does not wait, and does not raise."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """The client does not read."""

    @abstractmethod
    async def until_unblocked(self) -> None:
        """Waits until the client has read."""

    @abstractmethod
    def _make_peer(self) -> Peer:
        """The client, as handlers see it."""

    # ---- what the client does ----

    def _handle(self, events: list[Event[CallHead]]) -> None:
        calls = self.calls
        self._handling = True
        try:
            for event in events:
                if isinstance(event, DataReceived):
                    call = calls.get(event.stream_id)
                    if call is not None:
                        call.receive(event.data, event.flow_bytes, event.end_stream)
                elif isinstance(event, RequestReceived):
                    self._open(event)
                else:
                    self._handle_rare(event)
        finally:
            self.dispatcher.attend()
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

    def mark(self, own: int) -> None:
        """The core has something to say.

        Args:
            own: 1 if the call that has made it so is still open; 0 if not.
        """
        if not (self._handling or self._dirty):
            if len(self.calls) > own:
                self._dirty = True
                self._flusher.add(self)
            else:
                self.flush()

    # ---- tasks ----

    def _serve_call(self, call: StreamingCall) -> None:
        if self._peer is None:
            self._peer = self._make_peer()
        self._start(self.dispatcher.run, call, self._peer)

    def _start(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(function, *arguments)
