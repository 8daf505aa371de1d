"""Requests that end processes, in swarm runs."""

from __future__ import annotations

from dataclasses import replace

from trireme.simulations.coverage import INHERITED
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
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.isolation import IsolatedAlone
from trireme.simulations.oracle.observed import ToldLeaving, ToldSeated, ToldSeatLost, ToldSettled
from trireme.simulations.plan import Change, ChangePlan, Fault, ModelPlan, Plan, RequestPlan
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


def test_what_a_removed_instance_was_to_execute_again_is_executed_by_another() -> None:
    model = ModelPlan("m", instances=2, fixed_ns=5 * MS, dynamic=True, delay_us=1_000)
    killed = [RequestPlan(number, "m", 0, fault=Fault.KILL if number == 3 else Fault.NONE) for number in range(1, 17)]
    change = ChangePlan(10 * MS, "m", Change.RESIZE, 1)
    outcome = play(Plan(1, (model,), tuple(killed), changes=(change,), calm_ns=1_000 * MS))
    assert outcome.violation is None
    assert outcome.counts[INHERITED] == 1
    answers = {answer.request: answer.error for answer in outcome.history.of(RequestAnswered)}
    assert [number for number, error in answers.items() if error] == [3]


def complaints(*events: object) -> int:
    """Of instances `m_0` and `m_1`, in seats 1 and 2."""
    found: list[str] = []
    rule = IsolatedAlone(lambda violation: found.append(violation.text), WorldState([ModelPlan("m").config()]))
    for event in (ToldSeated("m", "m_0", 1), ToldSeated("m", "m_1", 2), *events):
        rule.handlers()[type(event)](event)
    rule.instant_over(0)
    return len(found)


def isolated(*requests: int) -> list[Event]:
    return [RequestIsolated(0, number, "m", 1) for number in requests]


def sealed(*requests: int, instance: str = "m_0") -> Event:
    return BatchSealed(0, 1, "m", 1, instance, "no batching", requests, 1)


def answered(*requests: int) -> list[Event]:
    return [ReplyDelivered(0, number, "", True, False) for number in requests]


def test_what_goes_first_or_in_company_is_noticed() -> None:
    assert not complaints(*isolated(1, 2), sealed(1), sealed(2), sealed(3), *answered(1, 2))
    assert complaints(*isolated(1, 2), sealed(3), sealed(1), sealed(2))
    assert complaints(*isolated(1, 2), sealed(1, 2))
    assert complaints(*isolated(1), sealed(1, instance="m_1"))


def test_who_inherits_executes_first_what_it_has_inherited() -> None:
    lost = ToldLeaving("m", "m_0"), ToldSeatLost("m", 1, (2,))
    assert not complaints(*isolated(1, 2), *lost, sealed(1, instance="m_1"), sealed(2, instance="m_1"))
    assert complaints(*isolated(1, 2), *lost, sealed(3, instance="m_1"))
    assert complaints(*isolated(1), *lost, RequestRejected(1, 1, "request 1 ended the process of 'm_0'"))
    assert not complaints(*isolated(1), *lost, RequestRejected(1, 1, "Cancelled"))


def test_of_two_heirs_the_one_that_holds_least_is_right() -> None:
    events = ToldSeated("m", "m_2", 3), sealed(9, instance="m_1"), *isolated(1), ToldSeatLost("m", 1, (2, 3))
    assert not complaints(*events, sealed(1, instance="m_2"))
    assert complaints(*events, sealed(1, instance="m_1"))
    over = ToldSettled(0.0, "m", (9,), ())
    assert not complaints(*events[:2], over, *events[2:], sealed(1, instance="m_1"))


def test_what_is_given_up_although_others_stay_is_noticed() -> None:
    rejected = RequestRejected(1, 1, "request 1 ended the process of 'm_0'")
    lost = *isolated(1), ToldLeaving("m", "m_0"), ToldSeatLost("m", 1, ())
    assert complaints(*lost, rejected)
    assert not complaints(*lost, ToldLeaving("m", "m_1"), rejected), "it hears that at the same instant"


def test_who_is_rejected_is_not_waited_for_even_if_the_answer_has_to_wait_for_its_turn() -> None:
    assert not complaints(*isolated(1, 2), RequestRejected(1, 2, "Cancelled"), sealed(1), sealed(3), *answered(1, 2))


def test_everything_else_in_a_plan_stays_what_it_was() -> None:
    plans = [draw_plan(seed) for seed in range(1, 40)]
    assert any(request.fault is Fault.KILL for plan in plans for request in plan.requests)
    for plan in plans:
        healed = [replace(each, fault=Fault.NONE) if each.fault is Fault.KILL else each for each in plan.requests]
        assert killing(replace(plan, requests=tuple(healed))) == plan
