"""Response caches that take time to answer, in swarm runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.simulations.events import AnswerFound, RequestAnswered, RequestQueued, RequestSubmitted
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.cache import DoorKeepsOrder
from trireme.simulations.plan import PLENTY_BYTES, ModelPlan, Plan, RequestPlan
from trireme.simulations.play import RunOutcome, play
from trireme.simulations.slow_caches import slowed
from trireme.simulations.swarm import draw_plan

MS = 1_000_000
MODEL = ModelPlan("m", fixed_ns=5 * MS, dynamic=True, cached=True, preserve_ordering=True)


def played(*requests: RequestPlan, **options: bool) -> RunOutcome:
    plan = Plan(1, (MODEL,), requests, calm_ns=1_000 * MS, cache_bytes=PLENTY_BYTES, cache_ns=MS)
    outcome = play(replace(plan, **options))
    assert outcome.violation is None
    assert [answer.error for answer in outcome.history.of(RequestAnswered) if answer.request != 9] == [""] * 3
    return outcome


def test_requests_wait_for_the_cache_at_the_door_and_keep_their_order() -> None:
    """The second call takes twice as long as the first, the third three times."""
    requests = [RequestPlan(number, "m", at_ns * MS, content=1) for number, at_ns in ((1, 10), (2, 40), (3, 40))]
    history = played(*requests).history
    assert [(event.request, event.at_ns) for event in history.of(RequestQueued)] == [(1, 11 * MS)]
    assert [event.request for event in history.of(AnswerFound)] == [2, 3]


def test_who_gives_up_at_the_door_is_counted() -> None:
    requests = [RequestPlan(number, "m", MS, give_up_ns=MS // 2 if number == 9 else 0) for number in (1, 2, 3, 9)]
    played(*requests)


def test_a_cache_that_fails_costs_no_request_its_answer() -> None:
    requests = [RequestPlan(number, "m", number * MS, content=1) for number in (1, 2, 3)]
    played(*requests, cache_fails=True)


def test_an_answer_that_was_held_for_its_turn_leaves_when_the_server_has_no_more_time() -> None:
    """It was to be kept, by a task that could not be started any more; the server ended with that error."""
    requests = [RequestPlan(1, "m", MS, extra_ns=1_000 * MS), RequestPlan(2, "m", 7 * MS)]
    plan = Plan(1, (replace(MODEL, instances=2),), tuple(requests), 1_000 * MS, cache_bytes=PLENTY_BYTES, cache_ns=MS)
    outcome = play(replace(plan, stop_ns=50 * MS, exit_timeout_s=0.0))
    assert outcome.violation is None
    assert [bool(answer.error) for answer in outcome.history.of(RequestAnswered)] == [True, False]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("m", "m", ["request 2 got past the door of 'm' before request 1"]), ("m~2", "m", [])],
    ids=["at one door", "at doors of two generations"],
)
def test_who_overtakes_at_a_door_is_noticed(first: str, second: str, expected: list[str]) -> None:
    found: list[str] = []
    rule = DoorKeepsOrder(lambda violation: found.append(violation.text), WorldState([MODEL.config()]))
    for number in (1, 2):
        rule.handlers()[RequestSubmitted](RequestSubmitted(0, number, "m", 1, 0, 0))
    rule.handlers()[AnswerFound](AnswerFound(1, 2, first))
    rule.handlers()[AnswerFound](AnswerFound(1, 1, second))
    assert found == expected


def test_everything_else_in_a_plan_stays_what_it_was() -> None:
    plans = [draw_plan(seed) for seed in range(1, 60)]
    assert any(plan.cache_ns for plan in plans)
    for plan in plans:
        assert slowed(replace(plan, cache_ns=0, cache_fails=False)) == plan
