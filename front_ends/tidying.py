"""Lets go of segments that a link does not need any more, though nothing is sent that would say so."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..actors.actor import Turn
from .link import FrontEndLink

TIDY_S = 5.0
"""Segments are given back after this time at most, and free ones are dropped after one to two times as long."""


class Tidying:
    """A task that sleeps until segments are used, and then looks now and then until there are none left.

    Args:
        flush_later: has what is to be told sent at the end of the turn.
    """

    def __init__(self, link: FrontEndLink, turn: Turn, flush_later: Callable[[], None]) -> None:
        self._link = link
        self._turn = turn
        self._flush_later = flush_later
        self._due = trio.lowlevel.ParkingLot()

    def begin(self) -> None:
        """Segments are used (`FrontEndLink.uses_segments`)."""
        self._due.unpark_all()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._due.park()
            while self._link.uses_segments:
                await trio.sleep(TIDY_S)
                with self._turn:
                    self._link.tidy()
                    self._flush_later()
