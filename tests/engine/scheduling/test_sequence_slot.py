"""The state of a slot is the one that the rules say, whatever happens to it."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sequence_world import sequence_job

from trireme.engine.job import Job
from trireme.engine.scheduling.sequence.controls import Controls
from trireme.engine.scheduling.sequence.slot import (
    VACANT,
    Assign,
    Dismiss,
    Sequence,
    Slot,
    SlotMessage,
    SlotState,
)
from trireme.engine.scheduling.sequence.slot_core import Discarded, Offer, SlotCore, SlotReport


def plain_state(owned: bool, queued: bool, head: bool, out: bool) -> SlotState:
    """What the states mean."""
    if not owned:
        return SlotState.PARTING if out else SlotState.FREE
    if out:
        return SlotState.BUSY
    return SlotState.READY if head else SlotState.DUE if queued else SlotState.WAITING


class SlotMachine(RuleBasedStateMachine):
    """A slot and the core of its actor, with the mail between them on its way for any length of time: the state is the
    one that the contents mean, and requests come out in the order in which they went in."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[SlotState, SlotState]] = []
        self.slot = Slot(1, 0, False, self.note)
        self.core = SlotCore(self.slot, Controls((), True), 1.0)
        self.mail: deque[SlotMessage] = deque()
        self.reports: deque[SlotReport] = deque()
        self.slot.send = self.mail.append
        self.queued: list[Job] = []
        self.taken: list[int] = []
        self.made = 0

    def note(self, slot: Slot, before: SlotState) -> None:
        self.changes.append((before, slot.state))

    def job(self) -> Job:
        self.made += 1
        job = sequence_job(1)
        job.arrival = self.made
        self.queued.append(job)
        return job

    @rule(count=st.integers(1, 3), over=st.booleans(), holds=st.booleans())
    @precondition(lambda self: self.slot.state in VACANT)
    def assign(self, count: int, over: bool, holds: bool) -> None:
        if self.slot.state is SlotState.FREE:
            self.slot.holds = holds
        sequence = Sequence(self.made, self.made)
        sequence.jobs = [self.job() for _ in range(count)]
        sequence.over = over
        self.slot.assign(sequence)
        assert (sequence.slot, sequence.waiting, sequence.jobs) == (self.slot, count, [])

    @rule(end=st.booleans())
    @precondition(lambda self: self.slot.sequence is not None and not self.slot.sequence.over)
    def put(self, end: bool) -> None:
        assert self.slot.sequence is not None
        self.slot.sequence.over = end
        self.slot.put(self.job())

    @rule()
    def receive(self) -> None:
        """The slot's actor has its turn."""
        while self.mail:
            report = self.core.receive(self.mail.popleft(), 0.0)
            self.reports.extend(filter(None, [report]))
        while (report := self.core.next_report(0.0)) is not None:
            self.reports.append(report)

    @rule()
    @precondition(lambda self: self.reports)
    def hear(self) -> None:
        report = self.reports.popleft()
        if isinstance(report, Offer):
            if report.job in self.queued:
                assert report.job is self.queued[0], "the oldest goes first"
                self.slot.offer(report.job)
            return
        assert isinstance(report, Discarded)
        self.slot.drops -= 1
        jobs = [job for job in report.jobs if job in self.queued]
        self.queued = [job for job in self.queued if job not in jobs]
        if jobs:
            self.slot.shrink(len(jobs))

    @rule()
    @precondition(lambda self: self.slot.state is SlotState.READY)
    def take(self) -> None:
        assert self.slot.take() is self.queued.pop(0) is self.slot.out

    @rule(back=st.booleans())
    @precondition(lambda self: self.slot.out is not None)
    def settle(self, back: bool) -> None:
        job = self.slot.out
        assert job is not None
        if back and self.slot.sequence is not None:
            self.queued.insert(0, job)
            assert self.slot.give_back(job)
        else:
            assert self.slot.settle(job)
        assert not self.slot.settle(job), "done with already"

    @rule(at=st.integers(0, 2))
    @precondition(lambda self: self.slot.sequence is not None and self.queued)
    def cancel(self, at: int) -> None:
        """A request goes, and all that continue it; the sequence is over."""
        assert self.slot.sequence is not None
        job = self.queued[min(at, len(self.queued) - 1)]
        self.queued.remove(job)
        self.slot.sequence.over = True
        self.slot.drop(job)

    @rule()
    def settle_a_stranger(self) -> None:
        changes = len(self.changes)
        assert not self.slot.settle(sequence_job(1))
        assert not self.slot.give_back(sequence_job(1))
        assert len(self.changes) == changes

    @rule()
    @precondition(lambda self: self.slot.sequence is not None)
    def end(self) -> None:
        assert self.slot.sequence is not None
        self.slot.sequence.over = True
        self.slot.shrink()

    @invariant()
    def state_means_what_it_says(self) -> None:
        slot, sequence = self.slot, self.slot.sequence
        queued = sequence is not None and sequence.waiting > 0
        assert slot.state is plain_state(sequence is not None, queued, slot.head is not None, slot.out is not None)
        if sequence is not None:
            assert sequence.waiting == len(self.queued) - (slot.head is not None)
            assert queued or slot.head or not sequence.over or (slot.holds and slot.out is not None)

    @invariant()
    def what_is_due_comes(self) -> None:
        """When all mail has been delivered, a slot that is due has offered its request."""
        if not self.mail and not self.reports and not self.slot.drops:
            assert self.slot.state is not SlotState.DUE


TestSlot = SlotMachine.TestCase
TestSlot.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def owned(*jobs: Job, over: bool = False) -> Sequence:
    sequence = Sequence(1, 1)
    sequence.jobs += jobs or [sequence_job(1)]
    sequence.over = over
    return sequence


def test_a_lost_slot_gets_no_sequence_again_and_its_actor_is_dismissed():
    told: list[SlotMessage] = []
    slot = Slot(1, 0, False, lambda _slot, _before: None)
    slot.send = told.append
    job = sequence_job(1)
    sequence = owned(job)
    slot.assign(sequence)
    slot.offer(job)
    slot.take()
    slot.lose()
    assert (slot.state, slot.sequence, slot.out, sequence.slot) == (SlotState.GONE, None, None, None)
    assert [type(message) for message in told] == [Assign, Dismiss]
    with pytest.raises(AssertionError, match="is gone"):
        slot.assign(owned())
    assert len(told) == 2


def test_a_slot_is_not_given_away_twice():
    slot = Slot(1, 0, False, lambda _slot, _before: None)
    first, second = owned(), owned()
    slot.assign(first)
    with pytest.raises(AssertionError, match="is taken"):
        slot.assign(second)
    assert first.slot is slot
    assert second.slot is None


def test_release_of_the_old_sequence_does_not_touch_the_new_one():
    """The old sequence's last request is settled, twice, while the new one has its first request out."""
    slot = Slot(1, 0, False, lambda _slot, _before: None)
    last, first = sequence_job(1), sequence_job(2)
    slot.assign(owned(last, over=True))
    slot.offer(last)
    assert slot.take() is last
    slot.assign(owned(first, over=True))
    assert slot.state is SlotState.BUSY
    assert slot.settle(last)
    slot.offer(first)
    assert slot.take() is first
    assert not slot.settle(last)
    assert slot.out is first
    assert slot.settle(first)
    assert slot.state is SlotState.FREE
