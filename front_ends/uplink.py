"""A front end's end of its link: a task that hears, and messages that go out when the turn is over."""

from __future__ import annotations

import socket
from typing import Any, Protocol

import trio

from ..actors.actor import Recipient, Turn
from ..actors.socket_readiness import Readiness
from ..python_backend.child.codec import Payload
from .link import NOTHING, FrontEndLink, LinkError, LinkHead
from .ring import RingReader, RingWriter
from .tidying import Tidying

_MOST_READ = 256


class Hearer(Protocol):
    """Who takes messages in; see `RemoteServer`."""

    def received(self, head: list[Any], payload: memoryview) -> None:
        """A message has come.

        Raises:
            LinkError: it is none.
        """
        ...

    def lost(self, head: list[Any], payload: memoryview) -> None:
        """The same for one whose payload could not be taken over (`FrontEndLink`)."""
        ...

    def room(self) -> None:
        """There may be room for what could not be sent."""
        ...


class Uplink(Recipient):
    """What a front end says and hears.

    Args:
        sock, rings: of this end.

    Attributes:
        lender: of the link.
    """

    def __init__(self, sock: socket.socket, rings: tuple[RingWriter, RingReader], turn: Turn) -> None:
        super().__init__()
        self._turn = turn
        self._link = FrontEndLink(sock, rings, self._returned, self._lost)
        self._tidying = Tidying(self._link, turn, self._flush_later)
        self.lender = self._link.lender
        self._hearer: Hearer | None = None
        self._flushes = False
        self._error: LinkError | None = None
        self._scope = trio.CancelScope()

    async def run(self, hearer: Hearer, readiness: Readiness) -> None:
        """Hear until cancelled.

        Raises:
            LinkError: the engine is gone.
        """
        self._hearer = hearer
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tidying.run)
                await readiness.keep_hearing(self._link.fileno(), self._hear)
        if self._error is not None:
            raise self._error

    def send(self, head: LinkHead, payload: Payload = NOTHING) -> bool:
        """See `FrontEndLink.send`; it is flushed when the turn is over."""
        try:
            sent = self._link.send(head, payload)
        except LinkError as error:
            self._break(error)
            return False
        self._flush_later()
        return sent

    def flush(self) -> None:
        self._flushes = False
        try:
            self._link.flush()
        except LinkError as error:
            self._break(error)
        if self._link.uses_segments:
            self._tidying.begin()

    def take_turn(self) -> None:
        """Read what the last turn has left."""
        self._read()

    def fail(self, error: Exception) -> None:
        self._break(error if isinstance(error, LinkError) else LinkError(f"unexpected failure: {error!r}"))

    def _hear(self) -> bool:
        try:
            room = self._link.hear()
            self._read()
        except LinkError as error:
            self._break(error)
            return True  # until it is cancelled
        if room and self._hearer is not None:
            self._hearer.room()
        return True

    def _read(self) -> None:
        assert self._hearer is not None, "it runs"
        link, received = self._link, self._hearer.received
        for _ in range(_MOST_READ):
            message = link.receive()
            if message is None:
                break
            received(*message)
        else:
            self._turn.defer(self)
        if link.release():
            self._hearer.room()

    def _lost(self, head: list[Any], payload: memoryview) -> None:
        assert self._hearer is not None, "it runs"
        self._hearer.lost(head, payload)

    def _returned(self) -> None:
        """The engine may wait for segments that it has lent; from any thread."""
        self._turn.call_from_thread(self._flush_later)

    def _flush_later(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._turn.flush_later(self)

    def _break(self, error: LinkError) -> None:
        self._error = self._error or error
        self._scope.cancel()

    def close(self) -> None:
        self._link.close()
