"""Time, injected.

Nothing in Trireme that decides or measures calls ``time.*`` itself: it is handed a `Clock`. The server runs on the
real one, a simulation on a virtual one, and the same code cannot tell the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol
from weakref import WeakMethod


class Clock(Protocol):
    """Two readings of one time line, callable from any thread."""

    def now_s(self) -> float:
        """Seconds since an arbitrary origin, never going back. For decisions: deadlines, delays, ages."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds since an origin of its own. For measurements: statistics and traces."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. Only ever reported (``last_inference``), never compared."""
        ...


class SystemClock:
    """The machine's monotonic clock, and its calendar.

    Args:
        now_s: what decisions use, if it is something else: an event loop's time, so that a deadline which was computed
            with it can be slept on as it is. Callable from any thread.
    """

    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000


def unix_offset_ns(clock: Clock) -> int:
    """What is to be added to `clock.now_ns()` to make it a time since the Unix epoch, for who asks for that."""
    return time.time_ns() - clock.now_ns()


class Timers(Protocol):
    """Calls at given times. A simulation has its own, so that deadlines cost it no tasks."""

    def call_at(self, when_s: float, call: Callable[[], object]) -> None:
        """Have something called on the event loop then, outside of a turn."""
        ...


def utc_text(wall_ms: int) -> str:
    """A time of the calendar (`Clock.wall_ms`) as logs show it: UTC, with milliseconds."""
    moment = datetime.fromtimestamp(wall_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1000:03d}Z"


def weakly(method: Callable[[], object]) -> Callable[[], None]:
    """A call of a method that keeps nothing alive: timers may have it long after its object has ended."""
    reference = WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return call
