"""What a front end does with what the engine says to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from . import kinds
from .link import NOTHING, LinkHead
from .remote_server import RemoteServer, Send

_MOST_UNSENT = 65_536


class EngineListener:
    """Takes messages in (`uplink.Hearer`): what is not about the front end itself is for its server.

    Args:
        change_log: called with the log's new settings.

    Attributes:
        begin_drain: called when clients are to connect anew, before anything is heard that the engine said later.
        draining: they are.
        drains: set when the front end is to end.
        drains_s: how long it may take to finish what it has.
    """

    def __init__(self, server: RemoteServer, send: Send, change_log: Callable[..., object]) -> None:
        self.begin_drain: Callable[[], object] | None = None
        self.draining = False
        self.drains = trio.Event()
        self.drains_s = 0.0
        self._server = server
        self._send = send
        self._change_log = change_log
        self._unsent: deque[LinkHead] = deque(maxlen=_MOST_UNSENT)

    def received(self, head: list[Any], payload: memoryview) -> None:
        """See `uplink.Hearer`."""
        kind = head[0]
        if kind == kinds.SYNC:
            self.tell((kinds.HEARD, head[1]))
        elif kind == kinds.LOG:
            self._change_log(**head[1])
        elif kind == kinds.BEGIN_DRAIN:
            self.draining = True
            if self.begin_drain is not None:
                self.begin_drain()
        elif kind == kinds.DRAIN:
            self.drains_s = head[1]
            self.drains.set()
        else:
            self._server.received(head, payload)

    def lost(self, head: list[Any], payload: memoryview) -> None:
        """See `uplink.Hearer`."""
        self._server.lost(head, payload)

    def room(self) -> None:
        """See `uplink.Hearer`."""
        while self._unsent and self._send(self._unsent[0], NOTHING):
            self._unsent.popleft()
        self._server.room()

    def tell(self, head: LinkHead) -> None:
        """Say something, as soon as there is room: once at the start, and for each `SYNC`."""
        if self._unsent or not self._send(head, NOTHING):
            self._unsent.append(head)
