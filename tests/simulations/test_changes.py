"""Models that are loaded, unloaded and loaded again while requests are in flight, on the real model control."""

from __future__ import annotations

from trireme.simulations.events import BatchSealed, ChangeDone, ModelStateChanged, RequestAnswered
from trireme.simulations.plan import Change, ChangePlan, Fault, ModelPlan, Plan, RequestPlan, StepPlan
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
