"""How fast a model's output and log lines are taken in.

Rules:
 1. Output costs time: `BYTES_PER_S` and `LINES_PER_S` say how much. What it costs is owed from then on.
 2. Up to `BURST_S` may be owed. What is more has to be waited for before more is taken; the model waits meanwhile, when
    its pipe, or its window for log lines, is full.
"""

from __future__ import annotations

BYTES_PER_S = 32 << 20
LINES_PER_S = 10_000
PRINTED_PER_LINE = 5
"""Lines of output that cost as much as a log line: they are passed on together."""
BURST_S = 0.25


class Pace:
    """The pace of one instance, whatever it writes to."""

    __slots__ = ("_paid_at_s",)

    def __init__(self) -> None:
        self._paid_at_s = 0.0

    def spend(self, nbytes: int, lines: int, now_s: float) -> float:
        """Output was taken; seconds to wait before more is.

        Args:
            lines: that the log makes of it.
        """
        cost_s = nbytes / BYTES_PER_S + lines / LINES_PER_S
        self._paid_at_s = max(self._paid_at_s, now_s) + cost_s
        return max(0.0, self._paid_at_s - now_s - BURST_S)

    def __repr__(self) -> str:
        return f"<Pace: paid at {self._paid_at_s:.3f} s>"
