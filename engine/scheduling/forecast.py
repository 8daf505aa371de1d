"""When an instance will be through with the batches that it holds.

A batch that is bound to an instance takes no more requests. So a second batch, which is there to be launched the moment
the first one ends, is bound just before that moment: a batch bound earlier is smaller than it might have been.

Rules:
 1. Batches of one instance are executed one after the other. A batch takes as long as those of about its size took
    before on any instance of the model; twice the rows are another size.
 2. While that is not known, neither is the end.
 3. The next batch may be bound `LEAD_S` before the end of all that the instance holds.
"""

from __future__ import annotations

import math

from ..job import Job

LEAD_S = 0.002
"""The event loop's timers are exact to a millisecond, and a launch takes up to one."""

_WEIGHT = 0.25
"""Of the latest batch, in the mean of those before."""

Durations = dict[int, float]
"""Seconds by size (rule 1)."""


class Forecast:
    """Of one instance.

    Args:
        durations: what is known so far; shared by the instances of a model.
    """

    __slots__ = ("_durations", "_free_s", "_held")

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._held: dict[Job, tuple[int, float]] = {}  # by the first job of a batch: its size, and when it was bound
        self._free_s = -math.inf

    def begin(self, first: Job, rows: int, now: float) -> None:
        """A batch is bound."""
        self._held[first] = rows.bit_length(), now

    def over(self, first: Job, now: float) -> None:
        """A batch is over."""
        size, bound_s = self._held.pop(first)
        took_s = now - max(bound_s, self._free_s)
        known_s = self._durations.get(size, took_s)
        self._durations[size] = known_s + _WEIGHT * (took_s - known_s)
        self._free_s = now

    def opens_s(self) -> float:
        """Rule 3; infinite while it is not known."""
        end_s = self._free_s
        for size, bound_s in self._held.values():
            end_s = max(end_s, bound_s) + self._durations.get(size, math.inf)
        return end_s - LEAD_S
