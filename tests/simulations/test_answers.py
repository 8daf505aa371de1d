"""Decoupled and iterative models on the real actors: what a model says to each request, and what clients hear of it."""

from __future__ import annotations

from trireme.simulations.events import AnswersTaken, BatchSealed, RequestAnswered
from trireme.simulations.plan import Fault, Manner, ModelPlan, Plan, RequestPlan, SequencesPlan
from trireme.simulations.play import RunOutcome, play

MS = 1_000_000


def played(model: ModelPlan, *requests: RequestPlan, window: int = 64, calm_ns: int = 0) -> RunOutcome:
    outcome = play(Plan(1, (model,), requests, calm_ns, window=window))
    assert outcome.violation is None
    return outcome


def taken(outcome: RunOutcome, request: int) -> list[tuple[int, tuple[int, ...]]]:
    """When its client took which answers; times in milliseconds."""
    return [(each.at_ns // MS, each.answers) for each in outcome.history.of(AnswersTaken) if each.request == request]


def test_requests_of_a_batch_are_answered_each_at_its_own_pace() -> None:
    model = ModelPlan("m", max_batch_size=2, dynamic=True, delay_us=50_000, decoupled=True)
    slow = RequestPlan(1, "m", 0, answers=2, answer_ns=10 * MS)
    quick = RequestPlan(2, "m", 0, answers=3, answer_ns=2 * MS)
    outcome = played(model, slow, quick)
    assert taken(outcome, 1) == [(20, (1,)), (30, (2,))]
    assert taken(outcome, 2) == [(12, (1,)), (14, (2,)), (16, (3,))]
    assert [event.request for event in outcome.history.of(RequestAnswered)] == [2, 1]
    assert outcome.counts["two requests answered in turns"] == 0
    assert outcome.counts["several answers"] == 3


def test_a_model_waits_for_a_client_that_reads_slowly() -> None:
    """Three answers wait; the model goes on when they are taken, and the request beside waits with it."""
    model = ModelPlan("m", max_batch_size=2, dynamic=True, decoupled=True, delay_us=50_000)
    slow = RequestPlan(1, "m", 0, answers=8, pause_ns=20 * MS)
    beside = RequestPlan(2, "m", 0, answers=8, apart=True)
    outcome = played(model, slow, beside, window=3)
    assert outcome.counts["a model held back by a client"] > 0
    assert [answers for _, answers in taken(outcome, 1)] == [(1, 2, 3), (4, 5, 6), (7, 8)]
    assert taken(outcome, 2)[-1][0] >= 30
    assert sum(len(answers) for _, answers in taken(outcome, 2)) == 8


def test_an_answer_held_back_for_its_turn_holds_no_model_back() -> None:
    model = ModelPlan("m", max_batch_size=2, dynamic=True, delay_us=50_000, decoupled=True, preserve_ordering=True)
    first = RequestPlan(1, "m", 0, answers=2, answer_ns=5 * MS)
    second = RequestPlan(2, "m", 0, answers=9)
    outcome = played(model, first, second, window=3)
    assert taken(outcome, 2) == [(20, tuple(range(1, 10)))]


def test_rows_of_padding_count_nowhere() -> None:
    """The second sequence's slot has a gap before it."""
    model = ModelPlan("m", max_batch_size=2, sequences=SequencesPlan(), decoupled=True)
    sequences = [RequestPlan(number, "m", number * MS, sequence=number, start=True) for number in (1, 2)]
    outcome = played(model, *sequences, calm_ns=MS)
    assert outcome.history.of(BatchSealed)[-1].requests == (0, 2)


def test_a_fault_strikes_after_some_answers_and_those_are_kept() -> None:
    model = ModelPlan("m", decoupled=True)
    outcome = played(
        model,
        RequestPlan(1, "m", 0, answers=5, answer_ns=MS, fault=Fault.RAISE, fault_after=2),
        RequestPlan(2, "m", 0, answers=5, answer_ns=MS, manner=Manner.WAITS, give_up_ns=18 * MS),
        calm_ns=1_000 * MS,
    )
    assert [answers for _, answers in taken(outcome, 1)] == [(1,), (2,)]
    assert outcome.history.of(RequestAnswered)[0].error == "request 1 made 'm_0' raise"
    assert outcome.counts["failed amid its answers"] == 1


def test_a_request_is_executed_until_it_is_done_and_goes_before_others_of_its_sequence() -> None:
    model = ModelPlan("m", max_batch_size=1, sequences=SequencesPlan(iterative=True))
    outcome = played(
        model,
        RequestPlan(1, "m", 0, turns=3, sequence=7, start=True),
        RequestPlan(2, "m", MS, turns=2, sequence=7),
        RequestPlan(3, "m", 2 * MS),
    )
    assert [batch.requests for batch in outcome.history.of(BatchSealed)] == [(1,), (1,), (1,), (2,), (2,), (3,)]


def test_a_generative_model_answers_at_every_execution() -> None:
    model = ModelPlan("m", max_batch_size=4, sequences=SequencesPlan(iterative=True, oldest=True), decoupled=True)
    outcome = played(model, RequestPlan(1, "m", 0, turns=3), RequestPlan(2, "m", 5 * MS, turns=2, answers=2))
    assert taken(outcome, 1) == [(10, (1,)), (20, (2,)), (30, (3,))]
    assert [answers for _, answers in taken(outcome, 2)] == [(1, 2), (3, 4)]
    assert (2, 1) in [batch.requests for batch in outcome.history.of(BatchSealed)]


def test_a_request_that_is_cancelled_between_two_executions_does_not_come_back() -> None:
    model = ModelPlan("m", max_batch_size=1, sequences=SequencesPlan(iterative=True))
    outcome = played(model, RequestPlan(1, "m", 0, turns=9, give_up_ns=15 * MS), RequestPlan(2, "m", 0))
    assert [batch.requests for batch in outcome.history.of(BatchSealed)] == [(1,), (1,), (2,)]
    assert outcome.counts["cancelled between two executions"] == 1
