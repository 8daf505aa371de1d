"""The statistics as metric families: Triton's, then ours (docs/reference/metrics.md).

Held as prometheus-client's families, so that any registry can collect them; printed by `metrics_text`. Nothing here
runs on a request's way: families are made from the statistics when they are scraped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from .errors import FailureReason
from .execution import SealReason
from .metrics_gpu import GpuReading
from .metrics_labels import NO_GPUS, label_sets, model_labels
from .statistics import ModelStatistics, ModelStatisticsEntry


@dataclass(frozen=True, slots=True)
class HostReadings:
    """What is known about the machine.

    Attributes:
        pinned_pool_bytes, pinned_used_bytes: the pool of pinned memory.
        cpu: None where CPU metrics are switched off.
        gpus: every GPU; none where GPU metrics are switched off, too.
        gpu_uuids: by the devices' numbers in instance groups, as far as they are known.
    """

    pinned_pool_bytes: int = 0
    pinned_used_bytes: int = 0
    cpu: CpuReading | None = None
    gpus: tuple[GpuReading, ...] = ()
    gpu_uuids: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CpuReading:
    """`utilization` is from 0.0 to 1.0, since the reading before. All zero until the first reading."""

    utilization: float = 0.0
    total_bytes: int = 0
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Counter:
    """One counter of a model version; `latency` ones are left out where latencies are not counted."""

    name: str
    help: str
    value: Callable[[ModelStatistics], int]
    latency: bool = False


_FAILURE = "nv_inference_request_failure"

_COUNTERS = (
    _Counter(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda statistics: statistics.success.count,
    ),
    _Counter(
        _FAILURE,
        "Number of failed inference requests, all batch sizes",
        lambda statistics: statistics.fail.count,
    ),
    _Counter(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda statistics: statistics.inference_count,
    ),
    _Counter(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda statistics: statistics.execution_count,
    ),
    _Counter(
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda statistics: statistics.request_us,
        latency=True,
    ),
    _Counter(
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda statistics: statistics.queue_us,
        latency=True,
    ),
    _Counter(
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_input_us,
        latency=True,
    ),
    _Counter(
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_infer_us,
        latency=True,
    ),
    _Counter(
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_output_us,
        latency=True,
    ),
)


def model_families(
    entries: Sequence[ModelStatisticsEntry], *, counter_latencies: bool = True, gpu_uuids: Mapping[int, str] = NO_GPUS
) -> Iterator[Metric]:
    """Triton's families of each model version, in Triton's order.

    Args:
        counter_latencies: False leaves out the durations, and shows every other counter as 0
            (docs/reference/metrics.md#settings).
        gpu_uuids: see `label_sets`.
    """
    labelled = [labels for entry in entries for labels in label_sets(entry, gpu_uuids)]
    for counter in _COUNTERS:
        if counter.latency and not counter_latencies:
            continue
        family = CounterMetricFamily(counter.name, counter.help)
        for label_set in labelled:
            for labels, number in _numbers(counter, label_set.labels):
                _add(family, labels, label_set.value(number) if counter_latencies else 0)
        yield family
    pending = GaugeMetricFamily(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
    )
    load_duration = GaugeMetricFamily("nv_model_load_duration_secs", "Model load time in seconds")
    for entry in entries:
        labels = model_labels(entry)
        _add(pending, labels, entry.statistics.pending)
        _add(load_duration, labels, entry.statistics.load_duration_s)
    yield pending
    yield load_duration


def pinned_memory_families(host: HostReadings) -> Iterator[Metric]:
    """The pool of pinned memory."""
    yield _single(
        "nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", host.pinned_pool_bytes
    )
    yield _single(
        "nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", host.pinned_used_bytes
    )


def cpu_families(cpu: CpuReading | None) -> Iterator[Metric]:
    """The machine's CPUs and memory; none for None."""
    if cpu is not None:
        yield _single("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", cpu.utilization)
        yield _single("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", cpu.total_bytes)
        yield _single("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", cpu.used_bytes)


def sealed_families(entries: Iterable[ModelStatisticsEntry]) -> Iterator[Metric]:
    """Trireme's own answer to "why did it not batch?": executions by the reason that closed their batch."""
    family = CounterMetricFamily(
        "trireme_batch_sealed_count", "Number of model executions, by the reason for which their batch was closed"
    )
    for entry in entries:
        labels = model_labels(entry)
        for reason in SealReason:
            _add(family, {**labels, "reason": reason.name.lower()}, entry.statistics.sealed[reason])
    yield family


def _numbers(
    counter: _Counter, labels: dict[str, str]
) -> Iterator[tuple[dict[str, str], Callable[[ModelStatistics], int]]]:
    """The series of a counter under some labels, and what each shows: failures are told apart by their reasons."""
    if counter.name != _FAILURE:
        yield labels, counter.value
        return
    for reason in FailureReason:
        yield {**labels, "reason": reason.value}, partial(_failures, reason)


def _failures(reason: FailureReason, statistics: ModelStatistics) -> int:
    return statistics.failures[reason]


def _add(family: CounterMetricFamily | GaugeMetricFamily, labels: dict[str, str], value: float) -> None:
    """Like `family.add_metric`, for series of one family whose label names differ."""
    name = f"{family.name}_total" if isinstance(family, CounterMetricFamily) else family.name
    family.add_sample(name, labels, value)


def _single(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(name, description, value=value)
