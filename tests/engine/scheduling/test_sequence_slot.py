"""The slot obeys its transition table, and the table says what the rules say."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sequence_world import sequence_job

from trireme.engine.scheduling.sequence.sequence import Sequence
from trireme.engine.scheduling.sequence.slot import (
    TRANSITIONS,
    UNOWNED,
    Slot,
    SlotEvent,
    SlotState,
)


def plain_state(owned: bool, queued: bool, out: bool) -> SlotState:
    """What the states mean."""
    if owned:
        return SlotState.BUSY if out else SlotState.READY if queued else SlotState.WAITING
    return SlotState.PARTING if out else SlotState.FREE


def expected_state(before: SlotState, event: SlotEvent, queued: bool, over: bool, holds: bool) -> SlotState | None:
    """The next state, derived from the rules alone; None for what cannot happen."""
    owned = before not in UNOWNED
    out = before in (SlotState.BUSY, SlotState.PARTING)
    possible = {
        SlotEvent.ASSIGN: not owned and queued,
        SlotEvent.PUT: owned and queued,
        SlotEvent.TAKE: before is SlotState.READY,
        SlotEvent.SETTLE: out and not (not owned and queued),
        SlotEvent.RETURN: before is SlotState.BUSY and queued,
        SlotEvent.SHRINK: owned and (queued or over or before is SlotState.BUSY),
        SlotEvent.LOSE: True,
    }[event]
    if (
        before is SlotState.GONE
        or not possible
        or (before is SlotState.WAITING and queued and event is not SlotEvent.PUT)
    ):
        return SlotState.GONE if event is SlotEvent.LOSE and before is not SlotState.GONE else None
    if event is SlotEvent.LOSE:
        return SlotState.GONE
    owned = owned or event is SlotEvent.ASSIGN
    out = (out or event is SlotEvent.TAKE) and event not in (SlotEvent.SETTLE, SlotEvent.RETURN)
    if owned and over and not queued and not (holds and out):
        owned = False
    return plain_state(owned, queued, out)


def table_state(before: SlotState, event: SlotEvent, conditions: tuple[bool, ...]) -> SlotState | None:
    """The first line of the table that applies."""
    for situation, pattern, after in TRANSITIONS:
        if situation == (before, event) and all(
            wanted in (None, given) for wanted, given in zip(pattern, conditions, strict=True)
        ):
            return after
    return None


@pytest.mark.parametrize("conditions", list(product((False, True), repeat=3)))
@pytest.mark.parametrize("event", SlotEvent)
@pytest.mark.parametrize("before", SlotState)
def test_table_agrees_with_the_rules(before, event, conditions):
    assert table_state(before, event, conditions) is expected_state(before, event, *conditions)


def test_every_line_of_the_table_is_needed():
    for number, (situation, pattern, _) in enumerate(TRANSITIONS):
        others = [line for line in TRANSITIONS[:number] if line[0] == situation]
        fitting = [
            conditions
            for conditions in product((False, True), repeat=3)
            if all(wanted in (None, given) for wanted, given in zip(pattern, conditions, strict=True))
        ]
        assert any(
            not any(
                all(wanted in (None, given) for wanted, given in zip(other, conditions, strict=True))
                for _, other, _ in others
            )
            for conditions in fitting
        )


class SlotMachine(RuleBasedStateMachine):
    """Whatever happens to a slot, its state is the one that its contents mean, and changes as the table says."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[SlotState, SlotState]] = []
        self.slot = Slot(1, 0, False, self.note)
        self.made = 0

    def note(self, slot: Slot, before: SlotState) -> None:
        self.changes.append((before, slot.state))

    @rule(count=st.integers(1, 3), over=st.booleans(), holds=st.booleans())
    @precondition(lambda self: self.slot.state in (SlotState.FREE, SlotState.PARTING))
    def assign(self, count: int, over: bool, holds: bool) -> None:
        if self.slot.state is SlotState.FREE:
            self.slot.holds = holds
        self.made += 1
        sequence = Sequence(self.made, self.made)
        sequence.jobs.update(dict.fromkeys(sequence_job(self.made) for _ in range(count)))
        sequence.over = over
        self.slot.assign(sequence)
        assert sequence.slot is self.slot

    @rule(end=st.booleans())
    @precondition(lambda self: self.slot.sequence is not None and not self.slot.sequence.over)
    def put(self, end: bool) -> None:
        assert self.slot.sequence is not None
        self.slot.sequence.over = end
        self.slot.put(sequence_job(1))

    @rule()
    @precondition(lambda self: self.slot.state is SlotState.READY)
    def take(self) -> None:
        assert self.slot.sequence is not None
        head = self.slot.sequence.head
        assert self.slot.take() is head is self.slot.out

    @rule(back=st.booleans())
    @precondition(lambda self: self.slot.out is not None)
    def settle(self, back: bool) -> None:
        job = self.slot.out
        assert job is not None
        if back and self.slot.sequence is not None:
            assert self.slot.give_back(job)
            assert self.slot.sequence.head is job
        else:
            assert self.slot.settle(job)
        assert not self.slot.settle(job), "done with already"

    @rule()
    def settle_a_stranger(self) -> None:
        changes = len(self.changes)
        assert not self.slot.settle(sequence_job(1))
        assert not self.slot.give_back(sequence_job(1))
        assert len(self.changes) == changes

    @rule(keep=st.integers(0, 2))
    @precondition(lambda self: self.slot.sequence is not None)
    def shrink(self, keep: int) -> None:
        sequence = self.slot.sequence
        assert sequence is not None
        while len(sequence.jobs) > keep:
            sequence.jobs.popitem()
        sequence.over = True
        self.slot.shrink()

    @invariant()
    def state_means_what_it_says(self) -> None:
        slot = self.slot
        queued = slot.sequence is not None and len(slot.sequence.jobs) > 0
        assert slot.state is plain_state(slot.sequence is not None, queued, slot.out is not None)
        if slot.sequence is not None:
            assert queued or not slot.sequence.over or (slot.holds and slot.out is not None)


TestSlot = SlotMachine.TestCase
TestSlot.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_a_lost_slot_gets_no_sequence_again():
    slot = Slot(1, 0, False, lambda _slot, _before: None)
    sequence = Sequence(1, 1)
    sequence.jobs[sequence_job(1)] = None
    slot.assign(sequence)
    slot.take()
    slot.lose()
    assert (slot.state, slot.sequence, slot.out, sequence.slot) == (SlotState.GONE, None, None, None)
    with pytest.raises(AssertionError, match="ASSIGN cannot happen"):
        slot.assign(sequence)


def test_a_slot_is_not_given_away_twice():
    slot = Slot(1, 0, False, lambda _slot, _before: None)
    first, second = Sequence(1, 1), Sequence(2, 2)
    for sequence in (first, second):
        sequence.jobs[sequence_job(sequence.id)] = None
    slot.assign(first)
    with pytest.raises(AssertionError, match="is taken"):
        slot.assign(second)
    assert first.slot is slot
    assert second.slot is None


def test_release_of_the_old_sequence_does_not_touch_the_new_one():
    """The old sequence's last request is settled, twice, while the new one has its first request out."""
    slot = Slot(1, 0, False, lambda _slot, _before: None)
    old, new = Sequence(1, 1), Sequence(2, 2)
    for sequence in (old, new):
        sequence.jobs[sequence_job(sequence.id)] = None
        sequence.over = True
    slot.assign(old)
    last = slot.take()
    slot.assign(new)
    assert slot.state is SlotState.BUSY
    assert slot.settle(last)
    first = slot.take()
    assert not slot.settle(last)
    assert slot.out is first
    assert slot.settle(first)
    assert slot.state is SlotState.FREE
