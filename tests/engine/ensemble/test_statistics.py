"""What an ensemble counts (docs/reference/statistics.md#what-each-event-counts)."""

from __future__ import annotations

from ensembles import job, tensor

from trireme.engine.ensemble import ComputeTimes, record_failure, record_success
from trireme.engine.errors import FailureReason
from trireme.engine.metrics.statistics import ModelStatistics


def test_a_success_counts_once_with_the_sums_of_its_steps() -> None:
    statistics = ModelStatistics()
    request = job(tensor("I", 1), rows=3)
    request.received_ns, request.enqueued_ns = 1_000, 2_000
    times = ComputeTimes()
    times.add([10_000, 11_000, 13_000, 16_000])
    times.add([20_000, 20_500, 30_500, 31_000])
    record_success(statistics, request, times, start_ns=2_500, released_ns=40_000, wall_ms=99)
    assert (statistics.inference_count, statistics.execution_count, statistics.last_inference_ms) == (3, 1, 99)
    assert (statistics.success.count, statistics.success.ns) == (1, 39_000)
    assert (statistics.queue.count, statistics.queue.ns) == (1, 500)
    sums = statistics.compute_input, statistics.compute_infer, statistics.compute_output
    assert [(each.count, each.ns) for each in sums] == [(1, 1_500), (1, 12_000), (1, 3_500)]
    assert list(statistics.batches) == [3]
    assert statistics.batches[3].compute_infer.ns == 12_000
    assert statistics.fail.count == 0


def test_a_failure_counts_twice_and_no_execution() -> None:
    statistics = ModelStatistics()
    request = job(tensor("I", 1))
    request.received_ns = 1_000
    record_failure(statistics, request, released_ns=5_000)
    assert (statistics.fail.count, statistics.fail.ns) == (2, 8_000)
    assert statistics.failures[FailureReason.OTHER] == 2
    assert (statistics.execution_count, statistics.success.count, statistics.batches) == (0, 0, {})


def test_marks_that_were_never_taken_count_nothing() -> None:
    """A decoupled member's last answer may come while its execution is still going on."""
    times = ComputeTimes()
    times.add([10_000, 11_000, -1, -1])
    assert times.marks(0) == [0, 1_000, 1_000, 1_000]
