"""How it becomes known that batches are over: alone, as of threads, or as of processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.simulations.events import BatchSealed, ReplyDelivered
from trireme.simulations.models import Ends
from trireme.simulations.placed import with_ends
from trireme.simulations.plan import ModelPlan, Plan, RequestPlan
from trireme.simulations.play import play
from trireme.simulations.swarm import draw_plan

MS = 1_000_000
SEEDS = range(1, 20)
INSTANCES = ["m_0", "m_1", "m_2"]


def answered(ends: Ends, seed: int = 1) -> list[str]:
    """By which instance answers come, whose batches end at the same time."""
    model = ModelPlan("m", instances=3, fixed_ns=10 * MS, ends=ends)
    requests = tuple([RequestPlan(number, "m", MS) for number in (1, 2, 3)])
    outcome = play(Plan(seed, (model,), requests, calm_ns=10**9))
    assert outcome.violation is None
    instances = {batch.requests: batch.instance for batch in outcome.history.of(BatchSealed)}
    return [instances[reply.request,] for reply in outcome.history.of(ReplyDelivered)]


def test_ends_of_processes_are_read_in_the_order_of_the_instances() -> None:
    assert any(answered(Ends.THREADS, seed) != INSTANCES for seed in SEEDS), "others come as they end"
    assert all(answered(Ends.PROCESSES, seed) == INSTANCES for seed in SEEDS)


@pytest.mark.parametrize("ends", list(Ends))
def test_however_ends_are_known_every_request_is_answered_once(ends: Ends) -> None:
    assert sorted(answered(ends)) == INSTANCES


def test_runs_draw_all_of_them_and_nothing_else_in_a_plan_changes() -> None:
    plans = [draw_plan(seed) for seed in range(1, 40)]
    assert {model.ends for plan in plans for model in plan.models} == set(Ends)
    for plan in plans:
        plain = replace(plan, models=tuple([replace(model, ends=Ends.ALONE) for model in plan.models]))
        assert with_ends(plain) == plan
