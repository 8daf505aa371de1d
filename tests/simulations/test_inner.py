"""What models ask of the server, in swarm runs."""

from __future__ import annotations

from trireme.simulations.events import AnswersTaken, ChangeDone, RequestAnswered
from trireme.simulations.inner import NOT_READY
from trireme.simulations.plan import UNKNOWN_MODEL, Change, ChangePlan, ModelPlan, Plan, RequestPlan
from trireme.simulations.play import RunOutcome, play
from trireme.simulations.swarm import draw_plan
from trireme.simulations.workloads import WayIn

MS = 1_000_000
MODELS = ModelPlan("m", fixed_ns=5 * MS), ModelPlan("d", fixed_ns=5 * MS, decoupled=True)


def played(*requests: RequestPlan, changes: tuple[ChangePlan, ...] = ()) -> RunOutcome:
    outcome = play(Plan(1, MODELS, requests, calm_ns=1_000 * MS, changes=changes))
    assert outcome.violation is None
    return outcome


def test_models_ask_others_of_each_kind() -> None:
    requests = RequestPlan(1, "m", 0, entry=WayIn.INNER), RequestPlan(2, "d", 0, entry=WayIn.INNER, answers=3)
    history = played(*requests).history
    assert sorted((answer.request, answer.error) for answer in history.of(RequestAnswered)) == [(1, ""), (2, "")]
    assert [number for event in history.of(AnswersTaken) for number in event.answers] == [1, 2, 3]


def test_a_model_is_told_of_one_that_is_not_there() -> None:
    (answer,) = played(RequestPlan(1, UNKNOWN_MODEL, 0, entry=WayIn.INNER)).history.of(RequestAnswered)
    assert answer.error.startswith(NOT_READY)


def test_who_gives_up_inside_is_cancelled() -> None:
    requests = [RequestPlan(number, "m", 0, entry=WayIn.INNER, give_up_ns=MS * (number == 2)) for number in (1, 2)]
    history = played(*requests).history
    assert [bool(answer.error) for answer in history.of(RequestAnswered) if answer.request == 2] == [True]


def test_models_load_and_unload_others() -> None:
    changes = [ChangePlan(at * MS, "m", change, inside=True) for at, change in ((1, Change.UNLOAD), (9, Change.LOAD))]
    history = played(RequestPlan(1, "m", 20 * MS), changes=tuple(changes)).history
    assert [event.error for event in history.of(ChangeDone)] == ["", ""]
    assert [answer.error for answer in history.of(RequestAnswered)] == [""]


def test_runs_draw_both() -> None:
    plans = [draw_plan(seed) for seed in range(1, 40)]
    assert any(request.entry is WayIn.INNER for plan in plans for request in plan.requests)
    assert any(change.inside for plan in plans for change in plan.changes)
