"""Clients of front ends who ask what the server is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.simulations.front_ends_plan import FrontEndsPlan
from trireme.simulations.plan import ModelPlan, Plan, RequestPlan
from trireme.simulations.plan_parts import View, ViewPlan
from trireme.simulations.planted import planted
from trireme.simulations.play import play
from trireme.simulations.views import INVARIANT, VIEWED, viewed

MS = 1_000_000
REQUESTS = tuple(RequestPlan(number, "m", number * 5 * MS) for number in range(1, 11))
VIEWS = tuple(ViewPlan((1 + number) * 9 * MS, view, "m") for number in range(4) for view in View)
FRONT_ENDS = FrontEndsPlan(count=2, bell_ns=4 * MS)
PLAN = Plan(1, (ModelPlan("m"),), REQUESTS, calm_ns=50 * MS, views=VIEWS, front_ends=FRONT_ENDS)


@pytest.mark.parametrize("bug", ["", "result-of-another"])
def test_who_asks_hears_what_the_engine_says_to_that(bug: str) -> None:
    with planted(bug):
        outcome = play(PLAN)
    if bug:
        assert outcome.violation is not None
        assert outcome.violation.invariant == INVARIANT
    else:
        assert outcome.violation is None
        assert outcome.counts[VIEWED] == len(VIEWS)


def test_a_question_dies_with_its_front_end() -> None:
    outcome = play(replace(PLAN, front_ends=replace(FRONT_ENDS, count=1, deaths_ns=(28 * MS,))))
    assert outcome.violation is None
    assert 0 < outcome.counts[VIEWED] < len(VIEWS)


def test_nothing_is_asked_where_there_is_no_front_end() -> None:
    assert not viewed(replace(PLAN, views=(), front_ends=FrontEndsPlan())).views
    assert play(replace(PLAN, front_ends=FrontEndsPlan())).violation is None
