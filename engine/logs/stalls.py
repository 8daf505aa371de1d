"""Stalls of the event loop: how long each was, and whether the server is well in spite of them.

The watchdog asks the loop for a beat now and then; how long the loop takes to give it is how long it was held up.

Rules:
 1. A beat that takes `STALL_S` or longer is a stall. It is counted, and the longest is kept.
 2. A stall of `limit_s` or longer makes the server unwell, already while it lasts. It is well again when the loop has
    given every beat in time for `RECOVERY_S`.

States, and what leads from one to the other:

    WELL ─(a beat takes `limit_s` or longer)▶ UNWELL ─(no stall for `RECOVERY_S`)▶ WELL

One thread feeds events; any other may read the attributes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..metrics.family import MetricFamily
from ..metrics.page import Scrape

STALL_S = 1.0
RECOVERY_S = 10.0


class LoopStalls:
    """What is known of the loop's stalls. All times are seconds of one clock.

    Args:
        limit_s: more than `STALL_S`; 0 for no limit.

    Attributes:
        count: stalls so far, those that last not included.
        longest_s: the longest of them.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s or math.inf
        self._well_from_s = -math.inf
        self.count = 0
        self.longest_s = 0.0
        self.unwell = False

    def waiting(self, asked_s: float, now: float) -> None:
        """The beat that was asked for at `asked_s` has not come yet."""
        if now - asked_s >= self._limit_s:
            self.unwell = True

    def came(self, asked_s: float, came_s: float) -> float:
        """A beat has come.

        Returns:
            How long the stall was; 0 if there was none.
        """
        took_s = came_s - asked_s
        stalled = took_s >= STALL_S
        if stalled:
            self.waiting(asked_s, came_s)
            self._well_from_s = came_s + RECOVERY_S
            self.count += 1
            self.longest_s = max(self.longest_s, took_s)
        elif self.unwell and came_s >= self._well_from_s:
            self.unwell = False
        return took_s if stalled else 0.0

    def families(self, _scrape: Scrape) -> Iterator[MetricFamily]:
        """For the metrics: how many stalls there were, and how long the longest was."""
        held_up = f"Number of times that the event loop was held up for {STALL_S:g} s or longer"
        yield MetricFamily("trireme_loop_stall_count", held_up, "counter", self.count)
        yield MetricFamily(
            "trireme_loop_longest_stall_seconds",
            "Longest time that the event loop was held up",
            "gauge",
            self.longest_s,
        )
