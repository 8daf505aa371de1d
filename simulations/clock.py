"""Virtual time: every reading comes from trio's clock, which a simulation replaces by a mock one."""

from __future__ import annotations

import trio


class VirtualClock:
    """The clock of a run without threads: decisions, measurements and the calendar are one and the same time."""

    now_s = staticmethod(trio.current_time)

    @staticmethod
    def now_ns() -> int:
        return round(trio.current_time() * 1e9)

    @staticmethod
    def wall_ms() -> int:
        return round(trio.current_time() * 1e3)
