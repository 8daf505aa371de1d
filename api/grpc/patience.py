"""Whether a message that has room comes on: what holds room must not stand still, nor too much of it for long.

In every period of `Limits.body_grace_s` as much of it must come as `Limits.body_rate` says. All periods are in the heap
of the service's deadlines.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ...actors.address_share import HURRY_S
from ..sockets.limits import Limits
from .deadlines import Deadlines, Entry
from .framing import MessageReader

TOO_SLOW = "the request message arrives too slowly"
"""What the client of one that does not is told, with the status DEADLINE_EXCEEDED."""


class Patience:
    """With one message, until `stop`.

    Args:
        deadlines: of the service.
        limits: how slow a message may be.
        reader: that collects the message.
        give_up: called, once, if it does not come on.
    """

    __slots__ = ("_deadlines", "_entry", "_give_up", "_hurries", "_limits", "_reader", "_seen_bytes")

    def __init__(
        self, deadlines: Deadlines, limits: Limits, reader: MessageReader, give_up: Callable[[], None]
    ) -> None:
        self._deadlines = deadlines
        self._limits = limits
        self._reader = reader
        self._give_up: Callable[[], None] | None = give_up
        self._entry: Entry | None = None
        self._hurries = False
        self._begin_period()

    def _begin_period(self) -> None:
        self._seen_bytes = self._reader.collected_bytes
        self._entry = self._deadlines.add(trio.current_time() + self._limits.body_grace_s, self)

    def hurry(self) -> None:
        """The message holds more than it may while others wait: it must be there soon. May be called again."""
        if self._entry is not None and not self._hurries:
            self._hurries = True
            self._deadlines.remove(self._entry)
            self._entry = self._deadlines.add(trio.current_time() + HURRY_S, self)

    def expire(self) -> None:
        """A period is over."""
        came = self._reader.collected_bytes - self._seen_bytes
        if came >= self._limits.body_rate * self._limits.body_grace_s and not self._hurries:
            self._begin_period()
        elif self._give_up is not None:
            self._entry = None
            self._give_up()

    def stop(self) -> None:
        """The message is there, or not needed any more."""
        self._give_up = None
        if self._entry is not None:
            self._deadlines.remove(self._entry)
            self._entry = None
