"""One gRPC connection: one task that reads, feeds the HTTP/2 core, serves what can be served at once, and writes once.

- What its calls do is in host.py; here is the socket, and the connection's life.
- The roster's sweep ends a connection whose handshake takes too long, or that does not read (roster.py).
- Ending a connection from outside is cancelling its scope, and with it every task in it. Calls without a task are told.
"""

from __future__ import annotations

import logging

import trio

from ...engine.tensor import Buffer
from ..http2.outbox import Outbox
from ..sockets.roster import Phase, Roster
from ..sockets.transport import PeerGoneError, PlainTransport, TlsTransport
from .host import CallHost, Surroundings
from .stream import Peer

log = logging.getLogger(__name__)

_GREETING_BYTES = 24 + 9
"""HTTP/2's preface, and the header of the frame that must follow it."""
_READ_BYTES = 65_536
_FEW_EVENTS = 8
_ENDING = (Phase.ENDING, Phase.CLOSING)


class Connection(CallHost):
    """Serves one client until it leaves, misbehaves, or is cancelled."""

    __slots__ = (
        "_client",
        "_outbox",
        "_reading",
        "_received_bytes",
        "_scope",
        "_surroundings",
        "_transport",
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
        super().__init__(surroundings, roster)
        self._surroundings = surroundings
        self._transport = transport
        self._client = client
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._received_bytes = 0
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
        if isinstance(transport, PlainTransport):
            transport.listen(self._hear)
        with self._reading:
            if not await self._read():
                self._lose_calls()
                return
        if isinstance(transport, PlainTransport):
            transport.listen(None)
        await self._part()

    async def _read(self) -> bool:
        """Reads until the connection is over. False: the client has closed it."""
        core = self.core
        buffer = self._surroundings.buffer
        view = usual = buffer[:_READ_BYTES]
        while not core.terminated:
            count = await self._transport.receive_into(view)
            if not count:
                return False
            few = self._take_in(view[:count])
            if count < len(view):
                view = usual
            else:
                # There may be more at once, without end; others want to be served too. A large message is read in large
                # pieces; but a lot of small things takes long to understand.
                view = buffer if few else usual
                await trio.lowlevel.checkpoint()
        return True

    def _hear(self) -> bool:
        """Takes in what comes while `_read` waits, in the task that watches all sockets. False: `_read` is to go on."""
        transport = self._transport
        assert isinstance(transport, PlainTransport), "only these have a listener"
        view = self._surroundings.buffer[:_READ_BYTES]
        count = transport.receive_now(view)
        if count <= 0:
            return count < 0
        try:
            self._take_in(view[:count])
        except Exception:
            # The same defect as in `run`, and the same price.
            log.exception("error while serving %s", self._client)
            self._end()
        return not transport.has_more

    def _take_in(self, data: memoryview) -> bool:
        """Does what the data says. True if that is little, for so much data."""
        self._received_bytes += len(data)
        events = self.core.receive(data, trio.current_time())
        self._handle(events)
        self.flush()
        return 0 < len(events) <= _FEW_EVENTS

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
        while await self._transport.receive(_READ_BYTES):
            pass

    def _make_peer(self) -> Peer:
        transport = self._transport
        return Peer(self._client, transport.stream.getpeercert() if isinstance(transport, TlsTransport) else None)

    # ---- writing ----

    def flush(self) -> None:
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
            await self._outbox.write_rest(rest, self._progressed)
        except PeerGoneError:
            self._lose_calls()
            self._end()
        self._settle()

    @property
    def blocked(self) -> bool:
        return self._outbox.blocked

    async def until_unblocked(self) -> None:
        await self._outbox.until_unblocked()

    def _progressed(self) -> None:
        """A client that did not read has read something: its time begins anew."""
        if self.phase is Phase.SENDING:
            self._enter(Phase.SENDING)

    def _settle(self) -> None:
        """Notes what the connection is doing now, and whether it is done for good."""
        if self.phase in _ENDING:
            return
        if self._outbox.blocked:
            phase = Phase.SENDING
        elif self.calls:
            phase = Phase.CALLS
        else:
            phase = Phase.IDLE if self._received_bytes >= _GREETING_BYTES else Phase.HEAD
        if phase is not self.phase:
            self._enter(phase)
        if phase is not Phase.SENDING and (self.core.terminated or self.core.idle_after_goaway):
            self._reading.cancel()
