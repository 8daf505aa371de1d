"""What the signals that end a server do to `trireme serve` (docs/reference/command-line.md#shutdown)."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping

import trio

from ...engine.draining import Draining, Ending
from ..logging import log_bare


class EndSignals:
    """Hears the signals and says when it is time for what.

    Args:
        drain_s: see `Draining`.

    Attributes:
        serving: to be set after the start. A signal that comes sooner cancels `everything`.
        everything: the scope of the whole run.
    """

    def __init__(self, drain_s: Mapping[int, float]) -> None:
        self.serving = False
        self.everything = trio.CancelScope()
        self._draining = Draining(drain_s)
        self._told = trio.lowlevel.ParkingLot()

    @property
    def asked(self) -> bool:
        """A signal has come."""
        return self._draining.state is not Ending.SERVING

    @property
    def drains_s(self) -> float:
        """What is left of the drain; 0 if there is none."""
        draining = self._draining
        left_s = draining.until_s - trio.current_time() if draining.state is Ending.DRAINING else 0.0
        return max(left_s, 0.0)

    async def heed(self, signals: AsyncIterable[int]) -> None:
        """Follow the signals, and tell of all of them in the log."""
        async for number in signals:
            log_bare(f"Signal ({number}) received.")
            self._draining.signalled(number, trio.current_time())
            self._told.unpark_all()
            if not self.serving:
                self.everything.cancel()

    async def until_asked(self) -> None:
        """Wait for the first signal."""
        while not self.asked:
            await self._told.park()

    async def until_stop(self) -> None:
        """Wait for the end of the drain, after the first signal."""
        draining = self._draining
        while draining.state is not Ending.STOPPING:
            with trio.move_on_at(draining.until_s):
                await self._told.park()
            draining.tick(trio.current_time())
