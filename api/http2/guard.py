"""Budgets against floods: things that one client in need does now and then, and only an attacker without end.

Each kind has a token bucket. What is not in here is bounded otherwise: by windows, by the number of streams, by the
sizes of frames and header blocks, and by the backlog of control frames.
"""

from __future__ import annotations

from .errors import ConnectionFault, ErrorCode
from .limits import Rate


class Budget:
    """A token bucket. `spend` takes a token; without one the connection is at fault.

    Args:
        rate: burst and refill.
        what: the debug text of the GOAWAY.
        now_s: when the bucket is full.
    """

    __slots__ = ("_rate", "_tokens", "_updated_s", "_what")

    def __init__(self, rate: Rate, what: str, now_s: float) -> None:
        self._rate = rate
        self._what = what
        self._tokens = float(rate.burst)
        self._updated_s = now_s

    def spend(self, now_s: float) -> None:
        """Raises `ConnectionFault` (ENHANCE_YOUR_CALM) if the budget is used up."""
        passed_s = max(0.0, now_s - self._updated_s)
        self._updated_s = now_s
        self._tokens = min(float(self._rate.burst), self._tokens + passed_s * self._rate.per_s)
        if self._tokens < 1.0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, self._what)
        self._tokens -= 1.0
