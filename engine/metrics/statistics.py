"""Statistics of one model version: plain integers, written by the event loop only.

The statistics endpoint and the metrics both read these numbers, so they cannot disagree. Rules:
docs/reference/statistics.md; durations are kept in nanoseconds for the endpoint and in whole microseconds, cut off
request by request, for metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import FailureReason
from ..execution import Phase, SealReason
from .latencies import Histogram, RecentLatencies
from .responses import MAX_INDICES, Duration, MemoryUsage, ResponseStatistics, ResponseTimes


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one total batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


def _add_phases(statistics: BatchStatistics | ModelStatistics, marks: Sequence[int], times: int) -> None:
    """Add how long the phases of an execution took; `times` requests are charged with it."""
    start, infer, output, end = marks
    for phase, ns in (
        (statistics.compute_input, infer - start),
        (statistics.compute_infer, output - infer),
        (statistics.compute_output, end - output),
    ):
        phase.count += times
        phase.ns += ns * times


@dataclass(slots=True)
class ModelStatistics:
    """Everything counted for one model version since it was loaded.

    Attributes:
        pending: requests queued and not yet handed to an instance.
        last_inference_ms: wall clock at the end of the latest execution, failed ones included; 0 for never.
        batches: by total batch size.
        responses: by index, of decoupled models whose backend reports them.
        failures: by reason.
        sealed: executions by the reason for which their batch was closed.
        *_us: sums of per-request durations, each cut to whole microseconds.
        load_duration_s: how long loading took.
        recent: latencies of the last minute, but for what `devices` have executed; None where they are not kept.
        cached: responses are kept in a cache, if the server has one.
        first_responses: milliseconds from a request to its first response; None where they are not kept.
        devices: the part of it all that GPUs of KIND_GPU instances have executed, by device. A device stays when its
            last instance has gone: counters never fall.
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
    request_us: int = 0
    queue_us: int = 0
    compute_input_us: int = 0
    compute_infer_us: int = 0
    compute_output_us: int = 0
    cache_hit_us: int = 0
    cache_miss_us: int = 0
    cached: bool = False
    load_duration_s: float = 0.0
    recent: RecentLatencies | None = None
    first_responses: Histogram | None = None
    devices: dict[int, ModelStatistics] = field(default_factory=dict)

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
        self.last_inference_ms = wall_ms
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = BatchStatistics()
        _add_phases(batch, marks, 1)
        if gpu is not None:
            self.devices[gpu].record_execution(rows, marks, wall_ms, sealed)

    def record_successes(
        self, requests: Sequence[tuple[int, int, int]], marks: Sequence[int], released_ns: int, gpu: int | None = None
    ) -> None:
        """Requests of one execution succeeded. Each is charged the whole batch's compute times.

        Args:
            requests: (received_ns, enqueued_ns, rows) of each.
            marks: the execution's, by `Phase`.
            released_ns: when the answers went out.
        """
        start = marks[Phase.COMPUTE_START]
        request_ns = queue_ns = 0
        for received_ns, enqueued_ns, rows in requests:
            self.inference_count += rows
            request_ns += released_ns - received_ns
            queue_ns += start - enqueued_ns
            self.request_us += (released_ns - received_ns) // 1000
            self.queue_us += (start - enqueued_ns) // 1000
        times = len(requests)
        self.success.count += times
        self.success.ns += request_ns
        self.queue.count += times
        self.queue.ns += queue_ns
        _, infer, output, end = marks
        _add_phases(self, marks, times)
        self.compute_input_us += (infer - start) // 1000 * times
        self.compute_infer_us += (output - infer) // 1000 * times
        self.compute_output_us += (end - output) // 1000 * times
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
        hit_ns = released_ns - began_ns
        self.success.add(released_ns - received_ns)
        self.queue.add(began_ns - enqueued_ns)
        self.cache_hit.add(hit_ns)
        self.request_us += (released_ns - received_ns) // 1000
        self.queue_us += (began_ns - enqueued_ns) // 1000
        self.cache_hit_us += hit_ns // 1000
        if self.recent is not None:
            self.recent.record_cache_hit(began_ns - enqueued_ns, hit_ns, released_ns)

    def record_cache_miss(self, miss_ns: int, now_ns: int) -> None:
        """A response was put into the cache.

        Args:
            miss_ns: what that took, with the lookup before; it counts as part of the request.
        """
        self.cache_miss.add(miss_ns)
        self.cache_miss_us += miss_ns // 1000
        self.success.ns += miss_ns
        self.request_us += miss_ns // 1000
        if self.recent is not None:
            self.recent.cache_miss.add(miss_ns // 1000, now_ns)

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
        metric_tags: of the model's configuration.
        namespace: the model's repository, with ``--model-namespacing``; otherwise empty.
        memory_usage: what the model's backend reports.
    """

    name: str
    version: int
    statistics: ModelStatistics
    metric_tags: tuple[tuple[str, str], ...] = ()
    namespace: str = ""
    memory_usage: tuple[MemoryUsage, ...] = ()
