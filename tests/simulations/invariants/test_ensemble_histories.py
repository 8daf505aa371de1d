"""Histories of an ensemble, written by hand: what must be noticed, and what must not."""

from __future__ import annotations

import pytest

from trireme.simulations.events import (
    CancelHeard,
    Event,
    ReplyDelivered,
    RequestAnswered,
    RequestDropped,
    RequestQueued,
    ServerStopping,
    StepSubmitted,
)
from trireme.simulations.graphs import Graphs, step_number
from trireme.simulations.invariants.base import Violation
from trireme.simulations.invariants.ensembles import DrainedInOrder, StepsOnce
from trireme.simulations.plan import ModelPlan, Plan, StepPlan

MODELS = (
    ModelPlan("one"),
    ModelPlan("two", inputs=2),
    ModelPlan("e", steps=(StepPlan("one"), StepPlan("one"), StepPlan("two", (1, 2))), max_inflight=1),
    ModelPlan("many", decoupled=True),
    ModelPlan("d", steps=(StepPlan("many"), StepPlan("one", (1,)))),
)
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def started(request: int = 1) -> Event:
    return RequestQueued(0, request, "e", 1, 0, -1)


def step(number: int, request: int = 1) -> Event:
    return StepSubmitted(0, step_number(request, number), request, number)


def done(number: int, error: str = "", request: int = 1) -> Event:
    return RequestAnswered(0, step_number(request, number), error)


def over(error: str = "", request: int = 1) -> Event:
    return ReplyDelivered(0, request, error, True, False)


def watched(*events: Event) -> str:
    """The first complaint about a history, "" for none; the instant is over where None stands."""
    complaints: list[Violation] = []
    steps = StepsOnce(complaints.append, Graphs(Plan(1, MODELS, (), 0)))
    for event in events:
        handler = steps.handlers().get(type(event))
        if handler is not None:
            handler(event)
    steps.instant_over(0)
    return complaints[0].text if complaints else ""


BOTH = (started(), step(1), step(2))
WELL = (*BOTH, done(1), done(2), step(3), done(3), over())


@pytest.mark.parametrize(
    "events",
    [
        WELL,
        BOTH,
        (*BOTH, done(1)),
        (*BOTH, done(1, "broken"), done(2), over("broken")),
        (*BOTH, done(1, "broken")),
        (*BOTH, CancelHeard(0, 1, False), done(1, "cancelled"), done(2, "cancelled"), over("cancelled")),
        (*BOTH, RequestDropped(0, 1), over("stopping"), done(1), done(2)),
        (*BOTH, started(2)),
        (*BOTH, started(2), done(1), step(1, 2), done(2), step(3), step(2, 2)),
    ],
)
def test_what_is_right_is_left_alone(events: tuple[Event, ...]) -> None:
    assert watched(*events) == ""


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ((started(), step(1)), "step 2 of request 1 could be carried out, and is not"),
        ((*BOTH, step(1)), "step 1 of request 1 was sent to its member again"),
        ((*BOTH, done(1), step(3)), "step 3 of request 1 was sent to its member before all that it takes was there"),
        ((*BOTH, done(1, "x"), step(3)), "step 3 of request 1 was sent to its member although the request is over"),
        ((*BOTH, CancelHeard(0, 1, False), step(3)), "step 3 of request 1 was sent to its member although the"),
        ((*WELL, step(1)), "step 1 of request 1 was sent to its member, but the request is not open"),
        ((*BOTH, done(1), done(2, "x"), done(1)), "request 1 waits for nothing any more, and is not answered"),
        ((*BOTH, done(1, "x"), over("x")), "request 1 was answered while step 2 is in flight"),
        ((*BOTH, done(1), done(2), over()), "request 1 was answered well, without step 3"),
        ((*BOTH, done(1), done(2), over("x")), "request 1 was answered 'x', and no step had failed"),
        ((*BOTH, started(2), step(1, 2)), "step 1 of request 2 is one of 2 in flight; 1 may be"),
        ((*BOTH, started(2), done(1)), "step 1 of request 2 could be carried out, and is not"),
    ],
)
def test_what_is_wrong_is_noticed(events: tuple[Event, ...], text: str) -> None:
    assert watched(*events).startswith(text)


# An ensemble of which one member, the first step, answers any number of times.

BEGUN: tuple[Event, ...] = (RequestQueued(0, 1, "d", 1, 0, -1), StepSubmitted(0, step_number(1, 1), 1, 1))


def said(answer: int, final: bool = False) -> Event:
    """The first step has an answer; with 0, an end."""
    return ReplyDelivered(0, step_number(1, 1), "", final, False, answer)


ENDED = (said(0, True), RequestAnswered(0, step_number(1, 1), ""))


def follows(answer: int) -> Event:
    """The second step is sent to its member, for this answer of the first one."""
    return StepSubmitted(0, step_number(1, 2, (answer - 1,)), 1, 2, (answer - 1,))


def followed(answer: int, error: str = "") -> Event:
    return RequestAnswered(0, step_number(1, 2, (answer - 1,)), error)


def told(answer: int, final: bool = False) -> Event:
    """The ensemble has an answer for its client."""
    return ReplyDelivered(0, 1, "", final, False, answer)


TWICE = (*BEGUN, said(1), follows(1), said(2), follows(2))


@pytest.mark.parametrize(
    "events",
    [
        BEGUN,
        (*BEGUN, *ENDED, told(0, True)),
        (*TWICE, *ENDED, followed(2), told(1), followed(1), told(2, True)),
        (*TWICE, followed(1), told(1), followed(2, "x"), *ENDED, over("x")),
    ],
)
def test_answers_of_a_decoupled_member_are_followed_one_by_one(events: tuple[Event, ...]) -> None:
    assert watched(*events) == ""


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ((*BEGUN, said(1), said(2), follows(2)), "step 2 for answer 1 of request 1 could be carried out, and is not"),
        ((*TWICE, follows(2)), "step 2 for answer 2 of request 1 was sent to its member again"),
        ((*BEGUN, said(1), follows(1), follows(2)), "step 2 for answer 2 of request 1 was sent to its member before"),
        ((*TWICE, followed(2)), "answer 1 to request 1 is there, and is not given"),
        ((*TWICE, followed(2), told(1), told(2)), "answer 2 to request 1 was given; 1 are due"),
        ((*TWICE, *ENDED, followed(2), followed(1), told(1, True)), "request 1 was answered 1 times, instead of 2"),
        ((*TWICE, *ENDED, followed(2), told(1, True)), "request 1 was answered while step 2 for answer 1 is in flight"),
        ((*BEGUN, *ENDED), "request 1 waits for nothing any more, and is not answered"),
    ],
)
def test_what_is_wrong_with_answers_to_answers_is_noticed(events: tuple[Event, ...], text: str) -> None:
    assert watched(*events).startswith(text)


@pytest.mark.parametrize(("at_ns", "complaints"), [(98_000, 1), (100_000, 0)])
def test_members_refuse_nothing_while_there_is_time(at_ns: int, complaints: int) -> None:
    found: list[Violation] = []
    invariant = DrainedInOrder(found.append)
    for event in (ServerStopping(0, 100_000), RequestAnswered(at_ns, step_number(1, 1), STOPPING)):
        invariant.handlers()[type(event)](event)
    assert len(found) == complaints
