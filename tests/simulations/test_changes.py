"""Models that are loaded, unloaded and loaded again while requests are in flight, on the real model control."""

from __future__ import annotations

import pytest

from trireme.simulations.events import BatchSealed, ChangeAsked, ChangeDone, ModelStateChanged, RequestAnswered
from trireme.simulations.invariants.changes import ChangesAreMade
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.plan import Change, ChangePlan, Fault, ModelPlan, Plan, RequestPlan, SequencesPlan, StepPlan
from trireme.simulations.play import RunOutcome, play

MS = 1_000_000


def played(model: ModelPlan, *changes: ChangePlan, requests: tuple[RequestPlan, ...], load_ns: int = 0) -> RunOutcome:
    outcome = play(Plan(1, (model,), requests, calm_ns=1_000 * MS, changes=changes, load_ns=load_ns))
    assert outcome.violation is None
    return outcome


def stream(count: int, every_ns: int = 2 * MS) -> tuple[RequestPlan, ...]:
    return tuple(RequestPlan(number, "m", number * every_ns) for number in range(1, count + 1))


def test_while_a_model_is_loaded_again_no_request_is_refused_and_the_old_one_finishes_its_queue() -> None:
    reload = ChangePlan(20 * MS, "m")
    outcome = played(ModelPlan("m"), reload, requests=stream(30), load_ns=3 * MS)
    assert [answer.error for answer in outcome.history.of(RequestAnswered)] == [""] * 30
    batches = outcome.history.of(BatchSealed)
    assert {batch.model for batch in batches} == {"m", "m~2"}
    (done,) = outcome.history.of(ChangeDone)
    assert any(batch.model == "m" and batch.at_ns > done.at_ns for batch in batches), "what it had accepted"
    assert outcome.counts["executed by what was replaced"] > 0


def test_a_load_that_fails_leaves_the_old_model_at_work() -> None:
    reload = ChangePlan(20 * MS, "m")
    outcome = played(ModelPlan("m", failing_starts=(2,)), reload, requests=stream(30))
    assert [answer.error for answer in outcome.history.of(RequestAnswered)] == [""] * 30
    assert outcome.history.of(ChangeDone)[0].error.startswith("load failed for model 'm'")
    assert outcome.counts["a load failed, and the old one served on"] == 1


def test_a_model_is_unloaded_and_loaded() -> None:
    changes = (ChangePlan(20 * MS, "m", Change.UNLOAD), ChangePlan(40 * MS, "m", Change.LOAD))
    outcome = played(ModelPlan("m", dynamic=True), *changes, requests=stream(30))
    refused = [answer.at_ns // MS for answer in outcome.history.of(RequestAnswered) if answer.error]
    assert refused == [22, 24, 26, 28, 30, 32, 34, 36, 38, 40]
    states = [(event.model, event.state) for event in outcome.history.of(ModelStateChanged)][2:5]
    assert states == [("m", "UNLOADING"), ("m", "UNAVAILABLE"), ("m~2", "LOADING")]


def test_ensembles_are_loaded_again_with_their_members() -> None:
    models = (ModelPlan("m"), ModelPlan("e", steps=(StepPlan("m"), StepPlan("m", (1,)))))
    requests = tuple(RequestPlan(number, "e", number * 5 * MS) for number in range(1, 20))
    plan = Plan(1, models, requests, calm_ns=1_000 * MS, changes=(ChangePlan(30 * MS, "m"),), load_ns=4 * MS)
    outcome = play(plan)
    assert outcome.violation is None
    assert {batch.model for batch in outcome.history.of(BatchSealed)} == {"m", "m~2"}
    assert outcome.counts["an ensemble answered"] == 19


def test_requests_of_a_model_that_is_lost_while_it_is_drained_are_answered() -> None:
    crash = RequestPlan(1, "m", MS, fault=Fault.CRASH)
    plan = Plan(
        1,
        (ModelPlan("m"),),
        (crash, *stream(5)[1:]),
        calm_ns=100 * MS,
        changes=(ChangePlan(8 * MS, "m"),),
        restart_limit=0,
    )
    outcome = play(plan)
    assert outcome.violation is None
    errors = [answer.error for answer in outcome.history.of(RequestAnswered) if answer.request != 5]
    assert all("died" in error for error in errors)


def test_what_was_loaded_at_the_second_try_keeps_its_sequences_when_it_is_replaced() -> None:
    """It counted as drained since the first try, and its sequences were lost."""
    model = ModelPlan("m", fixed_ns=MS, failing_starts=(2,), sequences=SequencesPlan())
    requests = tuple(
        RequestPlan(number, "m", number * 10 * MS, sequence=7, start=number == 3, end=number == 9)
        for number in range(3, 10)
    )
    changes = (ChangePlan(10 * MS, "m"), ChangePlan(55 * MS, "m"))
    outcome = play(Plan(1, (model,), requests, calm_ns=1_000 * MS, changes=changes, load_retries=1))
    assert outcome.violation is None
    assert [answer.error for answer in outcome.history.of(RequestAnswered)] == [""] * 7


def test_a_sequence_ends_with_its_model_that_goes_with_an_ensemble() -> None:
    models = ModelPlan("m", fixed_ns=10 * MS, sequences=SequencesPlan()), ModelPlan("e", steps=(StepPlan("m"),))
    requests = (
        RequestPlan(1, "m", 0, sequence=7, start=True),
        RequestPlan(2, "m", 8 * MS, sequence=7, extra_ns=50 * MS),
        RequestPlan(3, "m", 40 * MS, sequence=7, end=True),
    )
    changes = ChangePlan(20 * MS, "e", Change.UNLOAD_ALL), ChangePlan(30 * MS, "e")
    outcome = play(Plan(1, models, requests, calm_ns=1_000 * MS, changes=changes, named=True))
    assert outcome.violation is None
    errors = {answer.request: answer.error for answer in outcome.history.of(RequestAnswered)}
    assert (errors[1], errors[2]) == ("", "")
    assert "must specify the START flag" in errors[3]


def test_a_load_that_makes_up_for_a_resize_may_fail_as_that_did() -> None:
    model = ModelPlan("m", instances=1, failing_starts=(2, 3))
    changes = (ChangePlan(20 * MS, "m", Change.RESIZE, instances=2), ChangePlan(40 * MS, "m", Change.LOAD))
    history = played(model, *changes, requests=stream(30)).history
    assert [(done.change, "start" in done.error) for done in history.of(ChangeDone)] == [
        ("resize to 2", True),
        ("load", True),
    ]


def test_what_was_loaded_at_the_second_try_still_waits_for_its_delay() -> None:
    model = ModelPlan("m", max_batch_size=2, dynamic=True, delay_us=900, failing_starts=(2,))
    plan = Plan(
        1, (model,), stream(9, 20 * MS), calm_ns=1_000 * MS, changes=(ChangePlan(52 * MS, "m"),), load_retries=2
    )
    outcome = play(plan)
    assert outcome.violation is None, "the first attempt's scheduler was stopped, not the second's"
    assert {batch.reason for batch in outcome.history.of(BatchSealed) if batch.model == "m~2"} == {"delay over"}


def test_what_cannot_be_loaded_leaves_the_old_one_and_is_loaded_when_it_is_mended() -> None:
    changes = (ChangePlan(10 * MS, "m", Change.BREAK), ChangePlan(30 * MS, "m"))
    outcome = played(ModelPlan("m", fixed_ns=MS), *changes, requests=stream(30))
    assert [bool(done.error) for done in outcome.history.of(ChangeDone)] == [True, False]
    assert [answer.error for answer in outcome.history.of(RequestAnswered)] == [""] * 30


def test_a_load_that_did_nothing_is_noticed() -> None:
    found: list[str] = []
    state = WorldState([ModelPlan("m").config()])
    rule = ChangesAreMade(lambda violation: found.append(violation.text), state)
    for event in (
        ModelStateChanged(0, "m", 1, "READY"),
        ChangeAsked(1, "m", "reload"),
        ChangeDone(2, "m", "reload", ""),
    ):
        for handlers in (rule.handlers(), state.handlers()):
            if type(event) in handlers:
                handlers[type(event)](event)
    assert found == ["'m' is what it was before: reload"]


@pytest.mark.parametrize("error", ["", "the server is stopping"])
def test_how_many_instances_there_should_be_is_unclear_after_a_change_that_overlapped_with_one_that_failed(
    error: str,
) -> None:
    """The first one may have read the files before the second one was asked for, or after that."""
    state = WorldState([ModelPlan("m").config()])
    for event in (
        ChangeAsked(1, "m", "resize to 1"),
        ChangeAsked(2, "m", "resize to 2"),
        ChangeDone(3, "m", "resize to 2", error),
        ChangeDone(4, "m", "resize to 1", ""),
    ):
        state.handlers()[type(event)](event)
    assert state.serving["m"].count == (-1 if error else 2)
    for event in (ChangeAsked(5, "m", "resize to 3"), ChangeDone(6, "m", "resize to 3", "")):
        state.handlers()[type(event)](event)
    assert state.serving["m"].count == 3
