"""trio's clock as the engine's `Clock`.

Decisions use trio's own time, so that a deadline which a scheduler core computed can be slept on as it is, and so that
a mock clock moves everything. Both readings work from any thread.
"""

from __future__ import annotations

import time

import trio
from trio.abc import Clock as RunClock

from ..engine.clock import Clock


class TrioClock:
    """Decisions on trio's clock, measurements on the machine's. Must be made inside ``trio.run``."""

    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self.now_s = trio.lowlevel.current_clock().current_time

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000


class VirtualClock:
    """Everything on trio's clock: what a run under a mock clock uses. Must be made inside ``trio.run``."""

    def __init__(self) -> None:
        self._clock: RunClock = trio.lowlevel.current_clock()
        self.now_s = self._clock.current_time

    def now_ns(self) -> int:
        return round(self._clock.current_time() * 1e9)

    def wall_ms(self) -> int:
        return round(self._clock.current_time() * 1e3)


def default_clock() -> Clock:
    """The clock for a run: virtual exactly when the run's clock is."""
    if isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock):
        return VirtualClock()
    return TrioClock()
