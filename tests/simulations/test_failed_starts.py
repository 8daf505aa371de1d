"""Servers that are started in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.simulations.failed_starts import INVARIANT, NOT_STARTED
from trireme.simulations.plan import ModelPlan, Plan, RequestPlan, StepPlan
from trireme.simulations.planted import planted
from trireme.simulations.play import play
from trireme.simulations.shrink import Shrinker

MS = 1_000_000
MODELS = ModelPlan("m", instances=3), ModelPlan("n"), ModelPlan("e", steps=(StepPlan("m"), StepPlan("n", (1,))))
PLAN = Plan(1, MODELS, (RequestPlan(1, "e", 0),), calm_ns=MS, fails_to_start="m", first_failing=3)


@pytest.mark.parametrize("load_ns", [0, 5 * MS])
@pytest.mark.parametrize("first_failing", [1, 3])
def test_a_server_that_cannot_start_leaves_nothing(load_ns: int, first_failing: int) -> None:
    outcome = play(replace(PLAN, load_ns=load_ns, first_failing=first_failing, load_retries=1))
    assert outcome.violation is None
    assert outcome.counts[NOT_STARTED] == 1
    assert outcome.requests == 1, "then it was started again, and served"


def test_one_that_starts_all_the_same_is_noticed() -> None:
    with planted("start-taken-for-good"):
        outcome = play(PLAN)
    assert outcome.violation is not None
    assert outcome.violation.invariant == INVARIANT


def test_what_has_nothing_to_do_with_the_start_is_left_out() -> None:
    plan = Shrinker(PLAN, lambda _plan: True).shrink()
    assert (len(plan.models), plan.fails_to_start) == (1, "")
