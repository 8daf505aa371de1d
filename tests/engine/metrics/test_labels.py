"""What GPUs have executed stands under their UUIDs, everything else without, and nothing is lost or counted twice."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trireme.engine.errors import FailureReason
from trireme.engine.job import SealReason
from trireme.engine.metrics.families import label_sets, latency_families, model_families
from trireme.engine.metrics.page import write_text
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry, RecentLatencies

US = 1_000
UUIDS = {0: "GPU-a", 1: "GPU-b"}
MARKS = {None: (20 * US, 21 * US, 23 * US, 26 * US), 0: (30 * US, 40 * US, 60 * US, 90 * US), 1: (1, 2, 3, 4)}


def record(statistics: ModelStatistics, gpu: int | None) -> None:
    """An execution of two requests with three rows, and one that failed."""
    statistics.record_execution(3, MARKS[gpu], 7, SealReason.FULL, gpu)
    statistics.record_successes([(0, 5 * US, 1), (0, 9 * US, 2)], MARKS[gpu], 100 * US, gpu)
    statistics.record_execution(1, MARKS[gpu], 8, SealReason.IDLE, gpu)
    statistics.record_failure(0, 50 * US, FailureReason.BACKEND, gpu)


@pytest.fixture
def entry() -> ModelStatisticsEntry:
    """Executions on the CPU and on GPU 0, a cache hit, and a request that did not get that far. GPU 1 was idle."""
    statistics = ModelStatistics(pending=4, load_duration_s=0.5, recent=RecentLatencies())
    for gpu in (0, 1):
        statistics.add_device(gpu)
    record(statistics, None)
    record(statistics, 0)
    statistics.record_cache_hit(received_ns=0, enqueued_ns=1 * US, began_ns=4 * US, released_ns=9 * US)
    statistics.record_failure(0, 10 * US, FailureReason.REJECTED)
    statistics.add_device(0)  # another instance of the same GPU
    return ModelStatisticsEntry("m", 1, statistics)


def series(entry: ModelStatisticsEntry, uuids: dict[int, str]) -> dict[tuple[str, str, str], float]:
    """Values by name, UUID and whatever label tells series of a name apart."""
    text = write_text([*model_families([entry], gpu_uuids=uuids), *latency_families([entry], (1.0,), 100 * US, uuids)])
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            key = (sample.name, labels.get("gpu_uuid", ""), labels.get("reason", labels.get("quantile", "")))
            assert key not in found, "no series is there twice"
            found[key] = sample.value
    return found


def test_each_gpu_has_its_own_counters_and_the_rest_stands_without(entry: ModelStatisticsEntry) -> None:
    found = series(entry, UUIDS)
    for name, without, first in (
        ("nv_inference_request_success_total", 3, 2),
        ("nv_inference_count_total", 3, 3),
        ("nv_inference_exec_count_total", 2, 2),
        ("nv_inference_request_duration_us_total", 200 + 9, 200),
        ("nv_inference_queue_duration_us_total", 15 + 11 + 3, 25 + 21),
        ("nv_inference_compute_input_duration_us_total", 2, 20),
        ("nv_inference_compute_infer_duration_us_total", 4, 40),
        ("nv_inference_compute_output_duration_us_total", 6, 60),
    ):
        assert [found[name, uuid, ""] for uuid in ("", "GPU-a", "GPU-b")] == [without, first, 0], name


def test_failures_of_a_backend_are_its_gpus_and_those_of_the_core_are_of_no_gpu(entry: ModelStatisticsEntry) -> None:
    found = series(entry, UUIDS)
    failures = {key[1:]: value for key, value in found.items() if key[0] == "nv_inference_request_failure_total"}
    assert len(failures) == 12, "every reason, with each GPU and without"
    assert {key for key, value in failures.items() if value == 1} == {
        ("", "REJECTED"),
        ("", "BACKEND"),
        ("GPU-a", "BACKEND"),
    }
    assert sum(failures.values()) == 3


def test_what_belongs_to_the_model_has_no_gpu(entry: ModelStatisticsEntry) -> None:
    found = series(entry, UUIDS)
    for name, value in (("nv_inference_pending_request_count", 4), ("nv_model_load_duration_secs", 0.5)):
        assert [(uuid, value) for (other, uuid, _), value in found.items() if other == name] == [("", value)]


def test_summaries_are_told_apart_likewise(entry: ModelStatisticsEntry) -> None:
    found = series(entry, UUIDS)
    name = "nv_inference_compute_infer_summary_us"
    assert [found[f"{name}_count", uuid, ""] for uuid in ("", "GPU-a", "GPU-b")] == [2, 2, 0]
    assert [found[f"{name}_sum", uuid, ""] for uuid in ("", "GPU-a", "GPU-b")] == [4, 40, 0]
    assert [found[name, uuid, "1"] for uuid in ("", "GPU-a")] == [2, 20]


@pytest.mark.parametrize("uuids", [{}, {0: "GPU-a"}, {1: "GPU-b"}, UUIDS, {**UUIDS, 2: "GPU-c"}])
def test_the_series_of_a_model_add_up_to_its_statistics(entry: ModelStatisticsEntry, uuids: dict[int, str]) -> None:
    sums: Counter[tuple[str, str]] = Counter()
    for (name, _, what), value in series(entry, uuids).items():
        if what != "1":
            sums[name, what] += value  # type: ignore[assignment]
    statistics = entry.statistics
    assert sums["nv_inference_request_success_total", ""] == statistics.success.count == 5
    assert sums["nv_inference_count_total", ""] == statistics.inference_count == 6
    assert sums["nv_inference_exec_count_total", ""] == statistics.execution_count == 4
    assert sums["nv_inference_request_summary_us_sum", ""] == statistics.success.us == 409
    assert sums["nv_inference_request_failure_total", "BACKEND"] == statistics.failures[FailureReason.BACKEND] == 2
    assert statistics.batches[3].compute_infer.count == 2


def test_without_uuids_a_model_on_gpus_is_printed_like_one_on_the_cpu() -> None:
    texts = []
    for gpus in ((0, 1), (None, None)):
        statistics = ModelStatistics(recent=RecentLatencies())
        for gpu, marks in zip(gpus, MARKS.values(), strict=False):
            if gpu is not None:
                statistics.add_device(gpu)
            statistics.record_execution(1, marks, 7, SealReason.FULL, gpu)
            statistics.record_successes([(0, 0, 1)], marks, 100 * US, gpu)
        entry = ModelStatisticsEntry("m", 1, statistics)
        texts.append(write_text([*model_families([entry]), *latency_families([entry], (0.5, 1.0), 100 * US)]))
    assert texts[0] == texts[1]
    assert 'quantile="1"} 20\n' in texts[0]


def test_frozen_counters_keep_their_series(entry: ModelStatisticsEntry) -> None:
    text = write_text(model_families([entry], counter_latencies=False, gpu_uuids=UUIDS))
    assert 'nv_inference_count{gpu_uuid="GPU-a",model="m",version="1"} 0\n' in text
    assert 'nv_inference_count{model="m",version="1"} 0\n' in text


def test_a_model_without_gpu_instances_has_one_set_whatever_gpus_there_are() -> None:
    statistics = ModelStatistics()
    record(statistics, None)
    (only,) = label_sets(ModelStatisticsEntry("m", 1, statistics), UUIDS)
    assert only.labels == {"model": "m", "version": "1"}
    assert only.elsewhere == ()


@pytest.mark.parametrize(
    ("key", "label"),
    [("a", "_a"), ("", "_"), ("a b", "_a_b"), ("é", "_"), ("_a", "_a"), ("__a_", "_a_"), ("1", "_1"), ("le", "_le")],
)
def test_any_tag_makes_a_label_that_prometheus_takes(key: str, label: str) -> None:
    """Labels that begin with two underscores are its own."""
    entry = ModelStatisticsEntry("m", 1, ModelStatistics(), ((key, 'v"\\\n'),))
    (first, *_) = text_string_to_metric_families(write_text(model_families([entry])))
    assert first.samples[0].labels == {"model": "m", "version": "1", label: 'v"\\\n'}
