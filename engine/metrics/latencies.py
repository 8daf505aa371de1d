"""How latencies are distributed: quantiles of the last minute, and a histogram
(docs/reference/metrics.md#families-of-a-model, docs/reference/metrics.md#settings).

Their sums and counts are not here but in `ModelStatistics`, where the counters have them from too.

Rule 1. A duration of up to 8 binary digits of microseconds is counted as it is, a longer one by its first 8 digits. So
        a quantile is off by no more than 0.4 % of itself, and what is kept is bounded however long durations are.
Rule 2. The last minute is five slices of 12 s, the current one not over yet, and what happened before is forgotten one
        slice at a time: quantiles are those of the last 48 to 60 s.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from ..config.model import ModelConfig
from ..execution import Phase

logger = logging.getLogger("trireme.model")

SLICE_NS = 12_000_000_000
SLICES = 5
_DIGITS = 8

FIRST_RESPONSE_FAMILY = "nv_inference_first_response_histogram_ms"
FIRST_RESPONSE_BUCKETS_MS = (100.0, 500.0, 2000.0, 5000.0)


class RecentDurations:
    """Durations of the last minute, in whole microseconds. Times do not go back from one call to the next."""

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: deque[tuple[int, Counter[int]]] = deque(maxlen=SLICES)

    def add(self, duration_us: int, now_ns: int) -> None:
        """Count one; a negative one as 0."""
        number = now_ns // SLICE_NS
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, Counter()))
        duration_us = max(0, duration_us)
        dropped = max(0, duration_us.bit_length() - _DIGITS)
        self._slices[-1][1][duration_us >> dropped << dropped] += 1

    def quantiles(self, quantiles: Sequence[float], now_ns: int) -> list[float]:
        """The durations that these shares (0.5: half) of all do not exceed, in microseconds; NaN if there are none."""
        return common_quantiles([self], quantiles, now_ns)

    def count_into(self, counts: Counter[int], now_ns: int) -> None:
        """Add how often there was what, in microseconds."""
        oldest = now_ns // SLICE_NS - SLICES
        for number, slice_counts in self._slices:
            if number > oldest:
                counts.update(slice_counts)

    def __repr__(self) -> str:
        return f"<RecentDurations: {sum(counts.total() for _, counts in self._slices)} in {len(self._slices)} slices>"


def common_quantiles(parts: Iterable[RecentDurations], quantiles: Sequence[float], now_ns: int) -> list[float]:
    """Like `RecentDurations.quantiles`, for durations that are counted in several places."""
    counts: Counter[int] = Counter()
    for part in parts:
        part.count_into(counts, now_ns)
    total = counts.total()
    if not total:
        return [math.nan] * len(quantiles)
    found: dict[float, float] = {}
    wanted = sorted((min(max(1, math.ceil(quantile * total)), total), quantile) for quantile in set(quantiles))
    passed = 0
    position = 0
    for smallest in sorted(counts):
        passed += counts[smallest]
        while position < len(wanted) and wanted[position][0] <= passed:
            found[wanted[position][1]] = _middle(smallest)
            position += 1
    return [found[quantile] for quantile in quantiles]


def _middle(smallest_us: int) -> float:
    """Of the durations that are counted together, the first being `smallest_us`."""
    dropped = max(0, smallest_us.bit_length() - _DIGITS)
    return smallest_us + (1 << dropped) // 2 if dropped else smallest_us


class RecentLatencies:
    """Where the requests of the last minute spent their time.

    Attributes:
        request: from received to answered.
        queue: in the queue.
        compute_input, compute_infer, compute_output: of the batches that they were part of.
        cache_hit, cache_miss: with the response cache, where one answered or was given an answer to keep.
    """

    __slots__ = ("cache_hit", "cache_miss", "compute_infer", "compute_input", "compute_output", "queue", "request")

    def __init__(self) -> None:
        self.request = RecentDurations()
        self.queue = RecentDurations()
        self.compute_input = RecentDurations()
        self.compute_infer = RecentDurations()
        self.compute_output = RecentDurations()
        self.cache_hit = RecentDurations()
        self.cache_miss = RecentDurations()

    def record_successes(self, requests: Iterable[tuple[int, int, int]], marks: Sequence[int], now_ns: int) -> None:
        """See `ModelStatistics.record_successes`."""
        start, infer, output, end = marks
        for received_ns, enqueued_ns, _ in requests:
            self.request.add((now_ns - received_ns) // 1000, now_ns)
            self.queue.add((marks[Phase.COMPUTE_START] - enqueued_ns) // 1000, now_ns)
            self.compute_input.add((infer - start) // 1000, now_ns)
            self.compute_infer.add((output - infer) // 1000, now_ns)
            self.compute_output.add((end - output) // 1000, now_ns)

    def record_cache_hit(self, queue_ns: int, hit_ns: int, now_ns: int) -> None:
        """See `ModelStatistics.record_cache_hit`. The time of the whole request is not kept for models with a cache."""
        self.queue.add(queue_ns // 1000, now_ns)
        self.cache_hit.add(hit_ns // 1000, now_ns)


class Histogram:
    """How many values are at most as large as each of some bounds.

    Args:
        bounds: in increasing order.

    Attributes:
        total: the sum of all values.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.total: float = 0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[float, int]]:
        """Bounds, infinity the last, and the numbers of values up to each."""
        passed = 0
        buckets: list[tuple[float, int]] = []
        for bound, count in zip((*self.bounds, math.inf), self._counts, strict=True):
            passed += count
            buckets.append((bound, passed))
        return buckets

    def __repr__(self) -> str:
        return f"<Histogram: {sum(self._counts)} values, bounds {self.bounds}>"


def first_response_histogram(config: ModelConfig) -> Histogram | None:
    """The histogram of milliseconds until the first response; None for a model that has only one to give.

    Other families that the configuration names buckets for are warned about.
    """
    for family in config.histogram_buckets:
        if family != FIRST_RESPONSE_FAMILY:
            logger.warning(
                "Metric family '%s' in 'metric_identifier' is not a customizable metric in Triton core.", family
            )
    if not config.decoupled:
        return None
    return Histogram(config.histogram_buckets.get(FIRST_RESPONSE_FAMILY, FIRST_RESPONSE_BUCKETS_MS))
