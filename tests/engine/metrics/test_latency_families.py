"""Distributions of latencies become Triton's summaries and histogram
(docs/reference/metrics.md#families-of-a-model)."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trireme.engine.job import SealReason
from trireme.engine.metrics.families import latency_families, model_families
from trireme.engine.metrics.page import DEFAULT_QUANTILES, write_text
from trireme.engine.metrics.statistics import Histogram, ModelStatistics, ModelStatisticsEntry, RecentLatencies

_GOLDEN = """\
# HELP nv_inference_first_response_histogram_ms Duration from request to first response in milliseconds
# TYPE nv_inference_first_response_histogram_ms histogram
nv_inference_first_response_histogram_ms_count{_a="x",model="m",version="1"} 2
nv_inference_first_response_histogram_ms_sum{_a="x",model="m",version="1"} 13
nv_inference_first_response_histogram_ms_bucket{_a="x",model="m",version="1",le="-1"} 0
nv_inference_first_response_histogram_ms_bucket{_a="x",model="m",version="1",le="2.5"} 1
nv_inference_first_response_histogram_ms_bucket{_a="x",model="m",version="1",le="+Inf"} 2
# HELP nv_inference_request_summary_us Summary of inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{_a="x",model="m",version="1"} 2
nv_inference_request_summary_us_sum{_a="x",model="m",version="1"} 199
nv_inference_request_summary_us{_a="x",model="m",version="1",quantile="0.5"} 99
nv_inference_request_summary_us{_a="x",model="m",version="1",quantile="1"} 100
# HELP nv_inference_queue_summary_us Summary of inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_summary_us summary
nv_inference_queue_summary_us_count{_a="x",model="m",version="1"} 2
nv_inference_queue_summary_us_sum{_a="x",model="m",version="1"} 16
nv_inference_queue_summary_us{_a="x",model="m",version="1",quantile="0.5"} 7
nv_inference_queue_summary_us{_a="x",model="m",version="1",quantile="1"} 9
# HELP nv_inference_compute_input_summary_us Cumulative compute input duration in microseconds (does not include \
cached requests)
# TYPE nv_inference_compute_input_summary_us summary
nv_inference_compute_input_summary_us_count{_a="x",model="m",version="1"} 2
nv_inference_compute_input_summary_us_sum{_a="x",model="m",version="1"} 20
nv_inference_compute_input_summary_us{_a="x",model="m",version="1",quantile="0.5"} 10
nv_inference_compute_input_summary_us{_a="x",model="m",version="1",quantile="1"} 10
# HELP nv_inference_compute_infer_summary_us Cumulative compute inference duration in microseconds (does not include \
cached requests)
# TYPE nv_inference_compute_infer_summary_us summary
nv_inference_compute_infer_summary_us_count{_a="x",model="m",version="1"} 2
nv_inference_compute_infer_summary_us_sum{_a="x",model="m",version="1"} 40
nv_inference_compute_infer_summary_us{_a="x",model="m",version="1",quantile="0.5"} 20
nv_inference_compute_infer_summary_us{_a="x",model="m",version="1",quantile="1"} 20
# HELP nv_inference_compute_output_summary_us Cumulative inference compute output duration in microseconds (does not \
include cached requests)
# TYPE nv_inference_compute_output_summary_us summary
nv_inference_compute_output_summary_us_count{_a="x",model="m",version="1"} 2
nv_inference_compute_output_summary_us_sum{_a="x",model="m",version="1"} 60
nv_inference_compute_output_summary_us{_a="x",model="m",version="1",quantile="0.5"} 30
nv_inference_compute_output_summary_us{_a="x",model="m",version="1",quantile="1"} 30
"""


@pytest.fixture
def entry() -> ModelStatisticsEntry:
    """One execution of two requests; two first responses."""
    statistics = ModelStatistics(recent=RecentLatencies(), first_responses=Histogram((-1, 2.5)))
    marks = (10_000, 20_999, 41_000, 71_000)
    statistics.record_execution(5, marks, 1, SealReason.DELAY)
    statistics.record_successes([(0, 1_000, 2), (100, 2_500, 3)], marks, 100_000)
    statistics.record_first_response(0, 1_999_999)
    statistics.record_first_response(1_000_000, 13_500_000)
    return ModelStatisticsEntry("m", 1, statistics, (("a", "x"),))


def test_text_of_one_model(entry: ModelStatisticsEntry) -> None:
    assert write_text(latency_families([entry], (0.5, 1.0), 200_000)) == _GOLDEN


def test_prometheus_own_parser_reads_the_same_numbers(entry: ModelStatisticsEntry) -> None:
    text = write_text(latency_families([entry], DEFAULT_QUANTILES, 200_000))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {family.type for family in families.values()} == {"summary", "histogram"}
    samples = families["nv_inference_request_summary_us"].samples
    quantiles = {sample.labels["quantile"]: sample.value for sample in samples if "quantile" in sample.labels}
    assert quantiles == {"0.5": 99, "0.9": 100, "0.95": 100, "0.99": 100, "0.999": 100}
    buckets = families["nv_inference_first_response_histogram_ms"].samples
    assert [sample.value for sample in buckets if "le" in sample.labels] == [0, 1, 2]


def test_counts_and_sums_are_those_of_the_counters(entry: ModelStatisticsEntry) -> None:
    text = write_text([*model_families([entry]), *latency_families([entry], (0.5,), 200_000)])
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    for part in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        assert values[f"nv_inference_{part}_summary_us_sum"] == values[f"nv_inference_{part}_duration_us_total"]
        assert values[f"nv_inference_{part}_summary_us_count"] == values["nv_inference_request_success_total"]


def test_after_a_minute_without_requests_quantiles_are_not_a_number_and_the_rest_stays(
    entry: ModelStatisticsEntry,
) -> None:
    text = write_text(latency_families([entry], (0.5,), 60_000_000_000))
    assert 'nv_inference_queue_summary_us{_a="x",model="m",version="1",quantile="0.5"} Nan\n' in text
    assert 'nv_inference_queue_summary_us_sum{_a="x",model="m",version="1"} 16\n' in text
    values = [sample.value for family in text_string_to_metric_families(text) for sample in family.samples]
    assert any(math.isnan(value) for value in values)


def test_models_that_keep_no_latencies_have_no_such_families() -> None:
    plain = ModelStatisticsEntry("m", 1, ModelStatistics())
    plain.statistics.record_successes([(0, 0, 1)], (0, 1, 2, 3), 4)
    plain.statistics.record_first_response(0, 1)
    assert write_text(latency_families([plain], DEFAULT_QUANTILES, 0)) == ""
