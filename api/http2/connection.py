"""The HTTP/2 connections of a service. Each has one task that reads, feeds the core, hands what comes to the calls, and
writes once a turn.

- A *call* is a request and its answer, whatever they mean: a subclass makes it, and `calls` has those that are open.
- What has been read is taken in in one turn (`actors.actor`), and all that is answered in that turn is written at its
  end. What is answered later is written at the end of its turn; or at once, if no other call is open.
- The roster's sweep ends a connection whose handshake takes too long, that does not read, or that asks nothing for a
  long time (roster.py).
- The core is asked for output when all that it gave before has been written. So a client that does not read is noticed
  by the core, and nothing is copied or kept twice. What the socket does not take at once is written by a task of its
  own; meanwhile the connection is `blocked`: handlers do not send, the reader reads on.
- Ending a connection from outside is cancelling its scope, and with it every task in it. Calls without a task are told.
"""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

import trio

from ...actors.actor import Turn
from ...engine.admission.client_bytes import ClientBytes
from ...engine.tensor import Buffer
from ..sockets.roster import Connection, ConnectionPhase, Roster
from ..sockets.transport import PeerGoneError, PlainTransport, TlsTransport, Transport, linger
from .frames import DataReceived, ErrorCode, H, Http2Event, RequestReceived, StreamDrained, StreamReset
from .headers import Field
from .limits import Http2Limits
from .server import Http2Server

_BUFFER_BYTES = 1 << 18
_READ_BYTES = 65_536
_HEAD_BYTES = 1_024


class Http2Group:
    """The connections of a service.

    Args:
        watches_calls: connections with open calls want to be told the time in every sweep.

    Attributes:
        buffer: for reading into, between two checkpoints.
        usual_buffer: the part of it that is read into as a rule.
        head_buffer: the part that is read into where the head of a large frame is to come.
        held_streams: whose data do not count against their connections' windows, if there is a bound for these.
    """

    turn: Turn

    def __init__(self, limits: Http2Limits, *, watches_calls: bool = False) -> None:
        self.limits = limits
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.usual_buffer = self.buffer[:_READ_BYTES]
        self.head_buffer = self.buffer[:_HEAD_BYTES]
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
_BURST = 512
"""Pieces given to the socket at once; the kernel takes 1,024."""
_FEW_EVENTS = 8
_FEW_BYTES = 4096
"""So much of what is not complete is not counted: a request may come in two reads."""
_NOTHING = memoryview(b"")

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


class Http2Connection(Connection, Generic[H, C]):
    """Serves one client until it leaves, misbehaves, or is cancelled.

    Attributes:
        core: the protocol.
        calls: the open calls by their streams.
        blocked: the socket is full; a task waits for it.
    """

    def __init__(
        self,
        group: Http2Group,
        transport: Transport,
        roster: Roster,
        client: tuple[str, int] | None,
        parse_head: Callable[[Sequence[Field]], H],
    ) -> None:
        super().__init__(transport, roster, client, ConnectionPhase.HEAD)
        self._group = group
        self._nursery: trio.Nursery | None = None
        self._reading = trio.CancelScope()
        self._dirty = False
        self._received_bytes = 0
        self._asked = False  # something, since `_settle` last looked
        self._counted = False  # the accounts may have entries
        self._pending_bytes = self._unfinished_bytes = self._unread_bytes = 0  # when last counted
        self._current_time_s = trio.lowlevel.current_clock().current_time
        self.core: Http2Server[H] = Http2Server(group.limits, parse_head, self._current_time_s())
        self.blocked = False
        self._unblocked = trio.lowlevel.ParkingLot()
        self._unsent_bytes = 0  # all of it is in memory until the last of it is written
        self.calls: dict[int, C] = {}

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

    async def _read(self) -> bool:
        """Reads until the connection is over. False: the client has closed it."""
        core = self.core
        buffer = self._group.buffer
        view = usual = self._group.usual_buffer
        transport = self._transport
        while not core.terminated:
            landing = None
            if isinstance(transport, PlainTransport):
                if not transport.watch.ready:
                    await transport.watch.wait()  # and meanwhile `_hear` may have taken in what was to come
                landing = core.landing() if core.lands else None
                count = transport.receive_now(landing or view)
                if count < 0:
                    continue
            else:
                count = await transport.receive_into(view)
            if not count:
                return False
            with self._group.turn:
                events = self._take_in(view[:count]) if landing is None else self._take_in(landing[:count], True)
            if core.has_unread:
                await self._take_in_rest()
            if landing is not None:
                view = self._group.head_buffer  # of the next frame, whose data lands again
                if count == len(landing):
                    await transport.yield_turn()
            elif count < len(view):
                view = usual
            else:
                # There may be more at once, without end; others want to be served too. A large message is read in large
                # pieces; but a lot of small things takes long to understand.
                view = buffer if 0 < events <= _FEW_EVENTS else usual
                await self._transport.yield_turn()
        return True

    def _hear(self, transport: PlainTransport) -> bool:
        """Takes in what comes while `_read` waits, in a turn of the task that watches all sockets. False: `_read` is to
        go on."""
        core = self.core
        if core.has_unread:
            return True  # `_go_on` looks for more when it has taken that in
        landing = core.landing() if core.lands else None
        view = landing or self._group.usual_buffer
        count = transport.receive_now(view)
        if count <= 0:
            return count < 0
        try:
            self._take_in(view[:count], landing is not None)
        except Exception:
            # The same defect as in `run`, and the same price.
            log.exception("error while serving %s", self._client)
            self.abort()
        if core.has_unread:
            self.start(self._go_on, transport)
            return True
        return not transport.watch.ready

    async def _go_on(self, transport: PlainTransport) -> None:
        await self._take_in_rest()
        if transport.watch.ready:
            transport.watch.wake()

    async def _take_in_rest(self) -> None:
        """Takes in what was too much at once. In between, others have their turn."""
        while self.core.has_unread:
            await self._transport.yield_turn()
            with self._group.turn:
                self._take_in(_NOTHING)

    def _take_in(self, data: memoryview, landed: bool = False) -> int:
        """Does what the data says, in an open turn. Returns how much that is.

        Args:
            landed: it was received where the core has said.
        """
        self._received_bytes += len(data)
        if not self._dirty:
            self._dirty = True
            self._group.turn.flush_later(self)
        now_s = self._current_time_s()
        events = self.core.landed(data, now_s) if landed else self.core.receive(data, now_s)
        self._handle(events)
        return len(events)

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

    # ---- for the calls ----

    def mark(self, own: int) -> None:
        """The core has something to say.

        Args:
            own: 1 if the call that has made it so is still open; 0 if not.
        """
        if not self._dirty:
            if len(self.calls) > own:
                self._flush_later()
            else:
                self.flush()

    def _flush_later(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._group.turn.flush_later(self)

    def start(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(function, *arguments)

    # ---- writing ----

    def flush(self) -> None:
        """Writes what the core has to say. Does not wait, and does not raise."""
        self._dirty = False
        if not self.blocked and (buffers := self.core.take_output()):
            try:
                rest = self._transport.send_now(buffers) if len(buffers) <= _BURST else self._send_bursts(buffers)
            except PeerGoneError:
                self._lose_calls()
                self.abort()
                return
            if rest:
                self.blocked = True
                self._unsent_bytes = sum(map(len, rest))
                self.start(self._write_rest, rest)
        self._settle()

    def _send_bursts(self, buffers: list[Buffer]) -> list[Buffer]:
        for at in range(0, len(buffers), _BURST):
            rest = self._transport.send_now(buffers[at : at + _BURST])
            if rest:
                return [*rest, *buffers[at + _BURST :]]
        return []

    async def _write_rest(self, rest: list[Buffer]) -> None:
        """Writes `rest`, and whatever the core has to say by then."""
        try:
            while rest:
                for at in range(0, len(rest), _BURST):
                    burst = rest[at : at + _BURST]
                    while burst:
                        burst = await self._transport.send_some(burst)
                        if self.phase is ConnectionPhase.SENDING:  # it has read something: its time begins anew
                            self.enter(ConnectionPhase.SENDING)
                            self._unread_account.progressed(self)
                rest = self.core.take_output()
                self._unsent_bytes = sum(map(len, rest))
        except PeerGoneError:
            self._lose_calls()
            self.abort()
        finally:
            self.blocked = False
            self._unsent_bytes = 0
            self._unblocked.unpark_all()
        self._settle()

    async def until_unblocked(self) -> None:
        while self.blocked:
            await self._unblocked.park()

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
