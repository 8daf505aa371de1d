"""Statistics follow docs/reference/statistics.md."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.errors import FailureReason
from trireme.engine.job import SealReason
from trireme.engine.metrics.statistics import Duration, ModelStatistics

MARKS = (1_000, 3_500, 10_000, 10_999)


def test_each_request_of_a_batch_is_charged_the_whole_batch() -> None:
    statistics = ModelStatistics()
    statistics.record_execution(3, MARKS, 77, SealReason.FULL)
    statistics.record_successes([(0, 400, 1), (100, 900, 2)], MARKS, 12_000)
    assert statistics.success == Duration(2, 12_000 + 11_900)
    assert statistics.queue == Duration(2, 600 + 100)
    assert statistics.compute_input == Duration(2, 2 * 2_500)
    assert statistics.compute_infer == Duration(2, 2 * 6_500)
    assert statistics.compute_output == Duration(2, 2 * 999)
    assert (statistics.inference_count, statistics.execution_count, statistics.last_inference_ms) == (3, 1, 77)
    batch = statistics.batches[3]
    assert (batch.compute_input, batch.compute_infer, batch.compute_output) == (
        Duration(1, 2_500),
        Duration(1, 6_500),
        Duration(1, 999),
    )


def test_microseconds_are_cut_off_request_by_request() -> None:
    statistics = ModelStatistics()
    statistics.record_successes([(0, 400, 1), (0, 400, 1)], MARKS, 12_999)
    assert (statistics.success.us, statistics.queue.us) == (24, 0)
    assert (statistics.compute_input.us, statistics.compute_infer.us, statistics.compute_output.us) == (4, 12, 0)


def test_a_failed_request_adds_only_to_fail_but_its_execution_counts() -> None:
    statistics = ModelStatistics()
    statistics.record_execution(1, MARKS, 5, SealReason.IDLE)
    statistics.record_failure(1_000, 4_000, FailureReason.BACKEND)
    assert statistics.fail == Duration(1, 3_000)
    assert statistics.failures[FailureReason.BACKEND] == 1
    assert sum(statistics.failures.values()) == 1
    assert (statistics.success, statistics.queue, statistics.compute_infer) == (Duration(), Duration(), Duration())
    assert (statistics.inference_count, statistics.execution_count, statistics.last_inference_ms) == (0, 1, 5)
    assert statistics.batches[1].compute_infer == Duration(1, 6_500)


def test_batches_are_counted_by_size_and_by_reason() -> None:
    statistics = ModelStatistics()
    for rows, reason in ((4, SealReason.FULL), (1, SealReason.IDLE), (4, SealReason.FULL)):
        statistics.record_execution(rows, MARKS, 1, reason)
    assert {rows: batch.compute_infer.count for rows, batch in statistics.batches.items()} == {4: 2, 1: 1}
    assert {reason: count for reason, count in statistics.sealed.items() if count} == {
        SealReason.FULL: 2,
        SealReason.IDLE: 1,
    }


def test_two_models_share_nothing() -> None:
    one, other = ModelStatistics(), ModelStatistics()
    one.record_execution(1, MARKS, 1, SealReason.IDLE)
    one.record_failure(0, 1, FailureReason.OTHER)
    assert other == ModelStatistics()


_REQUESTS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 8)), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(_REQUESTS, max_size=5))
def test_totals_do_not_depend_on_how_requests_were_batched(batches: list[list[tuple[int, int, int]]]) -> None:
    together, apart = ModelStatistics(), ModelStatistics()
    marks = tuple(2 * 10**6 + mark for mark in MARKS)
    for requests in batches:
        together.record_successes(requests, marks, 3 * 10**6)
        for request in requests:
            apart.record_successes([request], marks, 3 * 10**6)
    assert together == apart
    assert together.inference_count == sum(rows for requests in batches for _, _, rows in requests)
