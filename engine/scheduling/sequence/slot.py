"""One slot of an instance, as the batcher knows it: which sequence has it, and how far its next request is.

The slot's actor has the requests themselves (`slot_core`), and is told by mail what happens to them. It answers in the
same turn, before the batcher decides about batches. A slot is made when a sequence gets it for the first time, and
dismissed when it is idle, so slots that no sequence uses cost nothing.

Rules:
 1. A slot belongs to one instance for good, and serves one sequence at a time. All requests of a sequence go through
    the slot that it was given.
 2. At most one request of a slot is offered or *out*, until it is settled; the next one is offered only then. So the
    requests of a sequence are executed strictly in order, even if their instance could execute several batches at once.
 3. A sequence leaves as soon as it is over and none of its requests waits: the slot is free for another one, whose
    first request then waits for the one that is still out. In a slot that *holds* (iterative models), where a request
    may come back, the sequence leaves only when nothing is out.
 4. Only the very request that is out can be settled or come back. Any other is ignored, however often it is tried: a
    sequence cannot be made to leave twice.
 5. A slot that is gone (its instance or its actor died, or it was dismissed) gets no sequence any more, and is told
    nothing.

The state follows from what the slot has; the first line that applies, after rule 3:

    it was lost                                              GONE
    no sequence, and a request is out                        PARTING
    no sequence                                              FREE
    a request is out                                         BUSY
    the next request is here, and may go                     READY
    requests of its sequence wait, the next one to be offered DUE
    otherwise                                                WAITING
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from ...job import Job
from ..core import InstanceId

CorrelationId = int | str
"""Numbers and strings name different sequences: 5 is not "5"."""


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """Requests with one correlation id, from a START to an END.

    Attributes:
        id: the correlation id.
        number: unique among the sequences of a batcher, and growing.
        jobs: its requests while it is in the backlog, in order; then its slot has them.
        waiting: how many of its requests its slot has, and has not offered.
        started: the arrival of its last START.
        over: no request will be added any more (END came, idle too long, cancelled).
        deadline_s: when its time in the backlog is over; None for never.
        slot: whose it is; None while in the backlog, and again once its last request was handed on.
    """

    id: CorrelationId
    number: int
    jobs: list[Job] = field(default_factory=list)
    waiting: int = 0
    started: int = 0
    over: bool = False
    deadline_s: float | None = None
    slot: Slot | None = None

    def begins_anew(self, job: Job) -> bool:
        """Whether a START is queued behind this request of it."""
        return self.started > job.arrival

    def __repr__(self) -> str:
        return f"<Sequence {self.id}: {len(self.jobs) + self.waiting} queued{', over' * self.over}>"


# What the batcher says to a slot. *Settled*: nothing of the slot is with an instance any more: its next request may go.


@dataclass(slots=True, eq=False)
class Assign:
    """A sequence has got the slot, with the requests that it has so far."""

    jobs: Row[Job]
    settled: bool


@dataclass(slots=True, eq=False)
class Put:
    """Another request of the sequence."""

    job: Job
    settled: bool


@dataclass(slots=True, eq=False)
class Settle:
    """The request that was handed on last is done with."""


@dataclass(slots=True, eq=False)
class Again:
    """The request that was handed on last is to be executed again, before all others."""

    job: Job


@dataclass(slots=True, eq=False)
class Discard:
    """This request was cancelled. The answer is `Discarded`."""

    job: Job


@dataclass(slots=True, eq=False)
class Dismiss:
    """The slot is not needed any more."""


SlotMessage = Assign | Put | Settle | Again | Discard | Dismiss


class SlotState(enum.Enum):
    __hash__ = object.__hash__  # asked for often, and nothing depends on its value

    FREE = "free"
    WAITING = "waiting"
    DUE = "due"
    READY = "ready"
    BUSY = "busy"
    PARTING = "parting"
    GONE = "gone"


FREE, WAITING, DUE, READY, BUSY, PARTING, GONE = SlotState

VACANT = (FREE, PARTING)
"""The states in which it may get a sequence."""


def _tell_nothing(message: SlotMessage) -> None:
    """Stands for the mailbox of a slot that is gone."""


@dataclass(slots=True, eq=False, repr=False)
class Slot:
    """A slot.

    Attributes:
        instance: whose slot it is.
        number: which of its slots, from 0; for the direct strategy, the row in its batches.
        holds: a request may come back after its execution (rule 3).
        on_change: called after each change, with the slot and the state before.
        sequence: the one that it serves; None if it serves none.
        head: the request that was offered and has not gone; None if there is none.
        out: the request that is out; None if none is.
        send: leaves a message in the mailbox of its actor.
        idle_s: when nothing has come for too long, for the batcher to set.
        drops: answers to `Discard` that are still to come.
    """

    instance: InstanceId
    number: int
    holds: bool
    on_change: Callable[[Slot, SlotState], None]
    state: SlotState = FREE
    sequence: Sequence | None = None
    head: Job | None = None
    out: Job | None = None
    send: Callable[[SlotMessage], object] = _tell_nothing
    idle_s: float = 0.0
    drops: int = 0

    def assign(self, sequence: Sequence) -> None:
        """Give the slot to a sequence that has requests; it must be without one."""
        assert self.sequence is None, f"{self} is taken"
        jobs, sequence.jobs = sequence.jobs, []
        sequence.waiting = len(jobs)
        self.sequence = sequence
        sequence.slot = self
        self.send(Assign(jobs, self.state is FREE))
        self._changed()

    def put(self, job: Job) -> None:
        """A request joins the sequence, at its end."""
        self._owner.waiting += 1
        self.send(Put(job, self.state is WAITING))
        self._changed()

    def offer(self, job: Job) -> None:
        """The next request is here."""
        assert self.state is DUE, f"{self} awaits no request"
        self._owner.waiting -= 1
        self.head = job
        self._changed()

    def take(self) -> Job:
        """Let the next request go out; the slot must be READY."""
        job, self.head = self.head, None
        assert job is not None, f"{self} has no request that may go"
        self.out = job
        self._changed()
        return job

    def settle(self, job: Job) -> bool:
        """The request that was out is done with: answered, or dropped.

        Returns:
            Whether it was this one that was out (rule 4).
        """
        if job is not self.out:
            return False
        self.out = None
        self._changed()
        if self.state is DUE:
            self.send(Settle())
        return True

    def give_back(self, job: Job) -> bool:
        """The request that was out will be executed again, before all others of its sequence.

        Returns:
            Whether it was this one that was out, and its sequence is still here (rules 3 and 4).
        """
        if job is not self.out or self.sequence is None:
            return False
        self.out = None
        self.sequence.waiting += 1
        self.send(Again(job))
        self._changed()
        return True

    def drop(self, job: Job) -> bool:
        """A request of the sequence was cancelled, and goes with those that continue it.

        Returns:
            Whether those are still to be told, by `Discarded`.
        """
        queued = job is not self.out and job is not self.head
        if queued:
            self._owner.waiting -= 1
        elif job is self.out:
            self.out = None
        else:
            self.head = None
        self._changed()
        tells = queued or self.state is DUE
        if tells:
            self.send(Discard(job))
            self.drops += 1
        return tells

    def shrink(self, count: int = 0) -> None:
        """So many requests of the sequence were removed, or it is over."""
        self._owner.waiting -= count
        self._changed()

    def lose(self) -> None:
        """The slot is gone."""
        assert self.state is not GONE, f"{self} is gone"
        before, self.state = self.state, GONE
        self.head = self.out = None
        if self.sequence is not None:
            self.sequence.slot = None
            self.sequence = None
        self.on_change(self, before)
        self.drops = 0
        self.send(Dismiss())
        self.send = _tell_nothing

    @property
    def next_s(self) -> float:
        """When the request that is here was queued."""
        assert self.head is not None, f"{self} has no request that may go"
        return self.head.enqueued_s

    @property
    def _owner(self) -> Sequence:
        assert self.sequence is not None, f"{self} has no sequence"
        return self.sequence

    def _changed(self) -> None:
        """Rule 3, and the state."""
        before, sequence = self.state, self.sequence
        assert before is not GONE, f"{self} is gone"
        ends = sequence is not None and sequence.over and not sequence.waiting and self.head is None
        if sequence is not None and ends and (self.out is None or not self.holds):
            self.sequence = sequence.slot = sequence = None
        if sequence is None:
            self.state = FREE if self.out is None else PARTING
        elif self.out is not None:
            self.state = BUSY
        elif self.head is not None:
            self.state = READY
        else:
            self.state = DUE if sequence.waiting else WAITING
        self.on_change(self, before)

    def __repr__(self) -> str:
        return f"<Slot {self.number} of instance {self.instance}: {self.state.value}, {self.sequence}>"
