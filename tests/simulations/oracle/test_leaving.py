"""Answers leave when they may: histories that keep to that, and those that do not."""

from __future__ import annotations

import pytest
from oracle_tape import Tape

from trireme.engine.config.model import DynamicBatching, ModelConfig
from trireme.engine.job import SealReason
from trireme.simulations.events import ReplyDelivered
from trireme.simulations.oracle import leaving
from trireme.simulations.oracle.leaving import AnswersLeave
from trireme.simulations.oracle.observed import Admitted, CoreMade, Dispatched, QueueDropped, Rejected, ToldSettled
from trireme.simulations.plan import ModelPlan, SequencesPlan

ANY = CoreMade("m", ModelConfig("m", dynamic_batching=DynamicBatching()))
ORDERED = CoreMade("m", ModelConfig("m", dynamic_batching=DynamicBatching(preserve_ordering=True)))
DECOUPLED = CoreMade("m", ModelConfig("m", decoupled=True))


OLDEST = CoreMade("m", ModelPlan("m", preserve_ordering=True, sequences=SequencesPlan(oldest=True)).config())


def sent(instance: int, *requests: int) -> Dispatched:
    return Dispatched(0.0, "m", instance, requests, SealReason.IDLE)


def asked(*requests: int) -> list[object]:
    return [Admitted(0.0, "m", request, 1, 0, 0, {}) for request in requests]


def over(*requests: int, again: tuple[int, ...] = ()) -> ToldSettled:
    return ToldSettled(0.0, "m", requests, again)


def answer(*requests: int) -> list[object]:
    return [ReplyDelivered(0, request, "", True, False) for request in requests]


GOOD: dict[str, list[object]] = {
    "at once": [ANY, *asked(1, 2), over(2), *answer(2), 1, over(1), *answer(1), 2],
    "in turn": [ORDERED, *asked(1, 2, 3), over(2), 1, over(1), *answer(1, 2), 2, over(3), *answer(3), 3],
    "rejected in turn": [ORDERED, *asked(1, 2), Rejected(0, "m", 2, ""), 1, over(1), *answer(1, 2), 2],
    "given back": [ORDERED, *asked(1, 2), QueueDropped("m", (1, 2)), *answer(1, 2), 1],
    "executed again": [ANY, *asked(1), over(1, again=(1,)), 1, over(0, 1), *answer(1), 2],
    "in turn on its instance": [
        OLDEST,
        *asked(1, 2, 3),
        sent(1, 1, 2),
        sent(2, 3),
        over(3),
        *answer(3),
        1,
        over(1, 2),
        *answer(1, 2),
        2,
    ],
    "rejected, and in no turn": [OLDEST, *asked(1, 2), sent(1, 1), Rejected(0, "m", 2, ""), *answer(2), 1],
    "as a decoupled model likes": [DECOUPLED, *asked(1), *answer(1), over(1), 1],
}

BAD: dict[str, tuple[str, list[object]]] = {
    "held back": (leaving.AT_ONCE, [ANY, *asked(1, 2), over(2), 1]),
    "held back by one that came later": (leaving.IN_TURN, [ORDERED, *asked(1, 2), over(1), 1]),
    "held back after its turn has come": (leaving.IN_TURN, [ORDERED, *asked(1, 2), over(2), 1, over(1), *answer(1), 2]),
    "before its turn": (leaving.IN_TURN, [ORDERED, *asked(1, 2), over(2), *answer(2)]),
    "before its turn on its instance": (leaving.IN_TURN, [OLDEST, *asked(1, 2), sent(1, 1, 2), over(1, 2), *answer(2)]),
    "before its batch is over": (leaving.NOT_BEFORE, [ANY, *asked(1), *answer(1)]),
}


@pytest.mark.parametrize("records", GOOD.values(), ids=GOOD)
def test_answers_that_leave_when_they_may_pass(records: list[object]) -> None:
    assert Tape(AnswersLeave).play(*records) == ""


@pytest.mark.parametrize(("rule", "records"), BAD.values(), ids=BAD)
def test_answers_that_do_not_are_complained_of(rule: str, records: list[object]) -> None:
    assert rule in Tape(AnswersLeave).play(*records)
