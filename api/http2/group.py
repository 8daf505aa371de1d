"""What the HTTP/2 connections of one service share, and the task that serves all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...actors.turn import Turn
from ..sockets.roster import Roster
from .limits import Http2Limits

if TYPE_CHECKING:
    from .connection import Http2Connection

_BUFFER_BYTES = 1 << 18


class Http2Group:
    """The connections of a service.

    Args:
        limits: of each connection.
        watches_calls: connections with open calls want to be told the time in every sweep.

    Attributes:
        buffer: for reading into, between two checkpoints.
        connections: that run.
        turn: in which they are heard, and written to.
        held_streams: whose data do not count against their connections' windows, if there is a bound for these.
    """

    __slots__ = ("_watches_calls", "buffer", "connections", "held_streams", "limits", "turn")

    turn: Turn

    def __init__(self, limits: Http2Limits, *, watches_calls: bool = False) -> None:
        self.limits = limits
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.connections: set[Http2Connection] = set()
        self.held_streams = 0
        self._watches_calls = watches_calls

    def __repr__(self) -> str:
        return f"<Http2Group of {len(self.connections)} connections>"

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
