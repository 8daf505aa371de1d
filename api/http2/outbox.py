"""Writes what a connection's HTTP/2 core has to say.

Rule 1: The core is asked for output when all that it gave before has been written. So a client that does not read is
        noticed by the core, and nothing is copied or kept twice.
Rule 2: What the socket does not take at once is written by a task of its own. While it waits the outbox is `blocked`:
        handlers do not send, the reader reads on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from ...engine.tensor import Buffer
from ..sockets.transport import Transport
from .server import Http2Server

_BURST = 512
"""Pieces given to the socket at once; the kernel takes 1,024."""


class Outbox:
    """The writing side of one connection.

    Attributes:
        blocked: the socket is full; a task waits for it.
        unsent_bytes: what was to be written when it became full, all of which is in memory until the last of it is.
    """

    def __init__(self, transport: Transport, core: Http2Server[Any]) -> None:
        self._transport = transport
        self._core = core
        self._unblocked = trio.lowlevel.ParkingLot()
        self.blocked = False
        self.unsent_bytes = 0

    def __repr__(self) -> str:
        return f"<Outbox{' blocked' if self.blocked else ''}>"

    def write_now(self) -> list[Buffer]:
        """Writes what goes without waiting. What is left is for `write_rest`.

        Raises:
            PeerGoneError: the client is gone.
        """
        if self.blocked:
            return []
        while self._core.has_output:
            rest = self._send(self._core.take_output())
            if rest:
                self.blocked = True
                self.unsent_bytes = sum(map(len, rest))
                return rest
        return []

    def _send(self, buffers: list[Buffer]) -> list[Buffer]:
        if len(buffers) <= _BURST:
            return self._transport.send_now(buffers)
        for at in range(0, len(buffers), _BURST):
            rest = self._transport.send_now(buffers[at : at + _BURST])
            if rest:
                return [*rest, *buffers[at + _BURST :]]
        return []

    async def write_rest(self, rest: list[Buffer], on_progress: Callable[[], None]) -> None:
        """Writes `rest`, and whatever the core has to say by then.

        Args:
            on_progress: told whenever the client has read something.

        Raises:
            PeerGoneError: the client is gone.
        """
        try:
            while rest:
                for at in range(0, len(rest), _BURST):
                    burst = rest[at : at + _BURST]
                    while burst:
                        burst = await self._transport.send_some(burst)
                        on_progress()
                rest = self._core.take_output() if self._core.has_output else []
                self.unsent_bytes = sum(map(len, rest))
        finally:
            self.blocked = False
            self.unsent_bytes = 0
            self._unblocked.unpark_all()

    async def until_unblocked(self) -> None:
        """Waits for `write_rest` to end."""
        while self.blocked:
            await self._unblocked.park()
