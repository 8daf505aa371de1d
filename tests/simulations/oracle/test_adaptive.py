"""The rules of the adaptive batcher: right decisions pass, wrong ones do not."""

from __future__ import annotations

import pytest
from oracle_tape import Tape

from trireme.engine.config.model import DynamicBatching, ModelConfig
from trireme.engine.config.objective import PARAMETER
from trireme.engine.job import SealReason
from trireme.simulations.invariants.queueing import TOO_LATE
from trireme.simulations.oracle.adaptive import RightAdaptations
from trireme.simulations.oracle.observed import (
    NEVER_S,
    Admitted,
    CoreMade,
    Dispatched,
    RefusedAtDoor,
    Rejected,
    ToldExecuted,
    ToldGone,
    ToldIdle,
    ToldToStop,
    Waits,
)

MADE = CoreMade(
    "m", ModelConfig("m", max_batch_size=4, dynamic_batching=DynamicBatching((4,)), parameters={PARAMETER: "250"})
)
FREE = ToldIdle("m", 1)


def asked(at_s: float, request: int, rows: int = 1) -> Admitted:
    return Admitted(at_s, "m", request, rows, 0, 0, {})


def refused(at_s: float, request: int) -> RefusedAtDoor:
    return RefusedAtDoor(at_s, "m", request, f"[request id: {request}] {TOO_LATE}", 1, 0, 0, {})


def sent(at_s: float, *requests: int, reason: SealReason = SealReason.IDLE) -> Dispatched:
    return Dispatched(at_s, "m", 1, requests, reason)


def over(at_s: float, first: int) -> list[object]:
    return [ToldExecuted(at_s, "m", 1, first, failed=False), FREE]


FULL = SealReason.FULL
TAUGHT = [MADE, FREE, asked(-900, 90, 4), sent(-900, 90, reason=FULL), *over(-899.9, 90), Waits(-899.9, "m", NEVER_S)]
"""Batches of 4 take 0.1 s."""

BUSY = [*TAUGHT, asked(0, 1, 4), sent(0, 1, reason=FULL)]

GOOD: dict[str, list[object]] = {
    "what waits for one batch, not for two": [
        *BUSY, *(asked(0, number) for number in (2, 3, 4, 5)), refused(0, 6), *over(0.1, 1),
        sent(0.1, 2, 3, 4, 5, reason=FULL), Waits(0.1, "m", NEVER_S),
    ],
    "rejected when it is late": [
        *BUSY, asked(0, 2), Waits(0, "m", 0.15), Rejected(0.15, "m", 2, TOO_LATE), Waits(0.15, "m", NEVER_S),
    ],
    "nothing known, nothing refused": [
        MADE, FREE, asked(0, 1, 4), sent(0, 1, reason=FULL), asked(0, 2, 4), asked(0, 3),
    ],
    "of an instance that has gone nothing is waited for": [*BUSY, ToldGone("m", 1), asked(0, 2), asked(0, 3, 4)],
    "stopping": [*TAUGHT, asked(0, 1), ToldToStop("m"), sent(0, 1, reason=SealReason.DRAIN)],
}  # fmt: skip

BAD: dict[str, list[object]] = {
    "queued, and would be late": [*BUSY, asked(0, 2, 4), asked(0, 3)],
    "refused, and would not be": [*BUSY, refused(0, 2)],
    "refused while nothing is known": [MADE, FREE, asked(0, 1, 4), sent(0, 1, reason=FULL), refused(0, 2)],
    "idle while a batch is due": [*TAUGHT, asked(0, 1, 4), Waits(0, "m", NEVER_S)],
    "rejected, and not late": [*BUSY, asked(0, 2), Rejected(0.1, "m", 2, TOO_LATE)],
    "late, and not rejected": [*BUSY, asked(0, 2), Waits(0, "m", 0.15), Waits(0.16, "m", NEVER_S)],
    "late, and sent": [*BUSY, asked(0, 2), Waits(0, "m", 0.15), *over(0.2, 1), sent(0.2, 2)],
    "larger than allowed": [*TAUGHT, asked(0, 1, 3), asked(0, 2, 3), sent(0, 1, 2, reason=FULL)],
    "not from the head": [*BUSY, asked(0, 2), asked(0, 3), *over(0.1, 1), sent(0.1, 3)],
}


@pytest.mark.parametrize("tape", GOOD.values(), ids=GOOD)
def test_right_decisions_pass(tape):
    assert Tape(RightAdaptations).play(*tape) == ""


@pytest.mark.parametrize("tape", BAD.values(), ids=BAD)
def test_wrong_decisions_do_not(tape):
    assert Tape(RightAdaptations).play(*tape)


def test_other_models_are_judged_elsewhere():
    plain = CoreMade("m", ModelConfig("m", max_batch_size=4, dynamic_batching=DynamicBatching((4,))))
    assert Tape(RightAdaptations).play(plain, FREE, asked(0, 1, 4), Waits(0, "m", NEVER_S)) == ""
