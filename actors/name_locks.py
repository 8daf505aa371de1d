"""Who may change which models: operations on one name go one after the other, those on different names side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class NameLocks:
    """Sets of names, held all at once or not at all, in the order in which they were asked for.

    An operation waits for those before it that share a name with it, so there is no circle to wait in, and none is
    overtaken for ever.
    """

    def __init__(self) -> None:
        self._line: list[_Ticket] = []
        self._changed = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def hold(self, names: frozenset[str]) -> AsyncIterator[None]:
        """Wait until no earlier operation holds or wants one of `names`."""
        ticket = _Ticket(names)
        self._line.append(ticket)
        try:
            while self._must_wait(ticket):
                await self._changed.park()
            yield
        finally:
            self._line.remove(ticket)
            self._changed.unpark_all()

    def wanted(self, names: frozenset[str]) -> bool:
        """Whether an operation holds or wants one of them."""
        return any(not ticket.names.isdisjoint(names) for ticket in self._line)

    def _must_wait(self, ticket: _Ticket) -> bool:
        for earlier in self._line:
            if earlier is ticket:
                return False
            if not earlier.names.isdisjoint(ticket.names):
                return True
        raise AssertionError("a ticket that waits stands in the line")

    def __repr__(self) -> str:
        return f"<NameLocks: {len(self._line)} operations>"


class _Ticket:
    """Equal to nothing but itself: several operations may want the same names."""

    __slots__ = ("names",)

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
