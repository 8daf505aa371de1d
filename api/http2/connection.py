"""The HTTP/2 connections of a service. Each has one task that reads, feeds the core, hands what comes to the calls, and
writes once a turn (see `driver`).

- A *call* is a request and its answer, whatever they mean: a subclass makes it, and `calls` has those that are open.
- The roster's sweep ends a connection whose handshake takes too long, that does not read, or that asks nothing for a
  long time (roster.py).
- Ending a connection from outside is cancelling its scope, and with it every task in it. Calls without a task are told.
"""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

import trio

from ...engine.admission.client_bytes import ClientBytes
from ..sockets.roster import Connection, ConnectionPhase, Roster
from ..sockets.transport import PeerGoneError, PlainTransport, TlsTransport, Transport, linger
from .driver import CoreDriver, ReadingRoom
from .frames import DataReceived, ErrorCode, H, Http2Event, RequestReceived, StreamDrained, StreamReset
from .headers import Field
from .limits import Http2Limits
from .server import Http2Server

_BUFFER_BYTES = 1 << 18


class Http2Group(ReadingRoom):
    """The connections of a service.

    Args:
        watches_calls: connections with open calls want to be told the time in every sweep.

    Attributes:
        held_streams: whose data do not count against their connections' windows, if there is a bound for these.
    """

    def __init__(self, limits: Http2Limits, *, watches_calls: bool = False) -> None:
        super().__init__(memoryview(bytearray(_BUFFER_BYTES)))
        self.limits = limits
        self.connections: set[Http2Connection] = set()
        self.held_streams = 0
        self._watches_calls = watches_calls

    async def accompany(self, roster: Roster) -> None:
        """Tells the connections the time when they want to know it, to within one sweep interval, until cancelled."""
        while True:
            while not len(roster):
                await roster.change()
            await trio.sleep(roster.limits.sweep_interval_s)
            now_s = trio.current_time()
            watches_calls = self._watches_calls
            for connection in [
                each for each in self.connections if each.core.next_timer_s <= now_s or (watches_calls and each.calls)
            ]:
                connection.tick(now_s)
            if not roster.lasting:
                for connection in [each for each in self.connections if each.core.was_asked]:
                    connection.retire()


log = logging.getLogger(__name__)

_GREETING_BYTES = 24 + 9
"""HTTP/2's preface, and the header of the frame that must follow it."""
_FEW_BYTES = 4096
"""So much of what is not complete is not counted: a request may come in two reads."""

# A member of an enumeration takes longer to look up than a name.
_CALLS, _HEAD = ConnectionPhase.CALLS, ConnectionPhase.HEAD
_IDLE, _SENDING = ConnectionPhase.IDLE, ConnectionPhase.SENDING
_UNDECIDED = (ConnectionPhase.HANDSHAKE, ConnectionPhase.HEAD)
_ENDING = (ConnectionPhase.ENDING, ConnectionPhase.CLOSING)


class Call(Protocol):
    """What a connection tells the call of a stream."""

    def receive(self, data: bytes | memoryview, end_stream: bool) -> None:
        """The next part of the request; see `DataReceived`."""

    def drained(self) -> None:
        """All that was queued for the stream has been let through by the client's windows."""

    def cancel(self) -> None:
        """The stream is gone, or the client is."""


C = TypeVar("C", bound=Call)


class Http2Connection(Connection, CoreDriver[Http2Server[H]], Generic[H, C]):
    """Serves one client until it leaves, misbehaves, or is cancelled.

    Attributes:
        calls: the open calls by their streams.
    """

    calls: dict[int, C]

    def __init__(
        self,
        group: Http2Group,
        transport: Transport,
        roster: Roster,
        client: tuple[str, int] | None,
        parse_head: Callable[[Sequence[Field]], H],
    ) -> None:
        Connection.__init__(self, transport, roster, client, ConnectionPhase.HEAD)
        CoreDriver.__init__(self, group, trio.lowlevel.current_clock().current_time)
        self._group = group
        self._nursery = None
        self._reading = trio.CancelScope()
        self._asked = False  # something, since `_settle` last looked
        self._counted = False  # the accounts may have entries
        self._pending_bytes = self._unfinished_bytes = self._unread_bytes = 0  # when last counted
        self.core = Http2Server(group.limits, parse_head, self._current_time_s())
        self.calls = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from {self._client}: {self.phase.value}, {len(self.calls)} calls>"

    @abstractmethod
    def _open(self, event: RequestReceived[H]) -> None:
        """A call begins; or is refused, if its head says enough for that."""

    # ---- seen by the roster and the service ----

    def time_out(self) -> None:
        if self.phase is ConnectionPhase.IDLE and not self.core.going_away:
            self.enter(ConnectionPhase.IDLE)
            self.go_away()
        else:
            self.abort()

    def make_way(self, account: ClientBytes) -> bool:
        """The streams of which too much is unread, or the connection."""
        pending = self.core.pending_streams() if account is self._unread_account else []
        if account is self._unread_account and (self.blocked or not pending):
            self.abort()
            return True
        for stream_id in pending:
            self.core.reset(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            call = self.calls.get(stream_id)
            if call is not None:
                self._roster.disconnects += 1
                call.cancel()
        if not pending:
            self.core.abort(ErrorCode.ENHANCE_YOUR_CALM, "too much that is not complete")
            self._lose_calls()
        self._flush_later()
        return True

    def retire(self) -> None:
        if self.phase not in _UNDECIDED and not self.core.going_away:
            self.go_away()

    def go_away(self) -> None:
        """Finishes what is open, takes nothing new, and closes."""
        self.core.go_away(trio.current_time())
        if self.phase is not ConnectionPhase.HANDSHAKE:
            self.flush()

    def tick(self, now_s: float) -> None:
        """Does what time demands of HTTP/2: keepalive, the connection's age."""
        if self.core.next_timer_s <= now_s:
            with self._group.turn:
                self._handle(self.core.tick(now_s))
                self.flush()

    # ---- the task ----

    async def run(self, received: bytes | None = None) -> None:
        """The connection's life. Raises nothing but cancellation from outside.

        Args:
            received: what the client has sent to who has accepted the connection, and shaken hands; None if none has.
        """
        self._group.connections.add(self)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    if received is not None or await self._shake_hands():
                        await self._serve(received or b"")
                    nursery.cancel_scope.cancel()
        except Exception:
            # Handlers have a boundary of their own: this is a defect of ours. It costs the connection, not the server.
            log.exception("error while serving %s", self._client)
        finally:
            self._nursery = None
            self._cancel_calls()
            self._transport.close()
            self._group.connections.discard(self)
            self._roster.remove(self)

    async def _shake_hands(self) -> bool:
        transport = self._transport
        if isinstance(transport, TlsTransport):
            self.enter(ConnectionPhase.HANDSHAKE)
            try:
                protocol = await transport.handshake()
            except PeerGoneError:
                return False
            if protocol != "h2":
                return False
            self.enter(ConnectionPhase.HEAD)
        return True

    async def _serve(self, received: bytes) -> None:
        transport = self._transport
        if not self._roster.accepting:
            self.core.go_away(trio.current_time())
        if received:
            with self._group.turn:
                self._take_in(memoryview(received))
            await self._take_in_rest()
        else:
            self.flush()
        if isinstance(transport, PlainTransport):
            transport.watch.listener = partial(self._hear, transport)
        with self._reading:
            if not await self._read():
                self._lose_calls()
                return
        if isinstance(transport, PlainTransport):
            transport.watch.listener = None
        await self._part()

    async def _part(self) -> None:
        """Closes after all has been said."""
        self.enter(ConnectionPhase.CLOSING)
        self._cancel_calls()
        with contextlib.suppress(PeerGoneError):
            await self.until_unblocked()
            await linger(self._transport)

    # ---- what the client does ----

    def _handle(self, events: list[Http2Event[H]]) -> None:
        calls = self.calls
        for event in events:
            if isinstance(event, DataReceived):
                call = calls.get(event.stream_id)
                if call is not None:
                    call.receive(event.data, event.end_stream)
            elif isinstance(event, RequestReceived):
                self._asked = True
                self._open(event)
            else:
                self._handle_rare(event)

    def _handle_rare(self, event: Http2Event[H]) -> None:
        if isinstance(event, StreamReset | StreamDrained):
            call = self.calls.get(event.stream_id)
            if call is None:
                return
            if isinstance(event, StreamDrained):
                call.drained()
            else:
                self._roster.disconnects += 1
                call.cancel()
        else:  # Terminated
            self._lose_calls()

    def _lose_calls(self) -> None:
        self._roster.disconnects += len(self.calls)
        self._cancel_calls()

    def _cancel_calls(self) -> None:
        for call in list(self.calls.values()):
            call.cancel()

    def _progressed(self) -> None:
        if self.phase is ConnectionPhase.SENDING:  # its time begins anew
            self.enter(ConnectionPhase.SENDING)
            self._unread_account.progressed(self)

    def _settle(self) -> None:
        """Notes what the connection is doing and holding now, and whether it is done for good."""
        if self.phase in _ENDING:
            return
        core = self.core
        unfinished, unread = core.held_bytes()
        unread += self._unsent_bytes
        if unfinished > _FEW_BYTES or unread or self._counted:
            self._count(unfinished if unfinished > _FEW_BYTES else 0, unread)
        if self.blocked:
            phase = _SENDING
        elif self.calls:
            phase = _CALLS
        else:
            phase = _IDLE if self._received_bytes >= _GREETING_BYTES else _HEAD
        if phase is not self.phase:
            self.enter(phase)
        elif self._asked and phase is _IDLE:
            self.since_s = self._roster.now_s  # calls have come and gone; a PING is none
        self._asked = False
        if (core.terminated or core.idle_after_goaway) and phase is not _SENDING:
            self._reading.cancel()

    def _count(self, unfinished_bytes: int, unread_bytes: int) -> None:
        roster, pending = self._roster, self.core.pending_bytes
        self._counted = unfinished_bytes > 0 or unread_bytes > 0
        if unfinished_bytes != self._unfinished_bytes:
            self._unfinished_bytes = unfinished_bytes
            roster.hold(self._unfinished_account, self, unfinished_bytes)
        if unread_bytes != self._unread_bytes:
            self._unread_bytes = unread_bytes
            roster.hold(self._unread_account, self, unread_bytes)
        if pending < self._pending_bytes:
            self._unread_account.progressed(self)
        self._pending_bytes = pending
