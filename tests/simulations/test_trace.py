"""A request log, played."""

from __future__ import annotations

from trireme.engine.logs.request_log import LoggedRequest
from trireme.simulations.events import RequestAnswered, RequestSubmitted
from trireme.simulations.play import play
from trireme.simulations.trace import plan_of_log

LOG = [
    LoggedRequest(0.001, "digits", rows=12, priority=1, timeout_us=500),
    LoggedRequest(0.002, "sums", sequence=5, start=True),
    LoggedRequest(0.5, "sums", sequence=5, end=True),
    LoggedRequest(1.25, "digits"),
]


def test_what_was_logged_is_asked_again_at_the_same_times() -> None:
    outcome = play(plan_of_log(LOG))
    assert outcome.violation is None
    assert outcome.history.of(RequestSubmitted) == [
        RequestSubmitted(1_000_000, 1, "digits", 12, 1, 500),
        RequestSubmitted(2_000_000, 2, "sums", 1, 0, 0, 5, True),
        RequestSubmitted(500_000_000, 3, "sums", 1, 0, 0, 5, False, True),
        RequestSubmitted(1_250_000_000, 4, "digits", 1, 0, 0),
    ]


def test_models_are_what_their_requests_need() -> None:
    digits, sums = plan_of_log(LOG).models
    assert (digits.name, digits.max_batch_size, digits.dynamic, digits.sequences) == ("digits", 12, True, None)
    assert (sums.name, sums.max_batch_size, sums.dynamic) == ("sums", 8, False)
    assert sums.sequences is not None


def test_sequences_may_be_named_by_strings() -> None:
    """Numbers and strings name different sequences, and none of them is refused."""
    log = [
        LoggedRequest(0.001 * at, "sums", sequence=sequence, start=at < 4, end=at >= 4)
        for at, sequence in enumerate((1, "1", "b", -3, "1", -3, 1, "b"))
    ]
    plan = plan_of_log(log)
    assert [request.sequence for request in plan.requests] == [1, 2, 3, 4, 2, 4, 1, 3]
    outcome = play(plan)
    assert outcome.violation is None
    assert [event.error for event in outcome.history.of(RequestAnswered)] == [""] * 8


def test_a_large_request_costs_no_more_than_itself() -> None:
    """Not what all smaller ones would cost as well, which is more memory than there is."""
    outcome = play(plan_of_log([LoggedRequest(0.001, "digits", rows=100_000)]))
    assert outcome.violation is None
    assert outcome.history.of(RequestAnswered)[0].error == ""
