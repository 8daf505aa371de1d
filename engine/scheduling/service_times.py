"""What an adaptive batcher learns: how long batches take, by their size, and how many requests come.

Rules:
 1. Sizes whose numbers of rows need equally many bits are one class. A class keeps its latest `_KEPT` batches; what it
    expects is their mean without the highest and the lowest eighth of them, once there are three.
 2. Between two classes times are interpolated, by the means of their rows. Beyond the outer ones they go on along the
    line through the two that are nearest, but never fall as sizes grow. Of one class alone it is
    supposed that batches of up to twice its size take as long, so that they are tried, and larger ones as much longer
    as they are larger.
 3. A change of a class's mean says something about all sizes (drift): the others follow it, each as far as it has not
    been seen itself for a while (`_FRESH`). One that was not seen for `_FORGOTTEN` batches is forgotten, so that a size
    that was too slow once is tried again; one that is larger than what is executed sooner the first times
    (`_FIRST_FORGOTTEN` batches, then twice as many each time): a batch or two that were slow by chance would keep a
    good size from being tried.
 4. A batch that takes more than `_MOST_TIMES` as long as expected counts as one that takes so long. So one that hung is
    soon forgotten, and a lasting change is learnt in a few batches.
 5. What is expected is a mean. `bound_s` is higher by a margin: by the ratio of real and expected times that `_COVERED`
    of the latest `_RATIOS` batches of classes that were known did not exceed.
 6. Arrivals are counted in rows, each of which counts less as time goes by: by the factor e after `memory_s`.

Memory is bounded: `_CLASSES` classes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

_KEPT = 16
_FRESH = 0.9
_FORGOTTEN = 128
_FIRST_FORGOTTEN = 16
_MOST_TIMES = 3.0
_COVERED = 0.9
_RATIOS = 64
_CLASSES = 32


@dataclass(slots=True, eq=False)
class _SizeClass:
    """Rule 1.

    Attributes:
        fresh: 1 for a class that has just been seen, towards 0 since.
        scale: what its batches' times are multiplied with by now (rule 3).
    """

    kept: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    fresh: float = 1.0
    scale: float = 1.0
    rows: float = 0.0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        if self.scale != 1.0:
            kept = [(its_rows, its_s * self.scale) for its_rows, its_s in self.kept]
            self.kept.clear()
            self.kept.extend(kept)
            self.scale = 1.0
        self.kept.append((rows, seconds))
        times = sorted(its_s for _, its_s in self.kept)
        cut = max(1, len(times) // 8) if len(times) >= 3 else 0
        times = times[cut : len(times) - cut]
        self.seconds = sum(times) / len(times)
        self.rows = sum(its_rows for its_rows, _ in self.kept) / len(self.kept)
        self.fresh = 1.0

    def follow(self, factor: float) -> None:
        """Rule 3."""
        factor = 1 + (factor - 1) * (1 - self.fresh)
        self.scale *= factor
        self.seconds *= factor


class ServiceTimes:
    """Learns how long a batch of a model takes, from the moment it is dispatched."""

    __slots__ = ("_classes", "_line", "_margin", "_patience", "_ratios")

    def __init__(self) -> None:
        self._classes: dict[int, _SizeClass] = {}
        self._line: list[tuple[float, float]] = []  # rows and seconds of the classes, ascending in both
        self._margin = 1.0
        self._patience: dict[int, int] = {}  # by class: after how many batches without it it is forgotten
        self._ratios: deque[float] = deque(maxlen=_RATIOS)

    @property
    def known(self) -> bool:
        """Whether any batch was seen."""
        return bool(self._line)

    def learn(self, rows: int, seconds: float) -> None:
        """A batch of so many rows took so long."""
        seconds = max(seconds, 1e-9)
        number = min(rows.bit_length(), _CLASSES)
        seen = self._classes.get(number)
        if self._line:
            expected = self.expected_s(rows)
            if seen is not None:
                self._ratios.append(seconds / expected)
                ratios = sorted(self._ratios)
                self._margin = max(1.0, ratios[math.ceil(_COVERED * len(ratios)) - 1])
            seconds = min(seconds, expected * _MOST_TIMES)
        if seen is None:
            seen = self._classes[number] = _SizeClass()
            seen.add(rows, seconds)
        else:
            before = seen.seconds
            seen.add(rows, seconds)
            self._others_follow(number, seen.seconds / before)
        line: list[tuple[float, float]] = []
        for number in sorted(self._classes):
            its = self._classes[number]
            line.append((its.rows, max(its.seconds, line[-1][1]) if line else its.seconds))
        self._line = line

    def _others_follow(self, number: int, factor: float) -> None:
        """Rule 3."""
        for other in [other for other in self._classes if other != number]:
            its = self._classes[other]
            its.follow(factor)
            its.fresh *= _FRESH
            patience = self._patience.get(other, _FIRST_FORGOTTEN) if other > number else _FORGOTTEN
            if its.fresh < _FRESH**patience:
                del self._classes[other]
                self._patience[other] = min(2 * patience, _FORGOTTEN)

    def expected_s(self, rows: float) -> float:
        """What a batch of so many rows takes; 0 while nothing is known."""
        line = self._line
        if len(line) < 2:
            return 0.0 if not line else line[0][1] * max(1.0, rows / line[0][0] / 2)
        at = min(max(bisect_left(line, (rows, 0.0)), 1), len(line) - 1)
        (low, low_s), (high, high_s) = line[at - 1], line[at]
        slope = (high_s - low_s) / (high - low)
        return max(low_s + slope * (rows - low), 0.1 * low_s)

    def bound_s(self, rows: float) -> float:
        """What nearly all batches of so many rows do not exceed (rule 5)."""
        return self.expected_s(rows) * self._margin


class ArrivalRate:
    """Rows a second (rule 6).

    Args:
        memory_s: how far back it looks.
    """

    __slots__ = ("_at_s", "_memory_s", "_since_s", "_weight")

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._weight = 0.0
        self._at_s = self._since_s = -math.inf

    def arrived(self, rows: int, now: float) -> None:
        if self._since_s == -math.inf:
            self._since_s = self._at_s = now
        self._weight = self._weight * math.exp((self._at_s - now) / self._memory_s) + rows
        self._at_s = now

    def rows_per_s(self, now: float) -> float:
        """By what has come so far. A process that has just begun is not taken for a slow one."""
        if self._since_s == -math.inf:
            return 0.0
        weight = self._weight * math.exp((self._at_s - now) / self._memory_s)
        seen = -math.expm1((self._since_s - now) / self._memory_s)  # of the weights, the part that could have come
        return weight / (self._memory_s * max(seen, 0.05))
