"""The invariants of decoupled answers, of models that change, and of sequences that go on, on histories by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from trireme.simulations.events import (
    AnswerGiven,
    AnswersTaken,
    CancelHeard,
    ChangeAsked,
    ChangeDone,
    Event,
    InstanceAttached,
    InstanceDetached,
    ModelStateChanged,
    ReplyDelivered,
    RequestAnswered,
    RequestQueued,
    RequestRefused,
    RequestSubmitted,
    SchedulerStopped,
)
from trireme.simulations.history import Recorder
from trireme.simulations.invariants import Violation
from trireme.simulations.invariants.answers import AnswersWhole
from trireme.simulations.invariants.base import Complain, Invariant
from trireme.simulations.invariants.changes import ChangesHurtNobody
from trireme.simulations.invariants.continuity import NO_START, SequencesGoOn
from trireme.simulations.invariants.serving import STOPPING
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.plan import ModelPlan, SequencesPlan


def complaint(make: Callable[[Complain, WorldState], Invariant], events: Sequence[Event]) -> str | None:
    """The first text that the invariant complains with."""
    found: list[Violation] = []
    state = WorldState([ModelPlan("m", sequences=SequencesPlan(idle_us=100)).config()])
    invariant = make(found.append, state)

    class Now:
        def now_ns(self) -> int:
            raise AssertionError("events have their times")

    recorder = Recorder(Now())
    recorder.listen(invariant.handlers())
    recorder.listen(state.handlers())
    for event in events:
        recorder.record(event)
    return found[0].text if found else None


def given(answer: int, final: bool = False) -> AnswerGiven:
    return AnswerGiven(1, 1, answer, final)


def delivered(answer: int, final: bool = False, error: str = "") -> ReplyDelivered:
    return ReplyDelivered(1, 1, error, final, False, answer)


def answers_whole(complain: Complain, _state: WorldState) -> AnswersWhole:
    return AnswersWhole(complain, {1: 2})


TAKEN = AnswersTaken(1, 1, (1,))
GOOD_ANSWERS: dict[str, list[Event]] = {
    "one by one": [given(1), delivered(1), TAKEN, given(2, True), delivered(2, True), AnswersTaken(1, 1, (2,))],
    "an end of its own": [given(1), delivered(1), given(0, True), TAKEN, delivered(0, True), RequestAnswered(1, 1, "")],
    "no answer": [given(0, True), delivered(0, True)],
    "many, to one who gave up": [given(1), given(2), CancelHeard(1, 1, True), given(3), given(4)],
    "a failure after some": [given(1), delivered(1), delivered(0, True, "broke")],
    "another model's only answer": [delivered(0, True)],
}
BAD_ANSWERS: dict[str, tuple[str, list[Event]]] = {
    "swapped": ("what the model gave next is (1, False)", [given(1), given(2), delivered(2)]),
    "lost before a failure": ("before what was given: [1]", [given(1), delivered(0, True, "broke")]),
    "ended too early": ("what the model gave next is (1, False)", [given(1), delivered(1, True)]),
    "from nowhere": ("what the model gave next is None", [given(1), delivered(1), delivered(1)]),
    "too many": ("3 answers to request 1 wait to be taken; 2 may", [given(1), given(2), given(3)]),
    "taken twice": ("took answer 1; it should be 0", [given(1), delivered(1), TAKEN, TAKEN]),
    "never taken": ("never had answers [1]", [given(1, True), delivered(1, True), RequestAnswered(1, 1, "")]),
}


@pytest.mark.parametrize("case", GOOD_ANSWERS)
def test_whole_answers_pass(case: str) -> None:
    assert complaint(answers_whole, GOOD_ANSWERS[case]) is None


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_broken_answers_are_complained_of(case: str) -> None:
    text, events = BAD_ANSWERS[case]
    assert text in (complaint(answers_whole, events) or "")


def state(name: str, entered: str) -> ModelStateChanged:
    return ModelStateChanged(1, name, 1, entered)


UP = [state("m", "LOADING"), InstanceAttached(0, "m", "m_0"), state("m", "READY")]
AGAIN = [ChangeAsked(1, "m", "reload"), state("m~2", "LOADING")]
REPLACED = [*AGAIN, state("m~2", "READY"), state("m", "UNLOADING"), ChangeDone(1, "m", "reload", "")]
UNLOADED = [ChangeAsked(1, "m", "unload"), state("m", "UNLOADING"), ChangeDone(1, "m", "unload", "")]
DROPPED = ReplyDelivered(1, 1, STOPPING, True, False)
GOOD_CHANGES: dict[str, list[Event]] = {
    "loaded again": [*REPLACED, state("m", "UNAVAILABLE")],
    "unloaded": UNLOADED,
    "a load that failed": [*AGAIN, state("m~2", "UNAVAILABLE"), ChangeDone(1, "m", "reload", "broke")],
}
BAD_CHANGES: dict[str, tuple[str, list[Event]]] = {
    "a request dropped": ("was accepted, and answered", [*REPLACED, DROPPED]),
    "unloaded before its successor is there": ("no change asked for that", [*AGAIN, state("m", "UNLOADING")]),
    "failed for no reason": ("no start had failed", [*AGAIN, ChangeDone(1, "m", "reload", "broke")]),
}


@pytest.mark.parametrize("case", GOOD_CHANGES)
def test_changes_that_hurt_no_request_pass(case: str) -> None:
    assert complaint(ChangesHurtNobody, [*UP, *GOOD_CHANGES[case]]) is None


@pytest.mark.parametrize("case", BAD_CHANGES)
def test_changes_that_hurt_are_complained_of(case: str) -> None:
    text, events = BAD_CHANGES[case]
    assert text in (complaint(ChangesHurtNobody, [*UP, *events]) or "")


def told(at_ns: int, request: int, *, start: bool = False, end: bool = False) -> list[Event]:
    return [
        RequestSubmitted(at_ns, request, "m", 1, 0, 0, 7, start, end),
        RequestQueued(at_ns, request, "m", 1, 0, -1),
    ]


def refused(at_ns: int) -> list[Event]:
    return [RequestSubmitted(at_ns, 9, "m", 1, 0, 0, 7), RequestRefused(at_ns, 9, f"request {NO_START}")]


BEGUN = [*UP, *told(1_000, 1, start=True), ReplyDelivered(1_000, 1, "", True, False)]
OVER: dict[str, list[Event]] = {
    "ended": [*BEGUN, *told(2_000, 2, end=True), *refused(3_000)],
    "silent for too long": [*BEGUN, *refused(101_000)],
    "cancelled": [*BEGUN, *told(2_000, 2), CancelHeard(2_000, 2, False), *refused(3_000)],
    "lost with its instance": [*BEGUN, InstanceDetached(2_000, "m", "m_0"), *refused(3_000)],
    "never begun": [*UP, *refused(3_000)],
    "begun before it is refused, and after it came": [
        *UP,
        RequestSubmitted(1_000, 9, "m", 1, 0, 0, 7),
        *told(1_000, 1, start=True),
        RequestRefused(1_000, 9, f"request {NO_START}"),
    ],
    "begun anew after it was silent for too long, before it is refused": [
        *BEGUN,
        RequestSubmitted(201_000, 9, "m", 1, 0, 0, 7),
        *told(201_000, 2, start=True),
        RequestRefused(201_000, 9, f"request {NO_START}"),
    ],
    "begun anew before the client hears of it": [
        *UP,
        *refused(1_000),
        *told(1_000, 1, start=True),
        RequestAnswered(1_000, 9, f"request {NO_START}"),
    ],
}


@pytest.mark.parametrize("case", OVER)
def test_a_sequence_that_is_over_may_be_refused(case: str) -> None:
    assert complaint(SequencesGoOn, OVER[case]) is None


@pytest.mark.parametrize("between", [[], [*REPLACED, SchedulerStopped(1, "m")]], ids=["as it is", "loaded again"])
def test_a_sequence_that_goes_on_may_not_be_refused(between: list[Event]) -> None:
    text = complaint(SequencesGoOn, [*BEGUN, *between, *told(50_000, 2), *refused(120_000)])
    assert "request 9 was refused, and 'm' has its sequence" in (text or "")
