"""How requests get in, in swarm runs: by leases, with stale descriptions, after asking for room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.simulations.entries import ARRIVING, entered
from trireme.simulations.events import ExecutionStarted, RequestAnswered, RequestRefused, RequestSubmitted
from trireme.simulations.plan import Manner, ModelPlan, Plan, PolicyPlan, RequestPlan
from trireme.simulations.play import RunOutcome, play
from trireme.simulations.swarm import draw_plan
from trireme.simulations.workloads import WayIn

MS = 1_000_000


def played(*requests: RequestPlan, model: ModelPlan | None = None, **options: int) -> RunOutcome:
    plan = Plan(1, (model or ModelPlan("m", fixed_ns=5 * MS),), requests, calm_ns=1_000 * MS)
    outcome = play(replace(plan, **options))
    assert outcome.violation is None
    return outcome


@pytest.mark.parametrize("manner", [Manner.LISTENS, Manner.WAITS])
@pytest.mark.parametrize("entry", ARRIVING)
def test_a_body_that_arrives_in_parts_is_a_request_when_all_of_it_is_there(entry: WayIn, manner: Manner) -> None:
    requests = [RequestPlan(number, "m", 0, manner=manner, entry=entry, arrival_ns=3 * MS) for number in (1, 2, 3)]
    history = played(*requests).history
    assert [event.at_ns for event in history.of(RequestSubmitted)] == [3 * MS] * 3
    assert [answer.error for answer in history.of(RequestAnswered)] == [""] * 3


def test_bodies_wait_until_there_is_room_for_them() -> None:
    requests = [RequestPlan(number, "m", 0, entry=WayIn.UNNAMED, arrival_ns=3 * MS) for number in (1, 2, 3, 4)]
    history = played(*requests, max_inflight_bytes=24).history
    assert len({event.at_ns for event in history.of(RequestSubmitted)}) > 1
    assert len(history.of(ExecutionStarted)) >= 2


def test_who_asks_first_is_told_that_the_queue_is_full() -> None:
    model = ModelPlan("m", max_batch_size=1, fixed_ns=5 * MS, dynamic=True, policies=(PolicyPlan(max_queue_size=1),))
    requests = [RequestPlan(number, "m", number * MS, entry=WayIn.ASKED) for number in (1, 2, 3)]
    (refused,) = played(*requests, model=model).history.of(RequestRefused)
    assert (refused.request, "Exceeds maximum queue size" in refused.error) == (3, True)


def test_a_server_that_stops_says_so_to_those_who_ask_first() -> None:
    """It said that it did not know the model."""
    requests = [RequestPlan(number, "m", number * 2 * MS, entry=WayIn.ASKED) for number in (1, 2, 3)]
    history = played(*requests, stop_ns=5 * MS).history
    assert "Server is stopping" in {answer.request: answer for answer in history.of(RequestAnswered)}[3].error


def test_everything_else_in_a_plan_stays_what_it_was() -> None:
    plans = [draw_plan(seed) for seed in range(1, 40)]
    assert {request.entry for plan in plans for request in plan.requests} == set(WayIn)
    for plan in plans:
        if any(request.entry is WayIn.INNER for request in plan.requests):
            continue
        requests = tuple([replace(request, entry=WayIn.WHOLE, arrival_ns=0) for request in plan.requests])
        assert entered(replace(plan, requests=requests, max_inflight_bytes=0)) == plan
