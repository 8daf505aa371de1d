"""Models that execute some batches in place: no time passes, everything else is as ever."""

from __future__ import annotations

from dataclasses import replace

from trireme.simulations.events import ExecutionEnded, ExecutionStarted
from trireme.simulations.placed import placed
from trireme.simulations.plan import Fault, ModelPlan, Plan, RequestPlan
from trireme.simulations.play import play
from trireme.simulations.swarm import draw_plan

MODEL = ModelPlan("m", in_place=3, fixed_ns=5_000_000)


def durations(*requests: RequestPlan, model: ModelPlan = MODEL) -> list[int]:
    """Nanoseconds that each execution took."""
    outcome = play(Plan(1, (model,), requests, calm_ns=10**9))
    assert outcome.violation is None
    ended = {event.batch: event.at_ns for event in outcome.history.of(ExecutionEnded)}
    return [ended[event.batch] - event.at_ns for event in outcome.history.of(ExecutionStarted)]


def test_all_batches_but_some_take_no_time() -> None:
    requests = [RequestPlan(number, "m", number * 10_000_000) for number in (1, 2, 3, 4)]
    assert durations(*requests) == [0, 0, 5_000_000, 0]
    assert durations(*requests, model=replace(MODEL, in_place=0)) == [5_000_000] * 4


def test_a_batch_that_a_fault_may_strike_takes_its_time() -> None:
    assert durations(RequestPlan(1, "m", 0, fault=Fault.RAISE)) == [5_000_000]


def test_what_waits_behind_one_that_takes_time_is_executed_when_it_is_over() -> None:
    requests = [RequestPlan(number, "m", number) for number in (3, 4, 5)]
    assert durations(*requests) == [5_000_000, 0, 0]


def test_everything_else_in_a_plan_stays_what_it_was() -> None:
    plans = [draw_plan(seed) for seed in range(1, 40)]
    assert any(model.in_place for plan in plans for model in plan.models)
    for plan in plans:
        if any(model.reads_regions for model in plan.models):
            continue  # drawn later, and such a model executes nothing in place
        plain = replace(plan, models=tuple([replace(model, in_place=0) for model in plan.models]))
        assert placed(plain) == plan
