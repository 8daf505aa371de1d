"""Distributions of latencies as metric families: the histogram, then the summaries
(docs/reference/metrics.md#families-of-a-model)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import HistogramMetricFamily, Metric, SummaryMetricFamily

from .latencies import FIRST_RESPONSE_FAMILY, Histogram, RecentDurations, RecentLatencies, common_quantiles
from .metrics_labels import NO_GPUS, label_sets, model_labels
from .metrics_text import number_text
from .statistics import ModelStatistics, ModelStatisticsEntry

DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class _Summary:
    """One summary of a model version; `count` and `total_us` are the counters', so the two agree."""

    name: str
    help: str
    durations: Callable[[RecentLatencies], RecentDurations]
    count: Callable[[ModelStatistics], int]
    total_us: Callable[[ModelStatistics], int]


_REQUEST = "nv_inference_request_summary_us"
"""Not shown for models with a response cache (docs/reference/metrics.md#families-of-a-model)."""

_SUMMARIES = (
    _Summary(
        _REQUEST,
        "Summary of inference request duration in microseconds (includes cached requests)",
        lambda recent: recent.request,
        lambda statistics: statistics.success.count,
        lambda statistics: statistics.request_us,
    ),
    _Summary(
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        lambda recent: recent.queue,
        lambda statistics: statistics.queue.count,
        lambda statistics: statistics.queue_us,
    ),
    _Summary(
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda recent: recent.compute_input,
        lambda statistics: statistics.compute_input.count,
        lambda statistics: statistics.compute_input_us,
    ),
    _Summary(
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda recent: recent.compute_infer,
        lambda statistics: statistics.compute_infer.count,
        lambda statistics: statistics.compute_infer_us,
    ),
    _Summary(
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda recent: recent.compute_output,
        lambda statistics: statistics.compute_output.count,
        lambda statistics: statistics.compute_output_us,
    ),
)


def latency_families(
    entries: Sequence[ModelStatisticsEntry],
    quantiles: Sequence[float],
    now_ns: int,
    gpu_uuids: Mapping[int, str] = NO_GPUS,
) -> Iterator[Metric]:
    """The distributions of those model versions that keep any; for `gpu_uuids` see `label_sets`."""
    yield _first_response_family(entries)
    for summary in _SUMMARIES:
        labelled = [
            label_set
            for entry in entries
            if entry.statistics.recent is not None and not (entry.statistics.cached and summary.name == _REQUEST)
            for label_set in label_sets(entry, gpu_uuids)
        ]
        family = SummaryMetricFamily(summary.name, summary.help)
        for label_set in labelled:
            labels = label_set.labels
            family.add_sample(f"{summary.name}_count", labels, label_set.value(summary.count))
            family.add_sample(f"{summary.name}_sum", labels, label_set.value(summary.total_us))
            values = common_quantiles([summary.durations(recent) for recent in label_set.recent], quantiles, now_ns)
            for quantile, value in zip(quantiles, values, strict=True):
                family.add_sample(summary.name, {**labels, "quantile": number_text(quantile)}, value)
        yield family


def _first_response_family(entries: Sequence[ModelStatisticsEntry]) -> Metric:
    family = HistogramMetricFamily(FIRST_RESPONSE_FAMILY, "Duration from request to first response in milliseconds")
    for entry in entries:
        histogram = entry.statistics.first_responses
        if histogram is None:
            continue
        add_histogram(family, model_labels(entry), histogram)
    return family


def add_histogram(metric: Metric, labels: Mapping[str, str], histogram: Histogram) -> None:
    """One series of a histogram: its count, its sum and its buckets."""
    buckets = histogram.buckets()
    metric.add_sample(f"{metric.name}_count", dict(labels), buckets[-1][1])
    metric.add_sample(f"{metric.name}_sum", dict(labels), histogram.total)
    for bound, number in buckets:
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": number_text(bound)}, number)
