"""Requests of simulated clients that are traced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.simulations.front_ends_plan import FrontEndsPlan
from trireme.simulations.plan import Manner, ModelPlan, Plan, RequestPlan, StepPlan
from trireme.simulations.planted import planted
from trireme.simulations.play import play
from trireme.simulations.traced import INVARIANT, TRACED, TRACED_BY_FRONT_ENDS

MS = 1_000_000
MODELS = ModelPlan("m"), ModelPlan("e", steps=(StepPlan("m"), StepPlan("m", (1,)), StepPlan("m", (2,))))
REQUESTS = tuple(RequestPlan(number, "me"[number % 2], number * 5 * MS) for number in range(1, 13))
PLAN = Plan(1, MODELS, REQUESTS, calm_ns=50 * MS, trace_rate=2)
BY_FRONT_ENDS = replace(PLAN, front_ends=FrontEndsPlan(count=2, bell_ns=4 * MS))


@pytest.mark.parametrize(("rate", "most", "traced"), [(1, -1, 12), (2, -1, 6), (5, -1, 2), (1, 4, 4)])
@pytest.mark.parametrize("plan", [PLAN, BY_FRONT_ENDS], ids=["direct", "by front ends"])
def test_one_in_so_many_requests_is_traced(plan: Plan, rate: int, most: int, traced: int) -> None:
    outcome = play(replace(plan, trace_rate=rate, trace_count=most))
    assert outcome.violation is None
    assert outcome.counts[TRACED] == traced
    assert outcome.counts[TRACED_BY_FRONT_ENDS] == traced * bool(plan.front_ends.count)


@pytest.mark.parametrize("bug", ["notes-lost", "steps-untold"])
def test_what_is_not_told_is_missed(bug: str) -> None:
    with planted(bug):
        violation = play(replace(BY_FRONT_ENDS, trace_rate=1)).violation
    assert violation is not None
    assert violation.invariant == INVARIANT


def test_traces_come_back_when_their_front_end_dies() -> None:
    front_ends = replace(BY_FRONT_ENDS.front_ends, count=1, deaths_ns=(23 * MS,))
    assert play(replace(BY_FRONT_ENDS, trace_rate=1, front_ends=front_ends)).violation is None


def test_a_client_that_reads_on_when_the_server_has_stopped_still_has_its_trace() -> None:
    request = RequestPlan(1, "m", 0, manner=Manner.WAITS, answers=3, pause_ns=50 * MS)
    plan = Plan(1, (ModelPlan("m", decoupled=True),), (request,), calm_ns=0, stop_ns=140 * MS, trace_rate=1)
    assert play(plan).violation is None
