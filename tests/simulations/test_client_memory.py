"""Shared memory that clients of front ends register, in swarm runs."""

from __future__ import annotations

from dataclasses import replace

from trireme.simulations.client_memory import (
    CHANGED,
    GONE,
    INVALID,
    INVARIANT,
    NAMED,
    UNKNOWN,
    ClientSegment,
    with_client_memory,
)
from trireme.simulations.events import RequestAnswered
from trireme.simulations.front_ends import AGAIN
from trireme.simulations.front_ends_plan import NO_FRONT_ENDS, FrontEndsPlan
from trireme.simulations.plan import ModelPlan, Plan, RequestPlan
from trireme.simulations.plan_parts import RegionChange
from trireme.simulations.planted import planted
from trireme.simulations.play import RunOutcome, play
from trireme.simulations.regions import CUT, LOST, held_part
from trireme.simulations.swarm import draw_plan

MS = 1_000_000


def played(*changes: RegionChange, front_ends: FrontEndsPlan | None = None) -> RunOutcome:
    """Sixteen requests, one every 20 ms from 50 ms on, all with inputs in shared memory."""
    requests = tuple(RequestPlan(number, "m", (30 + 20 * number) * MS, region=True) for number in range(1, 17))
    front_ends = front_ends or FrontEndsPlan(count=2, bell_ns=2 * MS)
    plan = Plan(1, (ModelPlan("m", fixed_ns=2 * MS),), requests, calm_ns=500 * MS)
    return play(replace(plan, front_ends=front_ends, region_changes=changes))


def errors(outcome: RunOutcome) -> list[str]:
    return [answer.error for answer in outcome.history.of(RequestAnswered)]


def test_what_one_front_end_registers_the_requests_of_all_may_name() -> None:
    outcome = played(RegionChange(0))
    assert outcome.violation is None
    assert errors(outcome) == [""] * 16
    assert (outcome.counts[CHANGED], outcome.counts[NAMED]) == (1, 16)


def test_what_is_not_registered_any_more_is_unknown_to_all() -> None:
    outcome = played(RegionChange(0), RegionChange(145 * MS, 0.0), RegionChange(245 * MS))
    assert outcome.violation is None
    found = errors(outcome)
    assert found[:5] == found[11:] == [""] * 5
    assert all(UNKNOWN in error for error in found[6:10])
    assert outcome.counts[GONE] >= 4


def test_of_a_region_that_is_shorter_now_all_know_the_size() -> None:
    outcome = played(RegionChange(0), RegionChange(145 * MS, 0.5))
    assert outcome.violation is None
    assert [INVALID in error for error in errors(outcome)[9:]] == [True] * 7, "their places are in the other half"


def test_a_place_that_was_cut_short_costs_its_request() -> None:
    request = RequestPlan(CUT, "m", 50 * MS, region=True)
    plan = Plan(1, (ModelPlan("m"),), (request,), calm_ns=500 * MS, front_ends=FrontEndsPlan(count=1))
    (error,) = errors(play(replace(plan, region_changes=(RegionChange(0),))))
    assert LOST in error


def test_a_place_that_no_client_has_written_to_is_in_no_part() -> None:
    segment = ClientSegment()
    part = held_part(1, None)
    segment.parts[16] = part, 32
    assert [segment.part(start)[1] for start in (0, 15, 16, 31, 32)] == [None, None, part, part, None]


def test_a_front_end_that_is_started_again_knows_what_is_registered() -> None:
    outcome = played(RegionChange(0), front_ends=FrontEndsPlan(count=1, bell_ns=2 * MS, deaths_ns=(120 * MS,)))
    assert outcome.violation is None
    assert outcome.counts[AGAIN] == 1
    found = errors(outcome)
    assert len(found) > 8
    assert set(found) == {""}


def test_a_change_that_is_lost_with_its_front_end_may_have_been_made() -> None:
    front_ends = FrontEndsPlan(count=2, bell_ns=2 * MS, deaths_ns=(100 * MS,))
    outcome = played(RegionChange(0), RegionChange(99 * MS), front_ends=front_ends)
    assert outcome.violation is None
    assert any(UNKNOWN in error for error in errors(outcome))


def test_a_front_end_that_is_not_told_that_a_region_is_gone_is_noticed() -> None:
    with planted("region-never-gone"):
        violation = played(RegionChange(0), RegionChange(145 * MS, 0.0)).violation
    assert violation is not None
    assert violation.invariant == INVARIANT


def test_only_plans_with_front_ends_and_such_requests_are_changed() -> None:
    plans = [draw_plan(seed) for seed in range(1, 120)]
    changed = [plan for plan in plans if plan.region_changes]
    assert changed
    assert all(plan.front_ends.count and any(each.region for each in plan.requests) for plan in changed)
    for plan in changed:
        without = replace(plan, region_changes=())
        assert with_client_memory(without) == plan
        apart = replace(without, front_ends=NO_FRONT_ENDS)
        assert with_client_memory(apart) == apart
