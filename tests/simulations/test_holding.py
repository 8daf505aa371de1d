"""Schedulers that hold requests back, in swarm runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.simulations.events import BatchSealed
from trireme.simulations.plan import Fault, ModelPlan, Plan, RequestPlan, SequencesPlan
from trireme.simulations.play import play
from trireme.simulations.resized import holding
from trireme.simulations.swarm import draw_plan

MS = 1_000_000

DYNAMIC = ModelPlan("m", fixed_ns=MS, dynamic=True)
DIRECT = ModelPlan("m", fixed_ns=MS, sequences=SequencesPlan())
OLDEST = ModelPlan("m", fixed_ns=MS, sequences=SequencesPlan(oldest=True))


@pytest.mark.parametrize("model", [DYNAMIC, DIRECT, OLDEST], ids=["dynamic", "direct", "oldest"])
def test_nothing_is_executed_before_there_are_enough(model: ModelPlan) -> None:
    requests = tuple(RequestPlan(number, "m", number * MS, sequence=number, start=True) for number in range(1, 7))
    outcome = play(Plan(1, (model,), requests, calm_ns=1_000 * MS, stop_ns=50 * MS, held=(4,)))
    assert outcome.violation is None
    first = outcome.history.of(BatchSealed)[0]
    assert (first.at_ns, first.requests) == (4 * MS, (1, 2, 3, 4))


def test_what_was_lost_with_its_slot_counts_as_issued() -> None:
    oldest = ModelPlan("m", max_batch_size=1, sequences=SequencesPlan(oldest=True, candidates=1))
    requests = tuple(
        RequestPlan(
            number, "m", 0, fault=Fault.SLOT if number == 66 else Fault.NONE, sequence=number, start=True, end=True
        )
        for number in (65, 66, 67)
    )
    outcome = play(Plan(1, (oldest,), requests, calm_ns=1_000 * MS, stop_ns=50 * MS, held=(2, 1)))
    assert outcome.violation is None
    assert [(batch.at_ns, batch.requests) for batch in outcome.history.of(BatchSealed)] == [(0, (67,))]


def test_a_server_that_stops_holds_nothing_back() -> None:
    requests = tuple(RequestPlan(number, "m", number * MS) for number in range(1, 4))
    outcome = play(Plan(1, (DYNAMIC,), requests, calm_ns=1_000 * MS, stop_ns=50 * MS, held=(4,)))
    assert outcome.violation is None
    assert [(batch.at_ns, batch.requests) for batch in outcome.history.of(BatchSealed)] == [(50 * MS, (1, 2, 3))]


def test_everything_else_in_a_plan_stays_what_it_was() -> None:
    plans = [draw_plan(seed) for seed in range(1, 60)]
    assert any(plan.held for plan in plans)
    for plan in plans:
        assert not plan.held or plan.stop_ns
        assert holding(replace(plan, held=())).held == plan.held
