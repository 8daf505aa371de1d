"""A distribution of durations in a compact form: what a profile keeps of many measurements.

Rules:
 1. Kept are the number of samples, their mean, the standard error of the mean, and quantiles at fixed places
    (`PLACES`), of which the first is the least one. The last is the longest one; but of many samples it is only so long
    that the mean of those beyond the place before comes out right. Otherwise one in ten thousand that took a hundred
    times as long would be drawn ten times as often, and all others be scaled down for it (rule 2).
 2. Draws follow the quantiles, with straight lines between them, and are scaled so that their mean is that of the
    samples.
 3. Samples that were taken one after the other are not independent: a machine is slow for a while. So the standard
    error is also worked out from the means of `_GROUPS` groups of neighbours, and the larger one counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import InvalidArgumentError

PLACES = (
    *(0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    *(0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0),
)
"""Probabilities, ascending from 0 to 1."""

_GROUPS = 10
_FIELDS = ("count", "mean_s", "error_s", "quantiles_s")


@dataclass(frozen=True, slots=True)
class TimeDistribution:
    """TimeDistribution, in seconds.

    Attributes:
        count: samples.
        mean_s: their mean.
        error_s: the standard error of the mean.
        quantiles_s: one for each of `PLACES`, ascending, none negative.
    """

    count: int
    mean_s: float
    error_s: float
    quantiles_s: tuple[float, ...]

    @classmethod
    def of(cls, samples_s: Sequence[float]) -> TimeDistribution:
        """Those of samples, in the order in which they were taken.

        Raises:
            InvalidArgumentError: there are none, or one is negative or no number.
        """
        if not samples_s:
            raise InvalidArgumentError("a distribution of durations needs one sample at least")
        for each in samples_s:
            if not 0 <= each < math.inf:
                raise InvalidArgumentError(f"a duration must be a number of seconds from 0 on, not {each}")
        ordered = sorted(samples_s)
        mean_s = min(max(math.fsum(ordered) / len(ordered), ordered[0]), ordered[-1])
        quantiles_s = [*(_quantile(ordered, place) for place in PLACES[:-1]), _last(ordered, mean_s)]
        return cls(len(ordered), mean_s, _standard_error(samples_s), tuple(quantiles_s))

    @classmethod
    def constant(cls, duration_s: float) -> TimeDistribution:
        """Always the same."""
        return cls(1, duration_s, 0.0, (duration_s,) * len(PLACES))

    @property
    def relative_error(self) -> float:
        """The standard error as a part of the mean; 0 for a mean of 0."""
        return self.error_s / self.mean_s if self.mean_s > 0 else 0.0

    @property
    def correction(self) -> float:
        """The factor on what the quantiles say (rule 2)."""
        pieces = zip(pairwise(PLACES), pairwise(self.quantiles_s), strict=True)
        straight_s = math.fsum((p1 - p0) * (q0 + q1) / 2 for (p0, p1), (q0, q1) in pieces)
        return self.mean_s / straight_s if straight_s > 0 else 1.0

    def quantile(self, place: float) -> float:
        """The duration that this part (0 to 1) of the samples does not exceed, in seconds."""
        index = min(bisect_right(PLACES, place), len(PLACES) - 1)
        low, high = PLACES[index - 1], PLACES[index]
        before_s, after_s = self.quantiles_s[index - 1], self.quantiles_s[index]
        return before_s + (after_s - before_s) * (min(place, 1.0) - low) / (high - low)

    def scaled(self, factor: float) -> TimeDistribution:
        """The same, all durations longer by a factor of at least 0."""
        scaled = tuple(each * factor for each in self.quantiles_s)
        return TimeDistribution(self.count, self.mean_s * factor, self.error_s * factor, scaled)

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "mean_s": self.mean_s, "error_s": self.error_s, "quantiles_s": [*self.quantiles_s]}

    @classmethod
    def from_json(cls, value: Any, where: str) -> TimeDistribution:
        """What `to_json` made.

        Raises:
            InvalidArgumentError: it is something else; the text begins with `where`.
        """
        if not isinstance(value, dict) or set(value) != set(_FIELDS):
            raise InvalidArgumentError(f"{where}: expected an object with {', '.join(_FIELDS)}")
        quantiles = value["quantiles_s"]
        if not isinstance(quantiles, list) or len(quantiles) != len(PLACES):
            raise InvalidArgumentError(f"{where}.quantiles_s: expected {len(PLACES)} numbers")
        numbers = [value["mean_s"], value["error_s"], *quantiles]
        for each in numbers:
            if isinstance(each, bool) or not isinstance(each, int | float) or not 0 <= each < math.inf:
                raise InvalidArgumentError(f"{where}: expected seconds from 0 on, not {each!r}")
        if any(low > high for low, high in pairwise(quantiles)):
            raise InvalidArgumentError(f"{where}.quantiles_s: expected ascending numbers")
        if not quantiles[0] <= value["mean_s"] <= quantiles[-1]:
            raise InvalidArgumentError(f"{where}.mean_s: expected a number between the least and the longest duration")
        count = value["count"]
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidArgumentError(f"{where}.count: expected a number of samples from 1 on, not {count!r}")
        return cls(count, float(value["mean_s"]), float(value["error_s"]), tuple(map(float, quantiles)))


def _quantile(ordered: Sequence[float], place: float) -> float:
    position = place * (len(ordered) - 1)
    below = math.floor(position)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return min(low + (high - low) * (position - below), high)


def _last(ordered: Sequence[float], mean_s: float) -> float:
    """Rule 1."""
    beyond = ordered[math.ceil(PLACES[-2] * (len(ordered) - 1)) :]
    before_s = _quantile(ordered, PLACES[-2])
    return min(max(2 * math.fsum(beyond) / len(beyond) - before_s, before_s, mean_s), ordered[-1])


def _standard_error(samples: Sequence[float]) -> float:
    """Rule 3."""
    groups = [samples[i * len(samples) // _GROUPS : (i + 1) * len(samples) // _GROUPS] for i in range(_GROUPS)]
    means = [math.fsum(group) / len(group) for group in groups if group]
    return max(_error_of(samples), _error_of(means) if len(samples) >= 2 * _GROUPS else 0.0)


def _error_of(samples: Sequence[float]) -> float:
    count = len(samples)
    if count < 2:
        return 0.0
    mean = math.fsum(samples) / count
    return math.sqrt(math.fsum((each - mean) ** 2 for each in samples) / (count - 1) / count)
