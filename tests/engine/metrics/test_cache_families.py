"""What the metrics tell about the response cache, model by model (docs/reference/metrics.md#families-of-a-model)."""

from __future__ import annotations

from trireme.engine.metrics.families import cache_counter_families, cache_summary_families, latency_families
from trireme.engine.metrics.page import Scrape, write_text
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry, RecentLatencies

US = 1000


def entries() -> list[ModelStatisticsEntry]:
    cached = ModelStatistics(cached=True, recent=RecentLatencies())
    cached.record_cache_hit(received_ns=0, enqueued_ns=1 * US, began_ns=4 * US, released_ns=9 * US)
    cached.record_cache_miss(7 * US + 900, now_ns=20 * US)
    plain = ModelStatistics(recent=RecentLatencies())
    return [ModelStatisticsEntry("cached", 1, cached), ModelStatisticsEntry("plain", 1, plain)]


def test_counters_of_models_with_a_cache() -> None:
    text = write_text(cache_counter_families(Scrape(entries())))
    assert [line for line in text.splitlines() if not line.startswith("# HELP")] == [
        "# TYPE nv_cache_num_hits_per_model counter",
        'nv_cache_num_hits_per_model{model="cached",version="1"} 1',
        "# TYPE nv_cache_hit_duration_per_model counter",
        'nv_cache_hit_duration_per_model{model="cached",version="1"} 5',
        "# TYPE nv_cache_num_misses_per_model counter",
        'nv_cache_num_misses_per_model{model="cached",version="1"} 1',
        "# TYPE nv_cache_miss_duration_per_model counter",
        'nv_cache_miss_duration_per_model{model="cached",version="1"} 7',
    ]


def test_no_counters_without_latencies() -> None:
    assert write_text(cache_counter_families(Scrape(entries(), counter_latencies=False))) == ""


def test_summaries_of_models_with_a_cache() -> None:
    scrape = Scrape(entries(), now_ns=30 * US, quantiles=(0.5,))
    text = write_text(cache_summary_families(scrape))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'nv_cache_hit_summary_per_model_count{model="cached",version="1"} 1',
        'nv_cache_hit_summary_per_model_sum{model="cached",version="1"} 5',
        'nv_cache_hit_summary_per_model{model="cached",version="1",quantile="0.5"} 5',
        'nv_cache_miss_summary_per_model_count{model="cached",version="1"} 1',
        'nv_cache_miss_summary_per_model_sum{model="cached",version="1"} 7',
        'nv_cache_miss_summary_per_model{model="cached",version="1",quantile="0.5"} 7',
    ]


def test_the_time_of_whole_requests_is_not_summed_up_for_them() -> None:
    """Their queue's is, hits included."""
    text = write_text(latency_families(entries(), (0.5,), 30 * US))
    assert 'nv_inference_request_summary_us_count{model="plain",version="1"} 0' in text
    assert 'nv_inference_request_summary_us_count{model="cached"' not in text
    assert 'nv_inference_queue_summary_us{model="cached",version="1",quantile="0.5"} 3' in text
