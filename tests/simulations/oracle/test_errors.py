"""Errors without a cause are found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trireme.simulations.events import (
    BatchSealed,
    ChangeAsked,
    Event,
    FaultStruck,
    ReplyDelivered,
    RequestAbandoned,
    RequestAnswered,
    RequestIsolated,
    RequestSubmitted,
)
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.errors import ErrorsHaveCauses
from trireme.simulations.plan import Fault, ModelPlan

RAISED = "request 2 made 'm_0' raise"


def complaints(*events: Event, little_room: bool = False) -> Sequence[str]:
    found: list[str] = []
    state = WorldState([ModelPlan("m").config()])
    rule = ErrorsHaveCauses(lambda violation: found.append(violation.text), state, little_room)
    for event in events:
        for handlers in (rule.handlers(), state.handlers()):
            if type(event) in handlers:
                handlers[type(event)](event)
    return found


def answered(request: int, error: str) -> ReplyDelivered:
    return ReplyDelivered(0, request, error, True, False)


BATCH = BatchSealed(0, 1, "m", 1, "m_0", "full", (1, 2), 2)
STRUCK = FaultStruck(0, Fault.RAISE.value, "m", 2)


IN_A_ROW = "instance '{0}' died 1 times in a row; last: instance '{0}' gave no answer within 1 s and was given up"


@pytest.mark.parametrize(
    "error",
    [
        *("", "Cancelled", "Request timeout expired", RAISED, f"in ensemble 'e', {RAISED}"),
        IN_A_ROW.format("m_1"),  # it was to be executed again, and its model given up for another instance
    ],
)
def test_what_has_a_cause_is_fine(error: str) -> None:
    assert complaints(BATCH, STRUCK, answered(1, error)) == []


@pytest.mark.parametrize(
    "events",
    [
        (BATCH, answered(1, RAISED)),
        (BATCH, STRUCK, answered(3, RAISED)),
        (BATCH, STRUCK, answered(1, "the backend of 'm_0' finished the batch without answering this request")),
        (BATCH, STRUCK, answered(1, "instance 'm_1' gave no answer within 1 s and was given up")),
        (BATCH, STRUCK, answered(1, IN_A_ROW.format("n_0"))),
        (BATCH, STRUCK, answered(1, "TypeError: 'Tensor' object is not iterable")),
    ],
)
def test_what_has_none_is_not(events: tuple[Event, ...]) -> None:
    assert len(complaints(*events)) == 1


def test_a_refusal_is_true() -> None:
    asked = RequestSubmitted(0, 1, "m", 1, 0, 0)
    assert complaints(asked, RequestAnswered(0, 1, "inference request batch-size must be <= 8 for 'm'"))
    full = RequestAnswered(0, 1, "model 'm' has too many requests in flight: 1 requests, 16 bytes; try again later")
    assert complaints(asked, full)
    assert not complaints(asked, full, little_room=True)


def test_who_has_gone_is_refused_for_that_and_nobody_else() -> None:
    asked, refused = RequestSubmitted(0, 1, "m", 1, 0, 0), RequestAnswered(0, 1, "Request cancelled")
    assert not complaints(asked, RequestAbandoned(0, 1), refused)
    assert complaints(asked, RequestAbandoned(0, 2), refused)


def test_who_was_to_be_executed_again_is_never_told_that_an_instance_failed_to_start() -> None:
    """It is started until it starts, and if it is removed meanwhile another one executes the request."""
    isolated, resized = RequestIsolated(0, 1, "m", 1), ChangeAsked(0, "m", "resize to 1")
    assert complaints(BATCH, isolated, resized, answered(1, "start 5 of 'm_0' fails"))
