"""Responses of decoupled models are counted one by one where their backend reports them."""

from __future__ import annotations

from trireme.engine.metrics.statistics import (
    MAX_INDICES,
    Duration,
    ModelStatistics,
    ResponseOutcome,
    ResponseStatistics,
    ResponseTimes,
)


def _times(outcome: ResponseOutcome, index: int = 0, output_start_ns: int = 130) -> ResponseTimes:
    return ResponseTimes(index, outcome, 100, output_start_ns, 200)


def test_what_each_outcome_counts_as() -> None:
    statistics = ModelStatistics()
    for outcome in ResponseOutcome:
        statistics.record_responses([_times(outcome)])
    assert statistics.responses == {
        0: ResponseStatistics(
            compute_infer=Duration(3, 30 + 30 + 100),
            compute_output=Duration(2, 70 + 70),
            success=Duration(1, 100),
            fail=Duration(1, 100),
            empty_response=Duration(1, 100),
            cancel=Duration(1, 100),
        )
    }


def test_responses_are_told_apart_by_index_up_to_a_limit() -> None:
    statistics = ModelStatistics()
    statistics.record_responses(
        _times(ResponseOutcome.SUCCESS, index) for index in (0, 1, 0, -1, MAX_INDICES - 1, MAX_INDICES)
    )
    assert {index: responses.success.count for index, responses in statistics.responses.items()} == {
        0: 2,
        1: 1,
        MAX_INDICES - 1: 1,
    }


def test_times_that_go_backwards_count_as_none() -> None:
    responses = ResponseStatistics()
    responses.record(ResponseTimes(0, ResponseOutcome.SUCCESS, 100, 50, 90))
    responses.record(_times(ResponseOutcome.SUCCESS, output_start_ns=50))
    responses.record(_times(ResponseOutcome.SUCCESS, output_start_ns=500))
    assert (responses.compute_infer, responses.compute_output) == (Duration(3, 100), Duration(3, 100))
    assert responses.success == Duration(3, 200)
