"""trio's clock as the engine's `Clock`.

Decisions use trio's own time, so that a deadline which a scheduler core computed can be slept on as it is. Measurements
use the machine's clock. Both readings work from any thread.
"""

from __future__ import annotations

import time

import trio


class TrioClock:
    """The real server's clock. Must be made inside ``trio.run``."""

    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self.now_s = trio.lowlevel.current_clock().current_time

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000
