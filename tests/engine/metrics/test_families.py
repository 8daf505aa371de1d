"""The statistics become Triton's metric families (docs/reference/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from trireme.engine.errors import FailureReason
from trireme.engine.job import SealReason
from trireme.engine.metrics.families import (
    CpuReading,
    HostReadings,
    cpu_families,
    model_families,
    pinned_memory_families,
    sealed_families,
)
from trireme.engine.metrics.family import MetricFamily
from trireme.engine.metrics.page import write_text
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry

_GOLDEN = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 2
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{_aa="x",_zz="1\\"q\\\\",model="m",reason="REJECTED",version="1"} 0
nv_inference_request_failure{_aa="x",_zz="1\\"q\\\\",model="m",reason="CANCELED",version="1"} 0
nv_inference_request_failure{_aa="x",_zz="1\\"q\\\\",model="m",reason="BACKEND",version="1"} 1
nv_inference_request_failure{_aa="x",_zz="1\\"q\\\\",model="m",reason="OTHER",version="1"} 0
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 5
# HELP nv_inference_exec_count Number of model executions performed (does not include cached requests)
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 1
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 199
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 16
# HELP nv_inference_compute_input_duration_us Cumulative compute input duration in microseconds (does not include \
cached requests)
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 20
# HELP nv_inference_compute_infer_duration_us Cumulative compute inference duration in microseconds (does not include \
cached requests)
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 40
# HELP nv_inference_compute_output_duration_us Cumulative inference compute output duration in microseconds (does not \
include cached requests)
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 60
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 3
# HELP nv_model_load_duration_secs Model load time in seconds
# TYPE nv_model_load_duration_secs gauge
nv_model_load_duration_secs{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 0.25
# HELP nv_pinned_memory_pool_total_bytes Pinned memory pool total memory size, in bytes
# TYPE nv_pinned_memory_pool_total_bytes gauge
nv_pinned_memory_pool_total_bytes 268435456
# HELP nv_pinned_memory_pool_used_bytes Pinned memory pool used memory size, in bytes
# TYPE nv_pinned_memory_pool_used_bytes gauge
nv_pinned_memory_pool_used_bytes 0
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
# HELP nv_cpu_memory_total_bytes CPU total memory (RAM), in bytes
# TYPE nv_cpu_memory_total_bytes gauge
nv_cpu_memory_total_bytes 25276502016
# HELP nv_cpu_memory_used_bytes CPU used memory (RAM), in bytes
# TYPE nv_cpu_memory_used_bytes gauge
nv_cpu_memory_used_bytes 857382912
# HELP trireme_batch_sealed_count Number of model executions, by the reason for which their batch was closed
# TYPE trireme_batch_sealed_count counter
trireme_batch_sealed_count{_aa="x",_zz="1\\"q\\\\",model="m",reason="full",version="1"} 0
trireme_batch_sealed_count{_aa="x",_zz="1\\"q\\\\",model="m",reason="preferred",version="1"} 0
trireme_batch_sealed_count{_aa="x",_zz="1\\"q\\\\",model="m",reason="delay",version="1"} 1
trireme_batch_sealed_count{_aa="x",_zz="1\\"q\\\\",model="m",reason="idle",version="1"} 0
trireme_batch_sealed_count{_aa="x",_zz="1\\"q\\\\",model="m",reason="shape",version="1"} 0
trireme_batch_sealed_count{_aa="x",_zz="1\\"q\\\\",model="m",reason="unbatched",version="1"} 0
trireme_batch_sealed_count{_aa="x",_zz="1\\"q\\\\",model="m",reason="drain",version="1"} 0
trireme_batch_sealed_count{_aa="x",_zz="1\\"q\\\\",model="m",reason="strategy",version="1"} 0
"""

_HOST = HostReadings(268435456, 0, CpuReading(0.5, 25276502016, 857382912))


@pytest.fixture
def entry() -> ModelStatisticsEntry:
    """One execution of two requests (2 and 3 rows), and one failed request."""
    statistics = ModelStatistics(pending=3, load_duration_s=0.25)
    marks = (10_000, 20_999, 41_000, 71_000)
    statistics.record_execution(5, marks, 1, SealReason.DELAY)
    statistics.record_successes([(0, 1_000, 2), (100, 2_500, 3)], marks, 100_000)
    statistics.record_failure(0, 5, FailureReason.BACKEND)
    return ModelStatisticsEntry("m", 1, statistics, (("aa", "x"), ("zz", '1"q\\')))


def everything(entry: ModelStatisticsEntry) -> str:
    return write_text(
        [*model_families([entry]), *pinned_memory_families(_HOST), *cpu_families(_HOST.cpu), *sealed_families([entry])]
    )


def test_text_of_one_model(entry: ModelStatisticsEntry) -> None:
    assert everything(entry) == _GOLDEN


def test_prometheus_own_parser_reads_the_same_numbers(entry: ModelStatisticsEntry) -> None:
    """It gives every counter's name a ``_total``, as OpenMetrics has it."""
    values = {
        (sample.name.removesuffix("_total"), sample.labels.get("reason", "")): sample.value
        for family in text_string_to_metric_families(everything(entry))
        for sample in family.samples
    }
    assert values["nv_inference_request_success", ""] == 2
    assert values["nv_inference_request_failure", "BACKEND"] == 1
    assert values["nv_inference_request_duration_us", ""] == 199
    assert values["nv_model_load_duration_secs", ""] == 0.25
    assert values["trireme_batch_sealed_count", "delay"] == 1
    assert len(values) == 27


def test_labels_survive_the_way_through_prometheus_own_parser(entry: ModelStatisticsEntry) -> None:
    family = next(iter(text_string_to_metric_families(everything(entry))))
    assert family.samples[0].labels == {"_aa": "x", "_zz": '1"q\\', "model": "m", "version": "1"}


def test_without_counter_latencies_durations_are_gone_and_counters_stand_still(entry: ModelStatisticsEntry) -> None:
    text = write_text(model_families([entry], counter_latencies=False))
    assert "duration_us" not in text
    assert 'nv_inference_request_success{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 0' in text
    assert 'reason="BACKEND",version="1"} 0' in text
    assert 'nv_inference_pending_request_count{_aa="x",_zz="1\\"q\\\\",model="m",version="1"} 3' in text
    assert "nv_model_load_duration_secs" in text


def test_without_models_only_the_machine_is_told_about() -> None:
    text = write_text(
        [*model_families([]), *pinned_memory_families(HostReadings()), *cpu_families(None), *sealed_families([])]
    )
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "nv_pinned_memory_pool_total_bytes 0",
        "nv_pinned_memory_pool_used_bytes 0",
    ]


def test_tags_that_cannot_be_label_names_are_made_to(entry: ModelStatisticsEntry) -> None:
    odd = ModelStatisticsEntry("m", 1, entry.statistics, (("team-a.b", "x"),))
    assert '{_team_a_b="x",model="m",version="1"}' in write_text(model_families([odd]))


def test_a_namespace_is_a_label_where_there_is_one(entry: ModelStatisticsEntry) -> None:
    named = ModelStatisticsEntry("m", 1, entry.statistics, namespace="/models")
    assert 'nv_inference_count{model="m",namespace="/models",version="1"} 5' in write_text(model_families([named]))


def test_families_can_be_collected_by_a_registry(entry: ModelStatisticsEntry) -> None:
    class Everything:
        def collect(self) -> Iterator[MetricFamily]:
            return model_families([entry])

    registry = CollectorRegistry()
    registry.register(Everything())  # type: ignore[arg-type]
    labels = {"_aa": "x", "_zz": '1"q\\', "model": "m", "version": "1"}
    assert registry.get_sample_value("nv_inference_count_total", labels) == 5
    assert registry.get_sample_value("nv_inference_pending_request_count", labels) == 3
