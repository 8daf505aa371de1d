"""One connection to a replica, from the handshake to its end. `link.GrpcReplicaLink` makes the next one.

    CONNECTING ─ the replica's SETTINGS have come ▶ READY ─ GOAWAY, or ids are used up ▶ RETIRING
        └──────────────┴────── lost: closed, broken, silent for too long ─────┴──▶ OVER ◀── nothing open ──┘

What is begun in a turn is written at its end. A call whose bytes have not all been given to the socket when the
connection is lost has surely not been executed.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import Any, Protocol

import trio

from ...http2.client import Http2Client
from ...http2.driver import CoreDriver, ReadingRoom
from ...http2.frames import (
    AnswerReceived,
    ConnectionFault,
    DataReceived,
    ErrorCode,
    HeadReceived,
    Http2Event,
    PeerLeaves,
    StreamReset,
    Terminated,
)
from ...http2.limits import Budget
from ...sockets.transport import PeerGoneError, PlainTransport, TlsTransport, Transport
from .calls import ReplicaRequest
from .limits import LinkLimits
from .status import ReplyHead, parse_reply_head

log = logging.getLogger(__name__)


class ConnectionOwner(Protocol):
    """The link, as its connections see it. All of it is called in an open turn."""

    @property
    def wants_room(self) -> bool:
        """A request, or the router, waits for `room`."""
        ...

    def ready(self, connection: ReplicaConnection) -> None:
        """Calls can be begun."""
        ...

    def retiring(self, connection: ReplicaConnection) -> None:
        """No more calls will be begun."""
        ...

    def room(self, connection: ReplicaConnection) -> None:
        """There may be room for another call."""
        ...

    def over(self, connection: ReplicaConnection, why: str, suddenly: bool) -> None:
        """The connection is gone, and its calls were told.

        Args:
            suddenly: it was not `retiring` before.
        """
        ...


class ReplicaConnection(CoreDriver[Http2Client[ReplyHead]]):
    """Reads and writes until the connection is over.

    Attributes:
        is_ready: the replica has said what it takes.
    """

    calls: dict[int, ReplicaRequest]
    _settles_all = False

    def __init__(self, owner: ConnectionOwner, room: ReadingRoom, transport: Transport, limits: LinkLimits) -> None:
        super().__init__(room, trio.lowlevel.current_clock().current_time)
        self._owner = owner
        self._transport = transport
        self._nursery = None
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._fresh: list[ReplicaRequest] = []  # begun, and not given to the socket
        self._limits = limits
        self._resets = Budget(limits.resets, "", self._current_time_s())
        self._why = ""  # it is about to end
        self._is_over = self._has_retired = False
        self.is_ready = False
        self.max_message_bytes = limits.max_message_bytes
        self.memory = transport.memory
        self.core = Http2Client(limits.http2, parse_reply_head, self._current_time_s())
        self.calls = {}

    # ---- for the link ----

    def has_room(self) -> bool:
        """Another call may be begun, and not too much waits to be written."""
        core = self.core
        if not core.has_room:
            return False
        if not (self.blocked or core.pending_bytes):
            return True
        most = self._limits.unsent_bytes
        if core.pending_bytes >= most:
            return False
        return not self.blocked or core.held_bytes()[1] + self._unsent_bytes < most

    def may_reset(self) -> bool:
        """Another request may be cancelled at the replica (`LinkLimits.resets`)."""
        try:
            self._resets.spend(self._current_time_s())
        except ConnectionFault:
            return False
        return True

    def begin(self, call: ReplicaRequest) -> None:
        """Begins a call, to be written at the end of the turn. The core must have room."""
        core = self.core
        stream_id = call.stream_id = core.request(call.block, call.parts, call.size)
        call.parts = []
        call.owner = self
        self.calls[stream_id] = call
        self._fresh.append(call)
        if call.streams:
            core.hold(stream_id, True)
        if not self._dirty:
            self._dirty = True
            self._room.turn.flush_later(self)

    def retire(self) -> None:
        """Begins nothing more, and ends when nothing is open."""
        self.core.retire()
        self._flush_later()

    def abort(self) -> None:
        self._scope.cancel()

    def mark_output(self) -> None:
        self._flush_later()

    # ---- the task ----

    async def run(self) -> None:
        """The connection's life."""
        why = "the connection to the replica was given up"
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    why = await self._serve(nursery)
                    nursery.cancel_scope.cancel()
        except Exception:
            # As for the connections of a service: a defect costs the connection.
            log.exception("error in %r", self)
            why = "the connection to the replica has failed"
        finally:
            self._nursery = None
            with self._room.turn:
                self._lose(self._why or why)
            self._transport.close()

    async def _serve(self, nursery: trio.Nursery) -> str:
        """Until the connection is over; why it is."""
        transport = self._transport
        if isinstance(transport, TlsTransport):
            try:
                protocol = await transport.handshake()
            except PeerGoneError as error:
                return f"TLS with the replica failed: {_reason(error)}"
            if protocol != "h2":
                return "the replica does not offer HTTP/2 over TLS (ALPN h2)"
        self.flush()
        nursery.start_soon(self._keep_time)
        if isinstance(transport, PlainTransport):
            transport.watch.listener = partial(self._hear, transport)
        with self._reading:
            if not await self._read():
                return "the replica has closed the connection"
        if isinstance(transport, PlainTransport):
            transport.watch.listener = None
        with contextlib.suppress(PeerGoneError):
            await self.until_unblocked()
        return "the connection to the replica is over"

    async def _keep_time(self) -> None:
        """Keepalive (`Http2Client.tick`)."""
        while not self.core.terminated:
            await trio.sleep_until(self.core.next_timer_s)
            with self._room.turn:
                self._handle(self.core.tick(self._current_time_s()))
                self._flush_later()

    # ---- what the replica does ----

    def _handle(self, events: list[Http2Event[Any]]) -> None:
        calls = self.calls
        for event in events:
            if isinstance(event, AnswerReceived):
                call = calls.pop(event.stream_id, None)
                if call is not None:
                    call.answer(event)
            elif isinstance(event, DataReceived):
                call = calls.get(event.stream_id)
                if call is not None:
                    call.receive(event.data, event.end_stream)
            elif isinstance(event, HeadReceived):
                call = calls.get(event.stream_id)
                if call is not None:
                    call.head(event.head, event.end_stream)
            else:
                self._handle_rare(event)
        if not self.is_ready and self.core.settled and not self.core.winds_up:
            self.is_ready = True
            self._owner.ready(self)
        if not self._dirty and (self.core.has_output or self.core.winds_up or self._owner.wants_room):
            self._flush_later()

    def _handle_rare(self, event: Http2Event[Any]) -> None:
        if isinstance(event, StreamReset):
            call = self.calls.get(event.stream_id)
            if call is not None:
                call.reset(event.code)
        elif isinstance(event, PeerLeaves):
            if event.code is not ErrorCode.NO_ERROR:
                self._why = f"the replica has ended the connection: {event.debug or event.code.name}"
            self._leave()
        elif isinstance(event, Terminated):
            broke = event.code is not ErrorCode.NO_ERROR
            self._lose(f"the replica broke the rules of HTTP/2: {event.debug}" if broke else self._why or event.debug)

    def _leave(self) -> None:
        if not self._has_retired:
            self._has_retired = True
            self._owner.retiring(self)
            self.retire()

    def _lose_calls(self) -> None:
        with self._room.turn:
            self._lose("the connection to the replica was reset")

    def _lose(self, why: str) -> None:
        """Tells the calls, and the owner, once."""
        if self._is_over:
            return
        self._is_over = True
        suddenly = not self._has_retired
        self._leave()
        fresh = set(self._fresh)
        for call in list(self.calls.values()):
            unsent = call in fresh or self.core.pending(call.stream_id) > 0
            call.lost(why, not unsent)
        self._fresh.clear()
        self._owner.over(self, why, suddenly)

    # ---- writing ----

    def flush(self) -> None:
        was_blocked = self.blocked
        CoreDriver.flush(self)
        if not was_blocked:
            self._fresh.clear()

    def _progressed(self) -> None:
        self._fresh.clear()  # some of it may be in what was written

    def _settle(self) -> None:
        core = self.core
        if core.winds_up:
            with self._room.turn:
                self._leave()
        if core.terminated and not self.blocked:
            self._reading.cancel()
        elif self.is_ready:
            self._owner.room(self)

    def __repr__(self) -> str:
        return f"<ReplicaConnection: {self.core!r}, {len(self.calls)} calls>"


def _reason(error: BaseException) -> str:
    """The text of what an error was first caused by: those that wrap it have none."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
