"""The statistics as metric families: Triton's, then ours (docs/reference/metrics.md).

Printed by `page.write_text`. Nothing here runs on a request's way: families are made from the statistics when they are
scraped.

Labels (docs/reference/metrics.md#labels):

Rule 1. What instances of kind KIND_GPU have executed stands under the label ``gpu_uuid``, one set of labels a GPU.
        Everything else stands without it: what failed before it was executed, what the cache answered, and whatever
        belongs to the model as a whole. So the sets of a model add up to its statistics.
Rule 2. A GPU whose UUID is unknown has no labels of its own: what it has executed stands without the label, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType

from ..errors import FailureReason
from ..job import SealReason
from .family import MetricFamily
from .page import Scrape, number_text
from .statistics import (
    FIRST_RESPONSE_FAMILY,
    Histogram,
    ModelStatistics,
    ModelStatisticsEntry,
    RecentLatencies,
    common_quantiles,
)

NO_GPUS: Mapping[int, str] = MappingProxyType({})

_FAILURE = "nv_inference_request_failure"
_COUNTERS = (
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes", "success.count"),
    (_FAILURE, "Number of failed inference requests, all batch sizes", "fail.count"),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)", "inference_count"),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        "execution_count",
    ),
)
"""Of a model version: name, help, and the attribute of its statistics."""

_REQUEST = "nv_inference_request_summary_us"
"""Not shown for models with a response cache (docs/reference/metrics.md#families-of-a-model)."""

_KINDS = (
    ("request", "success", "inference request", "includes"),
    ("queue", "queue", "inference queuing", "includes"),
    ("compute_input", "compute_input", "compute input", "does not include"),
    ("compute_infer", "compute_infer", "compute inference", "does not include"),
    ("compute_output", "compute_output", "inference compute output", "does not include"),
)
"""Durations of a model version: the part of the names of counter and summary, the attribute of the statistics, what it
is, and whether it counts requests that the cache has answered."""

_DURATIONS = tuple(
    (
        f"nv_inference_{name}_duration_us",
        f"Cumulative {what} duration in microseconds ({counts} cached requests)",
        f"{kind}.us",
    )
    for name, kind, what, counts in _KINDS
)
"""As `_COUNTERS`, left out where latencies are not counted."""

_CACHE_COUNTERS = (
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", "cache_hit.count"),
    ("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds", "cache_hit.us"),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", "cache_miss.count"),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        "cache_miss.us",
    ),
)

_SUMMARIES = tuple(
    (
        f"nv_inference_{name}_summary_us",
        f"{begins} {what} duration in microseconds ({counts} cached requests)",
        kind,
    )
    for name, kind, what, counts in _KINDS
    for begins in ["Summary of" if counts == "includes" else "Cumulative"]
)
"""Name, help, and the attribute of the statistics. Count and sum are the counters', so the two agree."""

_CACHE_SUMMARIES = (
    (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        "cache_hit",
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        "cache_miss",
    ),
)

_GPU_FAMILIES = (
    ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "utilization"),
    ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "memory_total_bytes"),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "memory_used_bytes"),
    ("nv_gpu_power_usage", "GPU power usage in watts", "power_usage_watts"),
    ("nv_gpu_power_limit", "GPU power management limit in watts", "power_limit_watts"),
    ("nv_energy_consumption", "GPU energy consumption in joules since the Triton Server started", "energy_joules"),
)
"""Name, help, and the attribute of `GpuReading`."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What one GPU said last. None for what it cannot say, or did not: then the family has no such series.

    Attributes:
        uuid: ``GPU-…``, as NVML names it.
        utilization: from 0.0 to 1.0.
        energy_joules: what it has used since the server started.
    """

    uuid: str
    utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_usage_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True)
class CpuReading:
    """`utilization` is from 0.0 to 1.0, since the reading before. All zero until the first reading."""

    utilization: float = 0.0
    total_bytes: int = 0
    used_bytes: int = 0


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
class LabelSet:
    """One set of labels, and what is counted under it.

    Attributes:
        counted: this, but for
        elsewhere: the parts of it that stand under labels of their own.
        recent: latencies of the last minute, where they are kept.
    """

    labels: dict[str, str]
    counted: ModelStatistics
    elsewhere: tuple[ModelStatistics, ...]
    recent: tuple[RecentLatencies, ...]

    def value(self, number: Callable[[ModelStatistics], int]) -> int:
        """One of the numbers that add up."""
        return number(self.counted) - sum(number(part) for part in self.elsewhere)


def label_sets(entry: ModelStatisticsEntry, gpu_uuids: Mapping[int, str] = NO_GPUS) -> list[LabelSet]:
    """All sets of a model version, the one without a GPU first.

    Args:
        gpu_uuids: by the devices' numbers in instance groups, as far as they are known.
    """
    labels = model_labels(entry)
    counted = entry.statistics
    known = {gpu: part for gpu, part in sorted(counted.devices.items()) if gpu in gpu_uuids}
    others = [counted, *(part for gpu, part in counted.devices.items() if gpu not in known)]
    sets = [LabelSet(labels, counted, tuple(known.values()), _recent(*others))]
    for gpu, part in known.items():
        sets.append(LabelSet({**labels, "gpu_uuid": gpu_uuids[gpu]}, part, (), _recent(part)))
    return sets


def model_labels(entry: ModelStatisticsEntry) -> dict[str, str]:
    """Name, version, the namespace where there is one, and the configuration's tags, which start with an underscore.

    A tag may be called anything, a label may not: characters that labels cannot have become underscores, and a label
    begins with one underscore only, for those with two are Prometheus's own.
    """
    tags = {"_" + re.sub(r"[^a-zA-Z0-9_]", "_", key).lstrip("_"): value for key, value in entry.metric_tags}
    namespace = {"namespace": entry.namespace} if entry.namespace else {}
    return {**tags, **namespace, "model": entry.name, "version": str(entry.version)}


def model_families(
    entries: Sequence[ModelStatisticsEntry], *, counter_latencies: bool = True, gpu_uuids: Mapping[int, str] = NO_GPUS
) -> Iterator[MetricFamily]:
    """Triton's families of each model version, in Triton's order.

    Args:
        counter_latencies: False leaves out the durations, and shows every other counter as 0
            (docs/reference/metrics.md#settings).
    """
    labelled = [labels for entry in entries for labels in label_sets(entry, gpu_uuids)]
    for name, description, attribute in (*_COUNTERS, *(_DURATIONS if counter_latencies else ())):
        family = MetricFamily(name, description, "counter")
        for label_set in labelled:
            for labels, number in _numbers(name, attribute, label_set.labels):
                family.add(labels, label_set.value(number) if counter_latencies else 0)
        yield family
    pending = MetricFamily(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        "gauge",
    )
    load_duration = MetricFamily("nv_model_load_duration_secs", "Model load time in seconds", "gauge")
    for entry in entries:
        labels = model_labels(entry)
        pending.add(labels, entry.statistics.pending)
        load_duration.add(labels, entry.statistics.load_duration_s)
    yield pending
    yield load_duration


def pinned_memory_families(host: HostReadings) -> Iterator[MetricFamily]:
    for name, description, value in (
        ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", host.pinned_pool_bytes),
        ("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", host.pinned_used_bytes),
    ):
        yield MetricFamily(name, description, "gauge", value)


def cpu_families(cpu: CpuReading | None) -> Iterator[MetricFamily]:
    """The machine's CPUs and memory; none for None."""
    if cpu is not None:
        yield MetricFamily("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", "gauge", cpu.utilization)
        yield MetricFamily("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", "gauge", cpu.total_bytes)
        yield MetricFamily("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", "gauge", cpu.used_bytes)


def gpu_families(gpus: Sequence[GpuReading]) -> Iterator[MetricFamily]:
    """The families of all GPUs; without series, and so not printed, where there are none."""
    for name, description, attribute in _GPU_FAMILIES:
        family = MetricFamily(name, description, "counter" if attribute == "energy_joules" else "gauge")
        for gpu in gpus:
            value = getattr(gpu, attribute)
            if value is not None:
                family.add({"gpu_uuid": gpu.uuid}, value)
        yield family


def sealed_families(entries: Iterable[ModelStatisticsEntry]) -> Iterator[MetricFamily]:
    """Trireme's own answer to "why did it not batch?": executions by the reason that closed their batch."""
    family = MetricFamily(
        "trireme_batch_sealed_count",
        "Number of model executions, by the reason for which their batch was closed",
        "counter",
    )
    alone = MetricFamily(
        "trireme_batch_single_row_count",
        "Number of those executions that had a single row, by the same reason",
        "counter",
    )
    for entry in entries:
        labels = model_labels(entry)
        for reason in SealReason:
            family.add({**labels, "reason": reason.name.lower()}, entry.statistics.sealed[reason])
            if entry.statistics.alone[reason]:
                alone.add({**labels, "reason": reason.name.lower()}, entry.statistics.alone[reason])
    yield family
    yield alone


def latency_families(
    entries: Sequence[ModelStatisticsEntry],
    quantiles: Sequence[float],
    now_ns: int,
    gpu_uuids: Mapping[int, str] = NO_GPUS,
) -> Iterator[MetricFamily]:
    """The distributions of those model versions that keep any: the histogram, then the summaries
    (docs/reference/metrics.md#families-of-a-model). For `gpu_uuids` see `label_sets`."""
    histograms = MetricFamily(
        FIRST_RESPONSE_FAMILY, "Duration from request to first response in milliseconds", "histogram"
    )
    for entry in entries:
        if entry.statistics.first_responses is not None:
            add_histogram(histograms, model_labels(entry), entry.statistics.first_responses)
    yield histograms
    for name, description, kind in _SUMMARIES:
        labelled = [
            label_set
            for entry in entries
            if entry.statistics.recent is not None and not (entry.statistics.cached and name == _REQUEST)
            for label_set in label_sets(entry, gpu_uuids)
        ]
        yield _summary(name, description, kind, labelled, quantiles, now_ns)


def cache_counter_families(scrape: Scrape) -> Iterator[MetricFamily]:
    """What the response cache did for the models whose configuration asks for it, whether or not the server has one
    (docs/reference/metrics.md#families-of-a-model)."""
    if scrape.counter_latencies:
        for name, description, attribute in _CACHE_COUNTERS:
            family = MetricFamily(name, description, "counter")
            for entry in scrape.entries:
                if entry.statistics.cached:
                    family.add(model_labels(entry), attrgetter(attribute)(entry.statistics))
            yield family


def cache_summary_families(scrape: Scrape) -> Iterator[MetricFamily]:
    """Summaries of the same models, where distributions are kept."""
    labelled = [
        LabelSet(model_labels(entry), entry.statistics, (), (entry.statistics.recent,))
        for entry in scrape.entries
        if entry.statistics.cached and entry.statistics.recent is not None
    ]
    for name, description, kind in _CACHE_SUMMARIES:
        yield _summary(name, description, kind, labelled, scrape.quantiles, scrape.now_ns)


def add_histogram(family: MetricFamily, labels: Mapping[str, str], histogram: Histogram) -> None:
    """One series of a histogram: its count, its sum and its buckets."""
    buckets = histogram.buckets()
    family.add(labels, buckets[-1][1], "_count")
    family.add(labels, histogram.total, "_sum")
    for bound, number in buckets:
        family.add({**labels, "le": number_text(bound)}, number, "_bucket")


def _summary(
    name: str, description: str, kind: str, labelled: Iterable[LabelSet], quantiles: Sequence[float], now_ns: int
) -> MetricFamily:
    family = MetricFamily(name, description, "summary")
    for label_set in labelled:
        labels = label_set.labels
        family.add(labels, label_set.value(attrgetter(f"{kind}.count")), "_count")
        family.add(labels, label_set.value(attrgetter(f"{kind}.us")), "_sum")
        values = common_quantiles([recent[kind] for recent in label_set.recent], quantiles, now_ns)
        for quantile, value in zip(quantiles, values, strict=True):
            family.add({**labels, "quantile": number_text(quantile)}, value)
    return family


def _numbers(
    name: str, attribute: str, labels: dict[str, str]
) -> Iterator[tuple[dict[str, str], Callable[[ModelStatistics], int]]]:
    """The series of a counter under some labels, and what each shows: failures are told apart by their reasons."""
    if name != _FAILURE:
        yield labels, attrgetter(attribute)
        return
    for reason in FailureReason:
        yield {**labels, "reason": reason.value}, lambda statistics, reason=reason: statistics.failures[reason]


def _recent(*parts: ModelStatistics) -> tuple[RecentLatencies, ...]:
    return tuple(part.recent for part in parts if part.recent is not None)
