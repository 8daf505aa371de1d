"""What an adaptive batcher learns: how long batches take, by their size, and how many requests come.

Rules:
 1. Sizes whose numbers of rows need equally many bits are one class. A class keeps its latest `_KEPT` batches; what it
    expects is their mean without the highest and the lowest eighth of them, once there are three.
 2. Between two classes times are interpolated, by the means of their rows. Below the smallest they go on along the line
    through the two that are nearest; beyond the largest along that one or the line through the smallest and the
    largest, whichever is flatter: sizes that no batch has had are to be tried. They never fall as sizes grow:
    neighbours that would are expected to take their mean, in which a class counts by how many batches are kept of it,
    and how long ago it was seen. (If a smaller one had the last word, one batch of it that hung would make all larger
    ones look slow, however often these are seen.) Of one class alone it is supposed that batches of up to twice its
    size take as long, so that they are tried, and larger ones as much longer as they are larger.
 3. What one class takes says something about all sizes: times drift by a common factor. A class that has not been seen
    for a while follows it, once. Each other class that was seen since has changed by a factor from then to now; it
    follows the geometric mean of these factors, in which a class counts the less the longer ago it was seen
    (`_FRESH`, by the batch). So if all have changed by one factor, it follows by that factor, in however many classes
    that was seen. It follows not at all if it was one of the latest `_BY_TURNS` batches itself, and then more and more
    (by `_FRESH`, too): classes that are seen by turns learn by themselves. What they have changed by until a new class
    comes, that one has changed by as well.
    A class that was not seen for `_FORGOTTEN` batches is forgotten, so that a size that was too slow once is tried
    again; one that is larger than what is executed sooner the first times (`_FIRST_FORGOTTEN` batches, then twice as
    many each time): a batch or two that were slow by chance would keep a good size from being tried.
 4. A batch that takes more than `_MOST_TIMES` as long as expected counts as one that takes so long. So one that hung is
    soon forgotten, and a lasting change is learnt in a few batches.
 5. What is expected is a mean. `bound_s` is higher by a margin: by the ratio of real and expected times that `_COVERED`
    of the latest `_RATIOS` batches of classes that were known did not exceed.
 6. If the latest `_RUN` batches of classes that were known all took longer than expected, or all took shorter, times
    have drifted by at least the ratio that is closest to 1. Whatever is known is multiplied by that ratio, and what is
    expected follows a drift within some batches; the means of rule 1 alone would lag behind it by half of theirs.
 7. Arrivals are counted in rows, each of which counts less as time goes by: by the factor e after `memory_s`.

Memory is bounded: `_CLASSES` classes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

_KEPT = 16
_FRESH = 0.9
_BY_TURNS = 4
_FORGOTTEN = 128
_FIRST_FORGOTTEN = 16
_MOST_TIMES = 3.0
_COVERED = 0.9
_RATIOS = 64
_RUN = 6
_CLASSES = 32


@dataclass(slots=True, eq=False)
class _SizeClass:
    """Rules 1 and 3.

    Attributes:
        kept: rows and seconds of its latest batches; the latter as they would be when it was last seen.
        seen_at: the number of the batch then.
        seconds: what is expected by now.
        before: by other class, the logarithm of what that took then.
        drift: the logarithm of the factor by which those that were seen since have changed.
        factor: what it follows of that.
    """

    kept: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    seen_at: int = 0
    rows: float = 0.0
    seconds: float = 0.0
    before: dict[int, float] = field(default_factory=dict)
    drift: float = 0.0
    factor: float = 1.0

    def add(self, rows: int, seconds: float) -> None:
        if self.factor != 1.0:
            self._scale_kept(self.factor)
        self.drift, self.factor = 0.0, 1.0
        self.kept.append((rows, seconds))
        times = sorted(its_s for _, its_s in self.kept)
        cut = max(1, len(times) // 8) if len(times) >= 3 else 0
        times = times[cut : len(times) - cut]
        self.seconds = sum(times) / len(times)
        self.rows = sum(its_rows for its_rows, _ in self.kept) / len(self.kept)

    def _scale_kept(self, factor: float) -> None:
        kept = [(rows, seconds * factor) for rows, seconds in self.kept]
        self.kept.clear()
        self.kept.extend(kept)

    def scale(self, factor: float) -> None:
        """Rule 6."""
        self._scale_kept(factor)
        self.seconds *= factor
        self.before = {other: then + math.log(factor) for other, then in self.before.items()}

    def follow(self, drift: float, part: float) -> None:
        """Rule 3. `part`: how much of the drift is followed."""
        factor = math.exp(drift * part)
        self.seconds *= factor / self.factor
        self.drift, self.factor = drift, factor


class ServiceTimes:
    """Learns how long a batch of a model takes, from the moment it is dispatched."""

    __slots__ = ("_classes", "_learnt", "_line", "_margin", "_patience", "_ratios")

    def __init__(self) -> None:
        self._classes: dict[int, _SizeClass] = {}  # the one that was seen last is the last one
        self._learnt = 0  # batches
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
                expected *= self._catch_up()
                ratios = sorted(self._ratios)
                self._margin = max(1.0, ratios[math.ceil(_COVERED * len(ratios)) - 1])
            seconds = min(seconds, expected * _MOST_TIMES)
        self._learnt += 1
        if seen is None:
            seen = _SizeClass()
            seen.add(rows, seconds)
            for its in self._classes.values():
                its.before[number] = math.log(seconds) - its.drift
        else:
            seen.add(rows, seconds)
            del self._classes[number]
        seen.seen_at = self._learnt
        self._forget(number)
        self._classes[number] = seen
        self._follow()
        self._line = self._ascending()

    def _catch_up(self) -> float:
        """Rule 6. The factor by which what is expected has changed."""
        ratios = self._ratios
        run = [ratios[-number] for number in range(1, min(_RUN, len(ratios)) + 1)]
        factor = max(1.0, min(run)) * min(1.0, max(run))  # one of them is 1
        if len(run) < _RUN or factor == 1:
            return 1.0
        for number in range(1, _RUN + 1):
            ratios[-number] /= factor
        for its in self._classes.values():
            its.scale(factor)
        self._line = [(rows, seconds * factor) for rows, seconds in self._line]
        return factor

    def _forget(self, seen: int) -> None:
        """Rule 3: those that were not seen for long. `seen`: which one just was."""
        for number, its in list(self._classes.items()):
            patience = self._patience.get(number, _FIRST_FORGOTTEN) if number > seen else _FORGOTTEN
            if self._learnt - its.seen_at > patience:
                del self._classes[number]
                self._patience[number] = min(2 * patience, _FORGOTTEN)

    def _fresh(self, its: _SizeClass) -> float:
        """1 for a class that has just been seen, towards 0 since."""
        return _FRESH ** (self._learnt - its.seen_at)

    def _follow(self) -> None:
        """Rule 3. Each class follows those that were seen after it, so the last one comes first."""
        later: list[tuple[int, float, float]] = []  # classes, how much each counts, and the logarithm of what it takes
        for number, its in reversed(self._classes.items()):
            fresh = self._fresh(its)
            if later:
                total = sum([counts * (now - its.before[other]) for other, counts, now in later])
                its.follow(total / sum([counts for _, counts, _ in later]), 1 - min(1.0, fresh / _FRESH**_BY_TURNS))
            later.append((number, fresh, math.log(its.seconds)))
        last = self._classes[later[0][0]]
        last.before = {number: now for number, _, now in later[1:]}

    def _ascending(self) -> list[tuple[float, float]]:
        """Rule 2: the means of the rows of the classes, and what they are expected to take, which never falls."""
        runs: list[tuple[float, float, list[float]]] = []  # what is known of classes that take as long; rows of each
        for number in sorted(self._classes):
            its = self._classes[number]
            known, seconds, rows = len(its.kept) * self._fresh(its), its.seconds, [its.rows]
            while runs and runs[-1][1] >= seconds:
                before, before_s, before_rows = runs.pop()
                seconds = (before * before_s + known * seconds) / (before + known)
                known, rows = before + known, before_rows + rows
            runs.append((known, seconds, rows))
        return [(each, seconds) for _, seconds, rows in runs for each in rows]

    def expected_s(self, rows: float) -> float:
        """What a batch of so many rows takes; 0 while nothing is known."""
        line = self._line
        if len(line) < 2:
            return 0.0 if not line else line[0][1] * max(1.0, rows / line[0][0] / 2)
        at = min(max(bisect_left(line, (rows, 0.0)), 1), len(line) - 1)
        (low, low_s), (high, high_s) = line[at - 1], line[at]
        slope = (high_s - low_s) / (high - low)
        if rows > high:
            least, least_s = line[0]
            return high_s + min(slope, (high_s - least_s) / (high - least)) * (rows - high)
        return max(low_s + slope * (rows - low), 0.1 * low_s)

    def bound_s(self, rows: float) -> float:
        """What nearly all batches of so many rows do not exceed (rule 5)."""
        return self.expected_s(rows) * self._margin


class ArrivalRate:
    """Rows a second (rule 7).

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
