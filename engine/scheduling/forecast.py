"""When an instance whose credits overlap will be through with what it holds, and so when it is to get its next batch.

Rules:
 1. Batches of one instance are executed one after the other. A batch takes as long as those of about its size took
    before on any instance of the model; twice the rows are another size. While that is not known, neither is the end.
 2. A second batch is there to be launched the moment the first one ends. It takes no more requests once it is bound, so
    it is bound `LEAD_S` before the end of all that the instance holds, and no earlier.
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
    """When one instance will be through with the batches that it holds.

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
        """Rule 2; infinite while it is not known."""
        end_s = self._free_s
        for size, bound_s in self._held.values():
            end_s = max(end_s, bound_s) + self._durations.get(size, math.inf)
        return end_s - LEAD_S
