"""Requests that end processes, in swarm runs."""

from __future__ import annotations

from dataclasses import replace

from trireme.simulations.dying import killing
from trireme.simulations.events import (
    BatchSealed,
    Event,
    InstanceDetached,
    ReplyDelivered,
    RequestAnswered,
    RequestIsolated,
    RequestRejected,
)
from trireme.simulations.invariants.serving import STOPPING
from trireme.simulations.oracle.isolation import IsolatedAlone
from trireme.simulations.plan import Fault, ModelPlan, Plan, RequestPlan
from trireme.simulations.play import play
from trireme.simulations.swarm import draw_plan

MS = 1_000_000


def test_who_was_in_the_batch_is_executed_again_and_only_the_killer_fails() -> None:
    model = ModelPlan("m", fixed_ns=5 * MS, dynamic=True, delay_us=1_000)
    requests = [RequestPlan(number, "m", 0, fault=Fault.KILL if number == 3 else Fault.NONE) for number in (1, 2, 3, 4)]
    outcome = play(Plan(1, (model,), tuple(requests), calm_ns=1_000 * MS))
    assert outcome.violation is None
    assert [event.request for event in outcome.history.of(RequestIsolated)] == [1, 2, 3, 4]
    assert len(outcome.history.of(InstanceDetached)) >= 2
    answers = {answer.request: answer.error for answer in outcome.history.of(RequestAnswered)}
    assert [number for number, error in answers.items() if error] == [3]
    assert "died of it, too" in answers[3]


def test_who_has_no_more_time_to_be_executed_alone_is_told_that_and_no_more() -> None:
    """The error went on to say that the instance had died of the request."""
    requests = [RequestPlan(1, "m", 0, fault=Fault.KILL, extra_ns=20 * MS), RequestPlan(2, "m", 0)]
    model = ModelPlan("m", dynamic=True, delay_us=1_000)
    outcome = play(Plan(1, (model,), tuple(requests), calm_ns=1_000 * MS, stop_ns=25 * MS, exit_timeout_s=0.12))
    assert outcome.violation is None
    assert [event.request for event in outcome.history.of(RequestIsolated)] == [1, 2]
    assert len(outcome.history.of(BatchSealed)) == 2, "one of them was being executed again"
    assert {answer.error for answer in outcome.history.of(RequestAnswered)} == {STOPPING}


def test_what_goes_first_or_in_company_is_noticed() -> None:
    def complaints(*requests: tuple[int, ...]) -> int:
        found: list[str] = []
        rule = IsolatedAlone(lambda violation: found.append(violation.text))
        events: list[Event] = [RequestIsolated(0, number, "m", "m_0") for number in (1, 2)]
        events += [BatchSealed(0, index, "m", 1, "m_0", "no batching", each, 1) for index, each in enumerate(requests)]
        events += [ReplyDelivered(0, number, "", True, False) for number in (1, 2)]
        for event in events:
            rule.handlers()[type(event)](event)
        return len(found)

    assert not complaints((1,), (2,), (3,))
    assert complaints((3,), (1,), (2,))
    assert complaints((1, 2))


def test_who_is_rejected_is_not_waited_for_even_if_the_answer_has_to_wait_for_its_turn() -> None:
    found: list[str] = []
    rule = IsolatedAlone(lambda violation: found.append(violation.text))
    for event in (
        *(RequestIsolated(0, number, "m", "m_0") for number in (1, 2)),
        RequestRejected(1, 2, "Cancelled"),
        BatchSealed(2, 1, "m", 1, "m_0", "no batching", (1,), 1),
        BatchSealed(3, 2, "m", 1, "m_0", "instance idle", (3,), 1),
        *(ReplyDelivered(3, number, "", True, False) for number in (1, 2)),
    ):
        rule.handlers()[type(event)](event)
    assert found == []


def test_everything_else_in_a_plan_stays_what_it_was() -> None:
    plans = [draw_plan(seed) for seed in range(1, 40)]
    assert any(request.fault is Fault.KILL for plan in plans for request in plan.requests)
    for plan in plans:
        healed = [replace(each, fault=Fault.NONE) if each.fault is Fault.KILL else each for each in plan.requests]
        assert killing(replace(plan, requests=tuple(healed))) == plan
