"""How simulated servers learn what to serve: by name, by looking, and which loads they end."""

from __future__ import annotations

from typing import Any

from trireme.simulations.control import control_options, impatient, named, polled
from trireme.simulations.events import (
    ChangeDone,
    InstanceAttached,
    InstanceDetached,
    ModelStateChanged,
    RequestAnswered,
)
from trireme.simulations.plan import Change, ChangePlan, Fault, ModelPlan, Plan, RequestPlan, StepPlan
from trireme.simulations.play import RunOutcome, play
from trireme.simulations.swarm import draw_plan

MS = 1_000_000
MODELS = ModelPlan("a", fixed_ns=5 * MS), ModelPlan("b", fixed_ns=5 * MS), ModelPlan("e", steps=(StepPlan("a"),))


def played(*changes: ChangePlan, at_ns: int = 500 * MS, **options: Any) -> RunOutcome:
    requests = RequestPlan(1, "e", at_ns), RequestPlan(2, "b", at_ns)
    outcome = play(Plan(1, MODELS, requests, calm_ns=1_000 * MS, changes=changes, **options))
    assert outcome.violation is None
    assert [answer.error for answer in outcome.history.of(RequestAnswered) if answer.request < 3] == ["", ""]
    return outcome


def test_a_server_that_is_told_names_loads_members_too() -> None:
    plan = Plan(1, MODELS, (), 0, changes=(ChangePlan(0, "a"),), named=True)
    assert control_options(plan)["startup_models"] == ("b", "e")
    played(ChangePlan(9 * MS, "a", Change.LOAD), at_ns=0, named=True)


def test_a_server_that_looks_by_itself_follows_what_changes() -> None:
    kinds = Change.UNLOAD, Change.LOAD, Change.RELOAD, Change.BREAK, Change.RELOAD
    changes = [ChangePlan((1 + 50 * number) * MS, "a", kind) for number, kind in enumerate(kinds)]
    history = played(*changes, poll_ns=10 * MS).history
    assert [(done.change, bool(done.error)) for done in history.of(ChangeDone)] == [
        (kind.value, kind is Change.BREAK) for kind in kinds
    ]
    took_ns = [done.at_ns - change.at_ns for done, change in zip(history.of(ChangeDone), changes, strict=True)]
    assert all(10 * MS <= each < 30 * MS for each in took_ns)
    assert {"e~2", "e~3", "a~2", "a~3"} <= {event.model for event in history.of(ModelStateChanged)}


def test_an_ensemble_without_its_member_is_not_there_when_it_is_loaded_again() -> None:
    changes = ChangePlan(MS, "a", Change.UNLOAD), ChangePlan(100 * MS, "e"), ChangePlan(200 * MS, "a", Change.LOAD)
    history = played(*changes, poll_ns=10 * MS).history
    assert [done.error for done in history.of(ChangeDone)] == ["", "", ""]
    assert min(event.at_ns for event in history.of(ModelStateChanged) if event.model == "e~2") == 200 * MS


def test_what_is_broken_before_the_server_looks_again_is_not_what_came_earlier() -> None:
    changes = ChangePlan(MS, "b", Change.RESIZE, instances=3), ChangePlan(12 * MS, "b", Change.BREAK)
    history = played(*changes, ChangePlan(100 * MS, "b"), poll_ns=30 * MS).history
    assert [bool(done.error) for done in history.of(ChangeDone)] == [True, True, False]


def test_what_is_resized_while_it_is_loaded_again_has_that_many_later() -> None:
    changes = ChangePlan(MS, "b"), ChangePlan(60 * MS, "b", Change.RESIZE, instances=1)
    model, request = ModelPlan("b", instances=2, fixed_ns=5 * MS), RequestPlan(1, "b", 500 * MS)
    plan = Plan(1, (model,), (request,), calm_ns=1_000 * MS, changes=changes, poll_ns=10 * MS, load_ns=20 * MS)
    outcome = play(plan)
    assert outcome.violation is None
    loading, ready = [event.at_ns for event in outcome.history.of(ModelStateChanged) if event.model == "b~2"][:2]
    assert loading < changes[1].at_ns < ready
    assert len([event for event in outcome.history.of(InstanceDetached) if event.model == "b~2"]) == 2


def test_a_model_whose_files_are_gone_serves_until_the_server_has_read_the_others() -> None:
    """It is ready then, though the index does not list it; also when an instance comes back meanwhile."""
    requests = RequestPlan(1, "a", 30 * MS, fault=Fault.CRASH), RequestPlan(2, "b", 900 * MS)
    changes = ChangePlan(MS, "a", Change.UNLOAD), ChangePlan(MS, "b")
    plan = Plan(1, MODELS[:2], requests, calm_ns=950 * MS, changes=changes, poll_ns=10 * MS, load_ns=300 * MS)
    outcome = play(plan)
    assert outcome.violation is None
    attached = [event.at_ns // MS for event in outcome.history.of(InstanceAttached) if event.model == "a"]
    assert len(attached) == 2
    unloads = [event.at_ns for event in outcome.history.of(ModelStateChanged) if event.state == "UNLOADING"]
    assert attached[1] * MS < unloads[0]


def test_a_load_that_is_not_wanted_any_more_is_ended() -> None:
    changes = ChangePlan(MS, "b"), ChangePlan(100 * MS, "b", Change.UNLOAD), ChangePlan(19_000 * MS, "b", Change.LOAD)
    history = played(*changes, at_ns=39_000 * MS, load_ns=1_500 * MS, patience_s=0.001).history
    assert [done.error.partition(":")[0] for done in history.of(ChangeDone)] == ["load failed for model 'b'", "", ""]


def test_runs_draw_each_of_them() -> None:
    plans = [draw_plan(seed) for seed in range(1, 100)]
    assert any(plan.named for plan in plans)
    assert any(plan.poll_ns for plan in plans)
    assert any(plan.patience_s for plan in plans)
    for plan in plans:
        if not plan.changes:
            assert polled(named(impatient(plan))) == plan
