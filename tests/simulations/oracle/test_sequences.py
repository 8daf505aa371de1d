"""The rules of the sequence batcher: right decisions pass, each kind of wrong one does not."""

from __future__ import annotations

import pytest
from oracle_tape import Tape

from trireme.engine.job import SealReason
from trireme.simulations.oracle.naive_sequences import BATCHED, EXPIRED, NO_ID, NO_START, STOPPING
from trireme.simulations.oracle.observed import (
    NEVER_S,
    Admitted,
    Awaits,
    CoreMade,
    Dispatched,
    QueueDropped,
    RefusedAtDoor,
    Rejected,
    SlotAsked,
    ToldCancelled,
    ToldDiscarded,
    ToldGone,
    ToldIdle,
    ToldPaused,
    ToldRelease,
    ToldSequencesEnd,
    ToldSettled,
    ToldSilent,
    ToldSlotDied,
    ToldToStop,
    Waits,
)
from trireme.simulations.oracle.sequences import RightSequences
from trireme.simulations.plan import ModelPlan, SequencesPlan

IDLE, PREFERRED, DELAY, FULL, DRAIN = (
    SealReason.IDLE,
    SealReason.PREFERRED,
    SealReason.DELAY,
    SealReason.FULL,
    SealReason.DRAIN,
)
LOST = "sequence 1 to model 'm' is lost, because the model instance that it was bound to died"
SLOT_DIED = "sequence 1 to model 'm' is lost, because its slot died"


def made(rows: int = 2, *, delay_us: int = 0, preferred: tuple[int, ...] = (), **sequences: object) -> CoreMade:
    plan = SequencesPlan(idle_us=1_000_000, **sequences)  # type: ignore[arg-type]
    return CoreMade(
        "m", ModelPlan("m", max_batch_size=rows, delay_us=delay_us, preferred=preferred, sequences=plan).config()
    )


def asked(
    at_s: float, request: int, sequence: int | str, flags: str = "", timeout_us: int = 0, rows: int = 1
) -> Admitted:
    """`flags`: S for START, E for END."""
    return Admitted(at_s, "m", request, rows, 0, timeout_us, {}, sequence, "S" in flags, "E" in flags)


def refused(request: int, sequence: int | str, error: str, flags: str = "", rows: int = 1) -> RefusedAtDoor:
    return RefusedAtDoor(0.0, "m", request, error, rows, 0, 0, {}, sequence, "S" in flags, "E" in flags)


def sent(at_s: float, *requests: int, to: int = 1, reason: SealReason = IDLE) -> Dispatched:
    return Dispatched(at_s, "m", to, requests, reason)


def full(at_s: float, request: int, to: int = 1) -> Dispatched:
    """The batch of a model that has but one row."""
    return sent(at_s, request, to=to, reason=FULL)


def settled(at_s: float, *requests: int, again: tuple[int, ...] = ()) -> ToldSettled:
    return ToldSettled(at_s, "m", requests, again)


def rejected(at_s: float, request: int, error: str = "Cancelled") -> Rejected:
    return Rejected(at_s, "m", request, error)


def waits(at_s: float, until_s: float = NEVER_S) -> Waits:
    return Waits(at_s, "m", until_s)


def silent(at_s: float, sequence: int) -> ToldSilent:
    return ToldSilent(at_s, "m", sequence)


def gave_up(request: int) -> ToldCancelled:
    return ToldCancelled("m", request)


DIRECT = made()
ONE = made(1)
OLDEST = made(4, oldest=True, candidates=4)
PATIENT = made(4, delay_us=300_000, utilization=0.75)
PREFERS = made(4, oldest=True, candidates=4, delay_us=300_000, preferred=(2,))
ITERATIVE = made(2, iterative=True)
FREE = ToldIdle("m", 1)
OTHER = ToldIdle("m", 2)
GONE = ToldGone("m", 1)
DIED = ToldSlotDied("m", 1, 0)
STOP = ToldToStop("m")
TWO = [asked(0, 1, 1, "S"), asked(0, 2, 2, "S")]

GIVEN_UP_AMID_TURNS = [
    ITERATIVE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 2, "SE"), asked(0, 3, 1), asked(0, 4, 3, "S"),
    sent(0, 1, 2, reason=FULL), gave_up(1), SlotAsked("m", 1, 0), settled(0.1, 1, 2, again=(1,)), FREE,
    Awaits(0.1, "m"), ToldDiscarded("m", 1, 0, (3,)), rejected(0.1, 1), rejected(0.1, 3)]  # fmt: skip
"""Slot 1 is free, and slot 0 as soon as it has said that request 3 goes with request 1."""

GOOD: dict[str, list[object]] = {
    "two sequences side by side": [DIRECT, FREE, *TWO, sent(0, 1, 2, reason=FULL), waits(0)],
    "a row of padding": [DIRECT, FREE, *TWO, sent(0, 1, 2, reason=FULL), settled(0.1, 1, 2), FREE,
                         asked(0.1, 3, 2), sent(0.1, 0, 3), waits(0.1)],
    "one at a time": [DIRECT, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1, "E"), sent(0, 1), settled(0.1, 1), FREE,
                      sent(0.1, 2), waits(0.1)],
    "the backlog is first come, first served": [
        ONE, FREE, asked(0, 1, 1, "SE"), asked(0, 2, 2, "SE"), asked(0, 3, 3, "SE"), full(0, 1), settled(0.1, 1), FREE,
        full(0.1, 2), settled(0.2, 2), FREE, full(0.2, 3), waits(0.2)],
    "the lowest slot of all instances": [
        DIRECT, FREE, OTHER, *TWO, sent(0, 1), sent(0, 2, to=2), waits(0)],
    "too long in the backlog": [ONE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 2, "S", 50_000), asked(0.01, 3, 2),
                                full(0.02, 1), waits(0.02, 0.05), rejected(0.05, 2, EXPIRED),
                                rejected(0.05, 3, EXPIRED), waits(0.05)],
    "a timeout has no effect in a slot": [ONE, FREE, asked(0, 1, 1, "S", 10_000), full(0.5, 1), waits(0.5)],
    "silent for too long": [DIRECT, FREE, asked(0, 1, 1, "S"), sent(0, 1), settled(0.1, 1), FREE, waits(0.1),
                            silent(1.0, 1), waits(1.0), refused(2, 1, NO_START)],
    "a utilization that is reached": [PATIENT, FREE, *TWO, waits(0, 0.3), asked(0.1, 3, 3, "S"),
                                      sent(0.1, 1, 2, 3, reason=PREFERRED)],
    "a delay that is over": [PATIENT, FREE, *TWO, waits(0, 0.3), sent(0.3, 1, 2, reason=DELAY)],
    "no delay when it stops": [PATIENT, FREE, *TWO, STOP, sent(0, 1, 2, reason=DRAIN)],
    "the oldest strategy has no padding": [OLDEST, FREE, *TWO, sent(0, 1, 2), settled(0.1, 1, 2), FREE,
                                           asked(0.1, 3, 2), sent(0.1, 3)],
    "a preferred size of issued requests": [PREFERS, FREE, asked(0, 1, 1, "S"), waits(0, 0.3), asked(0.1, 2, 2, "S"),
                                            sent(0.1, 1, 2, reason=PREFERRED)],
    "a cancelled request and what continues it": [
        ONE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1), asked(0, 3, 1), full(0, 1), gave_up(2), rejected(0, 2),
        rejected(0, 3), waits(0), settled(0.1, 1), FREE, refused(4, 1, NO_START)],
    "cancelled in the backlog as a whole": [
        ONE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 2, "S"), asked(0, 3, 2), full(0, 1), gave_up(3), rejected(0, 2),
        rejected(0, 3), waits(0)],
    "lost with its instance": [ONE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1), full(0, 1), GONE, rejected(0, 2, LOST),
                               settled(0.1, 1), refused(3, 1, NO_START)],
    "lost with its slot, but for what is executed": [
        ONE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1), full(0, 1), DIED, rejected(0, 2, SLOT_DIED),
        refused(3, 1, NO_START), asked(0.1, 4, 2, "S"), settled(0.2, 1), FREE, full(0.2, 4)],
    "issued, and lost with its slot": [PREFERS, FREE, asked(0, 1, 1, "S"), waits(0, 0.3), DIED,
                                       rejected(0, 1, SLOT_DIED), waits(0)],
    "the backlog gets a slot before it dies": [
        ONE, FREE, asked(0, 1, 1, "SE"), asked(0, 2, 2, "S"), full(0, 1), settled(0.1, 1), FREE, Awaits(0.1, "m"), DIED,
        rejected(0.1, 2, SLOT_DIED), waits(0.1)],
    "cancelled, or lost with a slot that did not say": [
        ONE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1), asked(0, 3, 1), full(0, 1), gave_up(2), DIED, rejected(0, 2),
        rejected(0, 3, SLOT_DIED), waits(0)],
    "executed again before the others": [
        ITERATIVE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1), sent(0, 1), settled(0.1, 1, again=(1,)), FREE,
        sent(0.1, 1), settled(0.2, 1), FREE, sent(0.2, 2)],
    "no slot is given away before all that are free have said so": [*GIVEN_UP_AMID_TURNS, sent(0.1, 4)],
    "without an id, where that may be": [ITERATIVE, FREE, asked(0, 1, 0), sent(0, 1), settled(0.1, 1), FREE,
                                         waits(0.1)],
    "refusals": [ONE, FREE, refused(1, 1, NO_START), refused(2, 0, NO_ID),
                 refused(3, 1, BATCHED, "S", 2), STOP,
                 refused(4, 1, STOPPING, "S")],
    "a paused instance gets nothing": [ONE, FREE, ToldPaused("m", 1), asked(0, 1, 1, "S"), waits(0), FREE,
                                       full(0, 1)],
    "an instance that is to go": [ONE, FREE, asked(0, 1, 1, "S"), ToldRelease("m", 1, False), full(0, 1),
                                  ToldSequencesEnd("m"), ToldRelease("m", 1, True), asked(0, 2, 2, "S"), waits(0)],
    "an instance that goes when its sequence is over": [
        ONE, FREE, asked(0, 1, 1, "SE"), ToldRelease("m", 1, False), full(0, 1), 0.05, settled(0.1, 1),
        ToldRelease("m", 1, True), GONE, 0.1],
    "all given back": [ONE, FREE, *TWO, QueueDropped("m", (1, 2)), waits(0)],
}  # fmt: skip

BAD: dict[str, list[object]] = {
    "a sequence in the wrong row": [DIRECT, FREE, asked(0, 1, 1, "S"), sent(0, 0, 1)],
    "padding behind the last": [DIRECT, FREE, asked(0, 1, 1, "S"), sent(0, 1, 0)],
    "two of one sequence": [DIRECT, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1), sent(0, 1, 2)],
    "one that is left out": [DIRECT, FREE, *TWO, sent(0, 1)],
    "not the lowest slot": [DIRECT, FREE, OTHER, asked(0, 1, 1, "S"), sent(0, 1, to=2)],
    "the backlog is overtaken": [ONE, FREE, asked(0, 1, 1, "SE"), asked(0, 2, 2, "SE"), asked(0, 3, 3, "SE"),
                                 full(0, 1), settled(0.1, 1), FREE, full(0.1, 3)],
    "a slot kept by a sequence that is over": [ONE, FREE, asked(0, 1, 1, "SE"), asked(0, 2, 2, "SE"), full(0, 1),
                                               settled(0.1, 1), FREE, waits(0.1)],
    "too early from the backlog": [ONE, FREE, *TWO[:1], asked(0, 2, 2, "S", 50_000), full(0, 1),
                                   rejected(0.04, 2, EXPIRED)],
    "too late from the backlog": [ONE, FREE, *TWO[:1], asked(0, 2, 2, "S", 50_000), full(0, 1), waits(0.06)],
    "out of its slot by a timeout": [ONE, FREE, asked(0, 1, 1, "S", 10_000), rejected(0.02, 1, EXPIRED)],
    "a silence that is too short": [DIRECT, FREE, asked(0, 1, 1, "S"), sent(0, 1), silent(0.5, 1)],
    "a silence that is cut short": [DIRECT, FREE, asked(0, 1, 1, "S"), asked(0.5, 2, 1), sent(0.5, 1), silent(1, 1)],
    "a silence that is too long": [DIRECT, FREE, asked(0, 1, 1, "S"), sent(0, 1), waits(1.1)],
    "a sequence that goes on after its time": [DIRECT, FREE, asked(0, 1, 1, "S"), sent(0, 1), asked(1.5, 2, 1)],
    "a sequence that is forgotten": [DIRECT, FREE, asked(0, 1, 1, "S"), refused(2, 1, NO_START)],
    "a delay that is not waited for": [PATIENT, FREE, *TWO, sent(0.1, 1, 2, reason=DELAY)],
    "a delay although enough are ready": [PATIENT, FREE, *TWO, asked(0, 3, 3, "S"), waits(0, 0.3)],
    "another reason": [PATIENT, FREE, *TWO, asked(0, 3, 3, "S"), sent(0, 1, 2, 3, reason=DELAY)],
    "a delay when it stops": [PATIENT, FREE, *TWO, STOP, waits(0, 0.3)],
    "padding in the oldest strategy": [OLDEST, FREE, *TWO, sent(0, 1, 2), settled(0.1, 1, 2), FREE, asked(0.1, 3, 2),
                                       sent(0.1, 0, 3)],
    "issued requests overtake": [OLDEST, FREE, *TWO, sent(0, 2, 1)],
    "above the preferred size": [PREFERS, FREE, *TWO, asked(0, 3, 3, "S"), sent(0, 1, 2, 3, reason=FULL)],
    "what continues a cancelled one is executed": [
        ONE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1), asked(0, 3, 1), full(0, 1), gave_up(2), rejected(0, 2),
        settled(0.1, 1), FREE, full(0.1, 3)],
    "cancelled in vain": [ONE, FREE, asked(0, 1, 1, "S"), gave_up(1), full(0, 1)],
    "a sequence that outlives its instance": [ONE, FREE, asked(0, 1, 1, "S"), full(0, 1), GONE, asked(0.1, 2, 1)],
    "a sequence that outlives its slot": [ONE, FREE, asked(0, 1, 1, "S"), full(0, 1), DIED, asked(0.1, 2, 1)],
    "not lost with its slot": [ONE, FREE, asked(0, 1, 1, "S"), DIED, full(0, 1)],
    "nothing replaces a slot that died": [ONE, FREE, asked(0, 1, 1, "S"), DIED, rejected(0, 1, SLOT_DIED),
                                          asked(0, 2, 2, "S"), waits(0)],
    "executed again although its slot died": [
        ITERATIVE, FREE, asked(0, 1, 1, "S"), sent(0, 1), DIED, settled(0.1, 1, again=(1,)), FREE, sent(0.1, 1)],
    "not lost with its instance": [ONE, FREE, asked(0, 1, 1, "S"), GONE, OTHER, full(0, 1, to=2)],
    "executed again behind the others": [
        ITERATIVE, FREE, asked(0, 1, 1, "S"), asked(0, 2, 1), sent(0, 1), settled(0.1, 1, again=(1,)), FREE,
        sent(0.1, 2)],
    "a slot given away before another one has said that it is free": [*GIVEN_UP_AMID_TURNS, sent(0.1, 0, 4)],
    "no id": [ONE, FREE, asked(0, 1, 0)],
    "several rows": [ONE, FREE, asked(0, 1, 1, "S", rows=2)],
    "a new one while it stops": [ONE, FREE, STOP, asked(0, 1, 1, "S")],
    "what goes on is refused while it stops": [ONE, FREE, asked(0, 1, 1, "S"), STOP, refused(2, 1, STOPPING)],
    "a paused instance is used": [ONE, FREE, ToldPaused("m", 1), asked(0, 1, 1, "S"), full(0, 1)],
    "an instance that has a sequence is let go": [ONE, FREE, asked(0, 1, 1, "S"), ToldRelease("m", 1, True)],
    "a new sequence for an instance that is to go": [ONE, FREE, ToldRelease("m", 1, True), asked(0, 1, 1, "S"),
                                                     full(0, 1)],
    "an instance that does not go": [
        ONE, FREE, asked(0, 1, 1, "SE"), ToldRelease("m", 1, False), full(0, 1), 0.05, settled(0.1, 1), FREE, 0.1],
    "something is not given back": [ONE, FREE, *TWO, QueueDropped("m", (1,))],
}  # fmt: skip


@pytest.mark.parametrize("records", GOOD.values(), ids=GOOD)
def test_right_decisions_pass(records: list[object]) -> None:
    assert Tape(RightSequences).play(*records) == ""


@pytest.mark.parametrize("records", BAD.values(), ids=BAD)
def test_a_wrong_decision_is_complained_of(records: list[object]) -> None:
    tape = Tape(RightSequences)
    assert tape.play(*records[:-1]) == ""
    assert tape.play(records[-1]) != ""


def test_models_without_sequences_are_left_to_other_rules() -> None:
    config = ModelPlan("m").config()
    assert Tape(RightSequences).play(CoreMade("m", config), FREE, asked(0, 1, 0), waits(0, 9.0)) == ""
