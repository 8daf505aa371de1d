"""The rules of the default scheduler and the dynamic batcher: right decisions pass, each kind of wrong one does not."""

from __future__ import annotations

import pytest
from oracle_tape import Tape

from trireme.engine.config.model import DynamicBatching, ModelConfig, QueuePolicy, TimeoutAction
from trireme.engine.job import SealReason
from trireme.simulations.invariants.queueing import EXPIRED, FULL
from trireme.simulations.invariants.serving import STOPPING
from trireme.simulations.oracle import decisions
from trireme.simulations.oracle.decisions import CANCELLED, RightDecisions
from trireme.simulations.oracle.observed import (
    NEVER_S,
    Admitted,
    CoreMade,
    Dispatched,
    QueueDropped,
    RefusedAtDoor,
    Rejected,
    SaidFull,
    ToldCancelled,
    ToldGone,
    ToldIdle,
    ToldPaused,
    ToldToStop,
    Waits,
)

IDLE, PREFERRED, DELAY, UNBATCHED = SealReason.IDLE, SealReason.PREFERRED, SealReason.DELAY, SealReason.UNBATCHED


def made(batching: DynamicBatching | None) -> CoreMade:
    return CoreMade("m", ModelConfig("m", max_batch_size=8, dynamic_batching=batching))


def asked(at_s: float, request: int, rows: int = 1, *, priority: int = 0, timeout_us: int = 0) -> Admitted:
    return Admitted(at_s, "m", request, rows, priority, timeout_us, {})


def sent(at_s: float, *requests: int, to: int = 1, reason: SealReason = IDLE) -> Dispatched:
    return Dispatched(at_s, "m", to, requests, reason)


def refused(request: int, error: str, priority: int = 0) -> RefusedAtDoor:
    return RefusedAtDoor(0.0, "m", request, error, 1, priority, 0, {})


def rejected(at_s: float, request: int, error: str = EXPIRED) -> Rejected:
    return Rejected(at_s, "m", request, error)


def waits(at_s: float, until_s: float = NEVER_S) -> Waits:
    return Waits(at_s, "m", until_s)


PLAIN = made(None)
DYNAMIC = made(DynamicBatching())
FOURS = made(DynamicBatching((4,)))
PATIENT = made(DynamicBatching((4,), max_queue_delay_us=300_000))
SHORT = made(DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=2)))
TIMED = made(DynamicBatching(default_queue_policy=QueuePolicy(TimeoutAction.REJECT, 1_000_000, True)))
STRICT = made(DynamicBatching(default_queue_policy=QueuePolicy(TimeoutAction.REJECT, 1_000_000, False)))
DELAYED = made(DynamicBatching(default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 1_000_000, True)))
LEVELS = made(
    DynamicBatching(
        priority_levels=3, default_priority_level=2, priority_queue_policy={3: QueuePolicy(max_queue_size=1)}
    )
)
FREE = ToldIdle("m", 1)
OTHER = ToldIdle("m", 2)
STOP = ToldToStop("m")

GOOD: dict[str, list[object]] = {
    "one by one": [PLAIN, FREE, OTHER, asked(0, 1), asked(0, 2), sent(0, 1, reason=UNBATCHED),
                   sent(0, 2, to=2, reason=UNBATCHED), waits(0), 0.0],
    "a large request, alone, without batching": [PLAIN, FREE, asked(0, 1, 3), sent(0, 1, reason=UNBATCHED), waits(0)],
    "what came while the instance was busy": [DYNAMIC, FREE, asked(0, 1), sent(0, 1), asked(1, 2), asked(2, 3),
                                              waits(2), 2.0, FREE, sent(3, 2, 3), waits(3), 3.0],
    "a preferred size at once": [PATIENT, FREE, *[asked(0, n) for n in range(1, 7)], sent(0, 1, 2, 3, 4,
                                 reason=PREFERRED), FREE, waits(0.1, 0.3), 0.1, sent(0.3, 5, 6, reason=DELAY)],
    "an instance that was idle twice": [DYNAMIC, FREE, FREE, asked(0, 1), sent(0, 1), asked(0, 2), sent(0, 2)],
    "one that was paused goes behind": [DYNAMIC, FREE, OTHER, ToldPaused("m", 1), FREE, asked(0, 1), sent(0, 1, to=2)],
    "no instance any more": [DYNAMIC, FREE, ToldGone("m", 1), asked(0, 1), waits(0), 0.0],
    "full": [SHORT, asked(0, 1), asked(0, 2), refused(3, f"[request id: 3] {FULL}"), waits(0), 0.0],
    "says that it is full": [SHORT, asked(0, 1), SaidFull("m", False), asked(0, 2), SaidFull("m", True)],
    "is full at one level only": [LEVELS, asked(0, 1, priority=3), SaidFull("m", False)],
    "full at one level": [LEVELS, asked(0, 1, priority=3), refused(2, FULL, 3), asked(0, 3), asked(0, 4)],
    "levels, and what has none": [LEVELS, asked(0, 3, priority=3), asked(0, 2), asked(0, 1, priority=1),
                                  asked(0, 9, priority=9), FREE, sent(0, 1, 2, 9, 3)],
    "rejected in time": [TIMED, asked(0, 1), waits(0, 1.0), 0.0, rejected(1.0, 1), waits(1.0), 1.0],
    "a shorter time": [TIMED, asked(0, 1, timeout_us=500_000), waits(0, 0.5), rejected(0.5, 1), waits(0.5)],
    "a longer time does not count": [TIMED, asked(0, 1, timeout_us=2_000_000), waits(0, 1.0)],
    "a shorter time that is not allowed": [STRICT, asked(0, 1, timeout_us=500_000), waits(0, 1.0)],
    "delayed behind the others": [DELAYED, asked(0, 1, timeout_us=100_000), asked(0, 2), waits(0, 0.1),
                                  waits(0.1, 1.0), 0.2, FREE, sent(0.5, 2, 1), waits(0.5)],
    "in the order in which their time was over": [
        DELAYED, asked(0, 1, timeout_us=300_000), asked(0, 2, timeout_us=100_000), asked(0, 3, timeout_us=0),
        FREE, sent(0.5, 3, 2, 1)],
    "gave up": [DYNAMIC, asked(0, 1), asked(0, 2), ToldCancelled("m", 1), rejected(0, 1, CANCELLED), waits(0), 0.0],
    "gave up in execution": [DYNAMIC, FREE, asked(0, 1), sent(0, 1), ToldCancelled("m", 1), waits(0), 0.0],
    "stopping": [PATIENT, FREE, asked(0, 1), waits(0, 0.3), STOP, refused(2, f"[request id: 2] {STOPPING}"),
                 sent(0.1, 1, reason=SealReason.DRAIN), waits(0.1)],
    "paused after a deadline": [DELAYED, asked(0, 1), FREE, ToldPaused("m", 1), waits(0, 1.0), FREE,
                                ToldPaused("m", 1), 0.5, waits(1.0), ToldPaused("m", 1), 1.0, 1.5],
    "given back": [DYNAMIC, asked(0, 1), asked(0, 2), QueueDropped("m", (1, 2)), FREE, waits(0), 0.0],
    "a moment early, which is rounding": [PATIENT, FREE, asked(0, 1), sent(0.2999999, 1, reason=DELAY), waits(0.3)],
}  # fmt: skip

BAD: dict[str, tuple[str, list[object]]] = {
    "the second first": (decisions.ONE_AT_A_TIME, [PLAIN, FREE, asked(0, 1), asked(0, 2),
                         sent(0, 2, reason=UNBATCHED)]),
    "two without batching": (decisions.ONE_AT_A_TIME, [PLAIN, FREE, asked(0, 1), asked(0, 2), sent(0, 1, 2)]),
    "one that fits is left": (decisions.WHICH, [DYNAMIC, FREE, asked(0, 1), asked(0, 2), sent(0, 1)]),
    "beyond the preferred size": (decisions.WHICH, [FOURS, FREE, *[asked(0, n) for n in range(5)], sent(0, *range(5))]),
    "in another order": (decisions.WHICH, [DYNAMIC, FREE, asked(0, 1), asked(0, 2), sent(0, 2, 1)]),
    "before the delay is over": (decisions.WHEN, [PATIENT, FREE, asked(0, 1), sent(0.2, 1, reason=DELAY)]),
    "with no instance idle": (decisions.WHEN, [DYNAMIC, asked(0, 1), sent(0, 1)]),
    "later than due": (decisions.WHEN, [DYNAMIC, FREE, asked(0, 1), waits(0)]),
    "not asked": (decisions.WHEN, [DYNAMIC, asked(0, 1), waits(0), FREE, 0.1]),
    "asked too late": (decisions.WAITING, [PATIENT, FREE, asked(0, 1), waits(0, 0.3), 0.0, 0.4]),
    "waits too long": (decisions.WAITING, [PATIENT, FREE, asked(0, 1), waits(0, 0.4)]),
    "waits for nothing": (decisions.WAITING, [DYNAMIC, asked(0, 1), waits(0, 0.4)]),
    "another instance": (decisions.WHERE, [DYNAMIC, FREE, OTHER, asked(0, 1), sent(0, 1, to=2)]),
    "another reason": (decisions.WHY, [DYNAMIC, FREE, asked(0, 1), sent(0, 1, reason=DELAY)]),
    "a reason that is also true": (decisions.WHY, [PATIENT, FREE, *[asked(0, n) for n in range(4)],
                                   sent(0, *range(4), reason=SealReason.FULL)]),
    "refused with room": (decisions.ADMISSION, [SHORT, asked(0, 1), refused(2, FULL)]),
    "refused at a level with room": (decisions.ADMISSION, [LEVELS, asked(0, 1, priority=3), refused(2, FULL, 2)]),
    "says that it is full, with room": (decisions.ADMISSION, [SHORT, asked(0, 1), SaidFull("m", True)]),
    "says that it is not full": (decisions.ADMISSION, [SHORT, asked(0, 1), asked(0, 2), SaidFull("m", False)]),
    "taken in without room": (decisions.ADMISSION, [SHORT, asked(0, 1), asked(0, 2), asked(0, 3)]),
    "refused for another reason": (decisions.ADMISSION, [SHORT, STOP, refused(1, FULL)]),
    "taken in while stopping": (decisions.ADMISSION, [DYNAMIC, STOP, asked(0, 1)]),
    "rejected too early": (decisions.REJECTION, [TIMED, asked(0, 1), rejected(0.9, 1)]),
    "not rejected": (decisions.REJECTION, [TIMED, asked(0, 1), waits(1.0)]),
    "rejected for nothing": (decisions.REJECTION, [DYNAMIC, asked(0, 1), rejected(9, 1)]),
    "rejected, and may wait on": (decisions.REJECTION, [DELAYED, asked(0, 1), rejected(1.0, 1)]),
    "rejected with another error": (decisions.REJECTION, [DYNAMIC, asked(0, 1), ToldCancelled("m", 1), rejected(0, 1)]),
    "executed instead of rejected": (decisions.REJECTION_FIRST, [TIMED, asked(0, 1), FREE, sent(1.5, 1)]),
    "executed although it gave up": (decisions.REJECTION_FIRST, [DYNAMIC, asked(0, 1), ToldCancelled("m", 1), FREE,
                                     sent(0, 1)]),
    "a longer time": (decisions.WAITING, [TIMED, asked(0, 1, timeout_us=2_000_000), waits(0, 2.0)]),
    "not delayed": (decisions.WHICH, [DELAYED, asked(0, 1, timeout_us=100_000), asked(0, 2), FREE, sent(0.5, 1, 2)]),
    "a lower level first": (decisions.WHICH, [LEVELS, asked(0, 1, priority=3), asked(0, 2), FREE, sent(0, 1, 2)]),
    "a level that there is not": (decisions.WHICH, [LEVELS, asked(0, 1, priority=9), asked(0, 2, priority=3), FREE,
                                  sent(0, 2, 1)]),
    "given back in part": ("gave (1,) back", [DYNAMIC, asked(0, 1), asked(0, 2), QueueDropped("m", (1,))]),
}  # fmt: skip


@pytest.mark.parametrize("records", GOOD.values(), ids=GOOD)
def test_right_decisions_pass(records: list[object]) -> None:
    assert Tape(RightDecisions).play(*records) == ""


@pytest.mark.parametrize(("rule", "records"), BAD.values(), ids=BAD)
def test_a_wrong_decision_is_complained_of(rule: str, records: list[object]) -> None:
    assert rule in Tape(RightDecisions).play(*records)


def test_models_with_sequences_are_left_to_other_rules() -> None:
    config = ModelConfig("m", max_batch_size=8, has_sequence_batching=True)
    assert Tape(RightDecisions).play(CoreMade("m", config), FREE, asked(0, 1), waits(0), 1.0) == ""


SPARE = ToldIdle("m", 1, spare=True)

GOOD_SPARE: dict[str, list[object]] = {
    "a batch that could grow waits": [DYNAMIC, SPARE, asked(0, 1), waits(0), 0.0],
    "until the instance is idle": [DYNAMIC, SPARE, asked(0, 1), waits(0), FREE, sent(1, 1), waits(1)],
    "a full one does not": [DYNAMIC, SPARE, asked(0, 1, 4), asked(0, 2, 4), sent(0, 1, 2, reason=SealReason.FULL)],
    "nor one that the next request does not fit": [DYNAMIC, SPARE, asked(0, 1, 6), asked(0, 2, 4),
                                                   sent(0, 1, reason=SealReason.FULL), waits(0)],
    "nor one of the largest preferred size": [FOURS, SPARE, asked(0, 1, 4), sent(0, 1, reason=PREFERRED)],
    "a preferred size may be passed while a delay lasts": [PATIENT, SPARE, asked(0, 1, 4), waits(0)],
    "nor one without batching": [PLAIN, SPARE, asked(0, 1), sent(0, 1, reason=UNBATCHED)],
    "an idle instance goes first": [PLAIN, SPARE, OTHER, asked(0, 1), sent(0, 1, to=2, reason=UNBATCHED)],
    "one that was paused gets nothing": [PLAIN, SPARE, ToldPaused("m", 1), asked(0, 1), waits(0), 0.0],
}  # fmt: skip

BAD_SPARE: dict[str, tuple[str, list[object]]] = {
    "a batch that could grow": (decisions.WHEN, [DYNAMIC, SPARE, asked(0, 1), sent(0, 1)]),
    "a full one waits": (decisions.WHEN, [DYNAMIC, SPARE, asked(0, 1, 4), asked(0, 2, 4), waits(0)]),
    "before one that is idle": (decisions.WHERE, [PLAIN, SPARE, OTHER, asked(0, 1), sent(0, 1, reason=UNBATCHED)]),
}  # fmt: skip


@pytest.mark.parametrize("records", GOOD_SPARE.values(), ids=GOOD_SPARE)
def test_right_decisions_for_a_spare_instance_pass(records: list[object]) -> None:
    assert Tape(RightDecisions).play(*records) == ""


@pytest.mark.parametrize(("rule", "records"), BAD_SPARE.values(), ids=BAD_SPARE)
def test_a_wrong_decision_for_a_spare_instance_is_complained_of(rule: str, records: list[object]) -> None:
    assert rule in Tape(RightDecisions).play(*records)
