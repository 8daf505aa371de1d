"""Plans whose clients come by front ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.front_ends.borrower import NO_DESCRIPTOR
from trireme.simulations.events import RequestAbandoned, RequestAnswered
from trireme.simulations.following import EVERY, FOLLOWED, IN_TIME
from trireme.simulations.front_ends import AGAIN, BY_FRONT_ENDS, FORSAKEN, KILLED, NO_DESCRIPTOR_LEFT, SEGMENT
from trireme.simulations.front_ends_plan import FrontEndsPlan
from trireme.simulations.plan import Manner, ModelPlan, Plan, RequestPlan
from trireme.simulations.planted import planted
from trireme.simulations.play import play

MS = 1_000_000

REQUESTS = tuple(RequestPlan(number, "m", number * 5 * MS) for number in range(1, 41))
PLAN = Plan(1, (ModelPlan("m", fixed_ns=12 * MS),), REQUESTS, calm_ns=200 * MS)


@pytest.mark.parametrize(
    "front_ends",
    [
        FrontEndsPlan(count=1),
        FrontEndsPlan(count=3, bell_ns=30 * MS, spurious=2),
        FrontEndsPlan(count=2, capacity=1 << 13, inline_bytes=0, bell_ns=10 * MS),
        FrontEndsPlan(count=2, stuck_ns=20 * MS, stuck_for_ns=100 * MS),
    ],
)
def test_all_requests_are_answered(front_ends: FrontEndsPlan) -> None:
    outcome = play(replace(PLAN, front_ends=front_ends))
    assert outcome.violation is None
    answered = outcome.history.of(RequestAnswered)
    assert sorted(event.request for event in answered) == list(range(1, 41))
    assert not [event for event in answered if event.error]
    assert outcome.counts[BY_FRONT_ENDS] == 1
    assert bool(outcome.counts[SEGMENT]) == (front_ends.inline_bytes == 0)


def test_what_a_front_end_had_is_lost_with_it_and_another_one_comes() -> None:
    front_ends = FrontEndsPlan(count=1, bell_ns=MS, deaths_ns=(51 * MS,))
    outcome = play(replace(PLAN, front_ends=front_ends))
    assert outcome.violation is None
    counts = outcome.counts
    assert (counts[KILLED], counts[AGAIN]) == (1, 1)
    assert counts[FORSAKEN], "some were being executed"
    lost = {event.request for event in outcome.history.of(RequestAbandoned)}
    answered = {event.request for event in outcome.history.of(RequestAnswered) if not event.error}
    assert lost
    assert not lost & answered
    assert max(answered) == 40


def test_requests_whose_segments_find_no_descriptor_are_refused_and_others_go_on() -> None:
    outcome = play(replace(PLAN, front_ends=FrontEndsPlan(count=1, inline_bytes=0, bell_ns=MS, short=2)))
    assert outcome.violation is None
    answered = outcome.history.of(RequestAnswered)
    assert sorted(event.request for event in answered) == list(range(1, 41))
    refused = [event for event in answered if event.error]
    assert {event.error for event in refused} == {NO_DESCRIPTOR}
    assert len(refused) == outcome.counts[NO_DESCRIPTOR_LEFT] < 40
    assert not outcome.counts[AGAIN]


@pytest.mark.parametrize("bug", ["", "followed-unheard"])
def test_who_follows_a_request_hears_when_it_is_accepted(bug: str) -> None:
    with planted(bug):
        outcome = play(replace(PLAN, front_ends=FrontEndsPlan(count=1, bell_ns=MS // 100)))
    if bug:
        assert outcome.violation is not None
        assert outcome.violation.invariant == IN_TIME
    else:
        assert outcome.violation is None
        assert outcome.counts[FOLLOWED] == len(REQUESTS) // EVERY


def test_two_runs_of_a_plan_are_alike() -> None:
    plan = replace(PLAN, front_ends=FrontEndsPlan(count=2, bell_ns=3 * MS, spurious=3, deaths_ns=(60 * MS,)))
    assert play(plan).history.digest() == play(plan).history.digest()


def test_segments_of_answers_that_clients_keep_are_not_left_behind() -> None:
    requests = tuple(RequestPlan(number, "m", number * 5 * MS, manner=Manner.WAITS) for number in range(1, 101))
    plan = replace(PLAN, requests=requests, models=(ModelPlan("m", fixed_ns=MS),), calm_ns=600 * MS)
    outcome = play(replace(plan, front_ends=FrontEndsPlan(count=1, inline_bytes=0)))
    assert outcome.violation is None
    assert outcome.counts[SEGMENT] >= 100


def test_segments_that_are_given_back_just_now_are_not_left_behind() -> None:
    """By a front end that looks every five seconds what is not needed any more, while bells take their time."""
    requests = (*REQUESTS[:19], RequestPlan(20, "m", 3_400 * MS))
    plan = replace(PLAN, requests=requests, models=(ModelPlan("m", fixed_ns=MS),), calm_ns=600 * MS)
    outcome = play(replace(plan, front_ends=FrontEndsPlan(count=1, inline_bytes=0, bell_ns=80 * MS)))
    assert outcome.violation is None
