"""Statistics of one model version: plain integers, written by the event loop only.

The statistics endpoint and the metrics both read these numbers, so they cannot disagree. Rules:
docs/reference/statistics.md; durations are kept in nanoseconds for the endpoint and in whole microseconds, cut off
request by request, for metrics.

Of decoupled models the responses are counted, too (``response_stats``). Only a backend knows when work on one began, so
these exist only where it reports them (`Job.report_response`). They are kept by index: the first responses of all
requests together, then the second ones.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from ..config.model import ModelConfig
from ..errors import FailureReason, RefusalReason
from ..generation.encodings import Encodings
from ..generation.iterations import IterationCounts, Iterations
from ..job import ResponseOutcome, ResponseTimes, SealReason
from .batch_tap import BatchTap

MAX_INDICES = 4_096
"""Responses of a request that are told apart; what is reported for later ones is dropped."""


@dataclass(slots=True)
class Duration:
    """How often, and for how long altogether. `us` is the sum of the durations, each cut to whole microseconds."""

    count: int = 0
    ns: int = 0
    us: int = field(default=0, compare=False)

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns
        self.us += ns // 1000


@dataclass(slots=True)
class ResponseStatistics:
    """The responses of one index. An empty one counts as computed, a cancelled one does not."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)

    def record(self, times: ResponseTimes) -> None:
        """Count a response. Times that go backwards count as none."""
        total_ns = infer_ns = max(0, times.end_ns - times.start_ns)
        getattr(self, times.outcome.value).add(total_ns)
        if times.outcome is ResponseOutcome.CANCEL:
            return
        if times.outcome is not ResponseOutcome.EMPTY:
            infer_ns = min(total_ns, max(0, times.output_start_ns - times.start_ns))
            self.compute_output.add(total_ns - infer_ns)
        self.compute_infer.add(infer_ns)


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory that a backend reports for a model version.

    Attributes:
        type: ``CPU``, ``CPU_PINNED`` or ``GPU``.
    """

    type: str
    id: int
    byte_size: int


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size, and how long their phases took altogether."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    @property
    def compute_input(self) -> Duration:
        return Duration(self.count, self.input_ns)

    @property
    def compute_infer(self) -> Duration:
        return Duration(self.count, self.infer_ns)

    @property
    def compute_output(self) -> Duration:
        return Duration(self.count, self.output_ns)


class Learnt(Protocol):
    """What the batcher of a model with a latency objective has learnt and chosen by now.

    Attributes:
        target: rows that batches are to hold.
        delay_s: how long one may wait to grow.
    """

    objective_s: float
    target: int
    delay_s: float

    def expected(self) -> Sequence[tuple[int, float]]:
        """Some sizes in rows, and what batches of them are expected to take, in seconds; none before the first."""
        ...


@dataclass(slots=True)
class ModelStatistics:
    """Everything counted for one model version since it was loaded.

    Attributes:
        pending: requests queued and not yet handed to an instance.
        last_inference_ms: wall clock at the end of the latest execution, failed ones included; 0 for never.
        batches: by total batch size.
        responses: by index, of decoupled models whose backend reports them.
        recent: latencies of the last minute, but for what `devices` have executed; None where they are not kept.
        cached: responses are kept in a cache, if the server has one.
        first_responses: milliseconds from a request to its first response; None where they are not kept.
        refused: requests that never got as far as an execution (`refusals`).
        devices: the part of it all that GPUs of KIND_GPU instances have executed, by device. A device stays when its
            last instance has gone: counters never fall.
        alone: of `sealed`, the executions of a single row.
        learnt: of a model with a latency objective; None for any other.
        generated: of a model that generates text; None for any other.
        encoded: of an encoder; None for any other.
        tap: shows single batches to who watches.
    """

    pending: int = 0
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    responses: dict[int, ResponseStatistics] = field(default_factory=dict)
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    sealed: dict[SealReason, int] = field(default_factory=lambda: dict.fromkeys(SealReason, 0))
    alone: dict[SealReason, int] = field(default_factory=lambda: dict.fromkeys(SealReason, 0))
    refused: dict[RefusalReason, int] = field(default_factory=dict)
    cached: bool = False
    load_duration_s: float = 0.0
    recent: RecentLatencies | None = None
    first_responses: Histogram | None = None
    devices: dict[int, ModelStatistics] = field(default_factory=dict)
    learnt: Learnt | None = field(default=None, compare=False, repr=False)
    generated: GenerationStatistics | None = field(default=None, compare=False, repr=False)
    encoded: EncodingStatistics | None = field(default=None, compare=False, repr=False)
    tap: BatchTap = field(default_factory=BatchTap, compare=False, repr=False)

    def add_device(self, gpu: int) -> None:
        """An instance is about to execute on this GPU. From now on, what is recorded may name it."""
        if gpu not in self.devices:
            self.devices[gpu] = ModelStatistics(recent=None if self.recent is None else RecentLatencies())

    def record_execution(
        self, rows: int, marks: Sequence[int], wall_ms: int, sealed: SealReason, gpu: int | None = None
    ) -> None:
        """One backend execution of `rows` rows, in a batch closed because of `sealed`, is over, well or badly.

        Args:
            gpu: where it was executed, if by a GPU instance; here and below.
        """
        self.execution_count += 1
        self.sealed[sealed] += 1
        if rows == 1:
            self.alone[sealed] += 1
        self.last_inference_ms = wall_ms
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = BatchStatistics()
        start, infer, output, end = marks
        batch.count += 1
        batch.input_ns += infer - start
        batch.infer_ns += output - infer
        batch.output_ns += end - output
        if gpu is not None:
            self.devices[gpu].record_execution(rows, marks, wall_ms, sealed)

    def record_successes(
        self, requests: Sequence[tuple[int, int, int]], marks: Sequence[int], released_ns: int, gpu: int | None = None
    ) -> None:
        """Requests of one execution succeeded. Each is charged the whole batch's compute times.

        Args:
            requests: (received_ns, enqueued_ns, rows) of each.
            released_ns: when the answers went out.
        """
        start, infer, output, end = marks
        success, queue, times = self.success, self.queue, len(requests)
        all_rows = total_ns = total_us = queue_ns = queue_us = 0
        for received_ns, enqueued_ns, rows in requests:
            all_rows += rows
            ns = released_ns - received_ns
            total_ns += ns
            total_us += ns // 1000
            ns = start - enqueued_ns
            queue_ns += ns
            queue_us += ns // 1000
        self.inference_count += all_rows
        success.count += times
        success.ns += total_ns
        success.us += total_us
        queue.count += times
        queue.ns += queue_ns
        queue.us += queue_us
        phase, ns = self.compute_input, infer - start  # written out: calls and a loop would double what this takes
        phase.count += times
        phase.ns += ns * times
        phase.us += ns // 1000 * times
        phase, ns = self.compute_infer, output - infer
        phase.count += times
        phase.ns += ns * times
        phase.us += ns // 1000 * times
        phase, ns = self.compute_output, end - output
        phase.count += times
        phase.ns += ns * times
        phase.us += ns // 1000 * times
        if gpu is not None:
            self.devices[gpu].record_successes(requests, marks, released_ns)
        elif self.recent is not None:
            self.recent.record_successes(requests, marks, released_ns)

    def record_cache_hit(self, received_ns: int, enqueued_ns: int, began_ns: int, released_ns: int) -> None:
        """A request was answered from the cache.

        Args:
            began_ns: when the cache was asked.
            released_ns: when it had answered, and the request with it.
        """
        queue_ns, hit_ns = began_ns - enqueued_ns, released_ns - began_ns
        self.success.add(released_ns - received_ns)
        self.queue.add(queue_ns)
        self.cache_hit.add(hit_ns)
        if self.recent is not None:  # the time of the whole request is not kept for models with a cache
            self.recent.record(released_ns, queue=queue_ns, cache_hit=hit_ns)

    def record_cache_miss(self, miss_ns: int, now_ns: int) -> None:
        """A response was put into the cache.

        Args:
            miss_ns: what that took, with the lookup before; it counts as part of the request.
        """
        self.cache_miss.add(miss_ns)
        self.success.ns += miss_ns
        self.success.us += miss_ns // 1000
        if self.recent is not None:
            self.recent.record(now_ns, cache_miss=miss_ns)

    def record_first_response(self, received_ns: int, sent_ns: int) -> None:
        """The first response to a request, an error perhaps, went out."""
        if self.first_responses is not None:
            self.first_responses.add((sent_ns - received_ns) // 1_000_000)

    def record_responses(self, reported: Iterable[ResponseTimes]) -> None:
        """A backend has reported responses of a decoupled model."""
        for times in reported:
            if 0 <= times.index < MAX_INDICES:
                self.responses.setdefault(times.index, ResponseStatistics()).record(times)

    def record_failure(self, received_ns: int, released_ns: int, reason: FailureReason, gpu: int | None = None) -> None:
        """An accepted request failed; with `gpu`, in an execution there."""
        self.fail.add(released_ns - received_ns)
        self.failures[reason] += 1
        if gpu is not None:
            self.devices[gpu].record_failure(received_ns, released_ns, reason)


@dataclass(frozen=True, slots=True)
class ModelStatisticsEntry:
    """Statistics of one version, with the names that reports and metric labels need.

    Attributes:
        namespace: the model's repository, with ``--model-namespacing``; otherwise empty.
    """

    name: str
    version: int
    statistics: ModelStatistics
    metric_tags: tuple[tuple[str, str], ...] = ()
    namespace: str = ""
    memory_usage: tuple[MemoryUsage, ...] = ()


# How latencies are distributed: quantiles of the last minute, and a histogram
# (docs/reference/metrics.md#families-of-a-model, docs/reference/metrics.md#settings).
#
# Their sums and counts are not here but in `ModelStatistics`, where the counters have them from too.
#
# Rule 1. A duration of up to 8 binary digits of microseconds is counted as it is, a longer one by its first 8 digits.
#         So a quantile is off by no more than 0.4 % of itself, and what is kept is bounded however long durations are.
# Rule 2. The last minute is five slices of 12 s, the current one not over yet, and what happened before is forgotten
#         one slice at a time: quantiles are those of the last 48 to 60 s.


logger = logging.getLogger("trireme.model")

SLICE_NS = 12_000_000_000
SLICES = 5
_DIGITS = 8

FIRST_RESPONSE_FAMILY = "nv_inference_first_response_histogram_ms"
FIRST_RESPONSE_BUCKETS_MS = (100.0, 500.0, 2000.0, 5000.0)


class RecentDurations:
    """Durations of the last minute, in whole microseconds. Times do not go back from one call to the next."""

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

    def count_into(self, counts: Counter[int], now_ns: int) -> None:
        """Add how often there was what, in microseconds."""
        oldest = now_ns // SLICE_NS - SLICES
        for number, slice_counts in self._slices:
            if number > oldest:
                counts.update(slice_counts)


def common_quantiles(parts: Iterable[RecentDurations], quantiles: Sequence[float], now_ns: int) -> list[float]:
    """The durations that these shares (0.5: half) of all do not exceed, in microseconds; NaN if there are none.

    Args:
        parts: the places where they are counted.
    """
    counts: Counter[int] = Counter()
    for part in parts:
        part.count_into(counts, now_ns)
    total = counts.total()
    if not total:
        return [math.nan] * len(quantiles)
    durations = sorted(counts)
    up_to = list(accumulate(counts[duration] for duration in durations))
    ranks = (min(max(1, math.ceil(quantile * total)), total) for quantile in quantiles)
    return [_middle(durations[bisect_left(up_to, rank)]) for rank in ranks]


def _middle(smallest_us: int) -> float:
    """Of the durations that are counted together, the first being `smallest_us`."""
    dropped = max(0, smallest_us.bit_length() - _DIGITS)
    return smallest_us + (1 << dropped) // 2 if dropped else smallest_us


class RecentLatencies(defaultdict[str, RecentDurations]):
    """Where the requests of the last minute spent their time, by the name of the duration in `ModelStatistics`."""

    def __init__(self) -> None:
        super().__init__(RecentDurations)

    def record(self, now_ns: int, **durations_ns: int) -> None:
        for name, ns in durations_ns.items():
            self[name].add(ns // 1000, now_ns)

    def record_successes(self, requests: Iterable[tuple[int, int, int]], marks: Sequence[int], now_ns: int) -> None:
        """See `ModelStatistics.record_successes`."""
        start, infer, output, end = marks
        for received_ns, enqueued_ns, _ in requests:
            self.record(now_ns, success=now_ns - received_ns, queue=start - enqueued_ns)
            self.record(now_ns, compute_input=infer - start, compute_infer=output - infer, compute_output=end - output)


class Histogram:
    """How many values are at most as large as each of some bounds.

    Args:
        bounds: in increasing order.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.total: float = 0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[float, int]]:
        """Bounds, infinity the last, and the numbers of values up to each."""
        return list(zip((*self.bounds, math.inf), accumulate(self._counts), strict=True))


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


FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STEP_TOKENS_BUCKETS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BETWEEN_TOKENS_BUCKETS_S = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)


@dataclass(slots=True, eq=False)
class GenerationStatistics:
    """What was counted for one version of a model that generates text, since it was loaded.

    Attributes:
        first_token: seconds from a request to its first token.
        between_tokens: seconds from a token of a text to the next one.
        instances: those that there are, by name.
    """

    counts: IterationCounts = field(default_factory=IterationCounts)
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BUCKETS_S))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS_BUCKETS_S))
    instances: dict[str, Iterations] = field(default_factory=dict)

    @property
    def texts(self) -> tuple[int, int]:
        """Those that are in the steps, and those that wait to be."""
        instances = list(self.instances.values())
        return sum(each.running for each in instances), sum(each.waiting for each in instances)

    @property
    def blocks(self) -> tuple[int, int]:
        """Of the memory of keys and values: those in use, and all."""
        memories = [each.memory for each in list(self.instances.values())]
        return sum(each.count - each.free for each in memories), sum(each.count for each in memories)


@dataclass(slots=True, eq=False)
class EncodingStatistics:
    """What was counted for one version of an encoder, since it was loaded.

    Attributes:
        step_tokens: tokens of each step.
        texts: that were in steps.
        wait: seconds from a request to the first step that has a text of it.
        instances: those that there are, by name.
    """

    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS_BUCKETS))
    texts: int = 0
    wait: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BUCKETS_S))
    instances: dict[str, Encodings] = field(default_factory=dict)

    @property
    def now(self) -> tuple[int, int]:
        """Texts that are in the steps, and those that wait to be."""
        instances = list(self.instances.values())
        return sum(each.running for each in instances), sum(each.pending for each in instances)
