"""What the response cache did for each model, as metric families (docs/reference/metrics.md#families-of-a-model)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, Metric, SummaryMetricFamily

from .latencies import RecentDurations, RecentLatencies
from .metrics_labels import model_labels
from .metrics_registry import Scrape
from .metrics_text import number_text
from .statistics import ModelStatistics

_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], int]], ...] = (
    (
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        lambda statistics: statistics.cache_hit.count,
    ),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda statistics: statistics.cache_hit_us,
    ),
    (
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        lambda statistics: statistics.cache_miss.count,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda statistics: statistics.cache_miss_us,
    ),
)


@dataclass(frozen=True, slots=True)
class _Summary:
    name: str
    help: str
    durations: Callable[[RecentLatencies], RecentDurations]
    count_and_sum: Callable[[ModelStatistics], tuple[int, int]]


_SUMMARIES = (
    _Summary(
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        lambda recent: recent.cache_hit,
        lambda statistics: (statistics.cache_hit.count, statistics.cache_hit_us),
    ),
    _Summary(
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        lambda recent: recent.cache_miss,
        lambda statistics: (statistics.cache_miss.count, statistics.cache_miss_us),
    ),
)


def cache_counter_families(scrape: Scrape) -> Iterator[Metric]:
    """Counters of the models whose configuration asks for the cache, whether or not the server has one."""
    if not scrape.counter_latencies:
        return
    for name, description, value in _COUNTERS:
        family = CounterMetricFamily(name, description)
        for entry in scrape.entries:
            if entry.statistics.cached:
                family.add_sample(f"{name}_total", model_labels(entry), value(entry.statistics))
        yield family


def cache_summary_families(scrape: Scrape) -> Iterator[Metric]:
    """Summaries of the same models, where distributions are kept."""
    for summary in _SUMMARIES:
        family = SummaryMetricFamily(summary.name, summary.help)
        for entry in scrape.entries:
            recent = entry.statistics.recent
            if recent is None or not entry.statistics.cached:
                continue
            labels = model_labels(entry)
            count, total_us = summary.count_and_sum(entry.statistics)
            family.add_sample(f"{summary.name}_count", labels, count)
            family.add_sample(f"{summary.name}_sum", labels, total_us)
            values = summary.durations(recent).quantiles(scrape.quantiles, scrape.now_ns)
            for quantile, value in zip(scrape.quantiles, values, strict=True):
                family.add_sample(summary.name, {**labels, "quantile": number_text(quantile)}, value)
        yield family
