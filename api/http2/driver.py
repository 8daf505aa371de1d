"""How a core of HTTP/2 reads and writes through a transport, on either side of the connection.

- What has been read is taken in in one turn (`actors.actor`), and all that is said in that turn is written at its end.
  What is said later is written at the end of its turn; or at once, if no other call is open.
- The core is asked for output when all that it gave before has been written. So a peer that does not read is noticed
  by the core, and nothing is copied or kept twice. What the socket does not take at once is written by a task of its
  own; meanwhile the connection is `blocked`: who sends waits, the reader reads on.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, TypeVar

import trio

from ...actors.actor import Turn
from ...engine.tensor import Buffer
from ..sockets.transport import PeerGoneError, PlainTransport, Transport
from .endpoint import Http2Endpoint
from .frames import Http2Event

log = logging.getLogger(__name__)

_BURST = 512
"""Pieces given to the socket at once; the kernel takes 1,024."""
_FEW_EVENTS = 8
_NOTHING = memoryview(b"")
READ_BYTES = 65_536
_HEAD_BYTES = 1_024


class ReadingRoom:
    """What connections share for reading.

    Args:
        buffer: for reading into, between two checkpoints.

    Attributes:
        usual_buffer: the part of it that is read into as a rule.
        head_buffer: the part that is read into where the head of a large frame is to come.
    """

    turn: Turn

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.usual_buffer = buffer[:READ_BYTES]
        self.head_buffer = buffer[:_HEAD_BYTES]


E = TypeVar("E", bound=Http2Endpoint[Any])


class CoreDriver(ABC, Generic[E]):
    """A connection that reads and writes.

    Args:
        current_time_s: now, on the clock of timers.

    Attributes:
        core: the protocol.
        calls: the open calls by their streams.
        blocked: the socket is full; a task waits for it.
    """

    core: E
    calls: dict[int, Any]
    _settles_all: ClassVar[bool] = True
    """Whatever has come is followed by a `flush`, and so by `_settle`, when the turn ends; else `_handle` says when."""
    _transport: Transport
    _nursery: trio.Nursery | None

    def __init__(self, room: ReadingRoom, current_time_s: Callable[[], float]) -> None:
        self._room = room
        self._current_time_s = current_time_s
        self._dirty = False
        self.blocked = False
        self._received_bytes = 0
        self._unblocked = trio.lowlevel.ParkingLot()
        self._unsent_bytes = 0  # all of it is in memory until the last of it is written

    @abstractmethod
    def abort(self) -> None:
        """Ends the connection at once."""

    @abstractmethod
    def _handle(self, events: list[Http2Event[Any]]) -> None:
        """What the peer has done, in an open turn."""

    @abstractmethod
    def _settle(self) -> None:
        """All was written that can be, for now."""

    @abstractmethod
    def _lose_calls(self) -> None:
        """The peer is gone."""

    def _progressed(self) -> None:
        """A peer that had not read has read something."""

    # ---- reading ----

    async def _read(self) -> bool:
        """Reads until the connection is over. False: the client has closed it."""
        core = self.core
        buffer = self._room.buffer
        view = usual = self._room.usual_buffer
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
            with self._room.turn:
                events = self._take_in(view[:count]) if landing is None else self._take_in(landing[:count], True)
            if core.has_unread:
                await self._take_in_rest()
            if landing is not None:
                view = self._room.head_buffer  # of the next frame, whose data lands again
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
        view = landing or self._room.usual_buffer
        count = transport.receive_now(view)
        if count <= 0:
            return count < 0
        try:
            self._take_in(view[:count], landing is not None)
        except Exception:
            # The same defect as in `run`, and the same price.
            log.exception("error in %r", self)
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
            with self._room.turn:
                self._take_in(_NOTHING)

    def _take_in(self, data: memoryview, landed: bool = False) -> int:
        """Does what the data says, in an open turn. Returns how much that is.

        Args:
            landed: it was received where the core has said.
        """
        self._received_bytes += len(data)
        if self._settles_all and not self._dirty:
            self._dirty = True
            self._room.turn.flush_later(self)
        now_s = self._current_time_s()
        events = self.core.landed(data, now_s) if landed else self.core.receive(data, now_s)
        self._handle(events)
        return len(events)

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
            self._room.turn.flush_later(self)

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
                        self._progressed()
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
