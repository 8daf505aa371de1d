"""One slot of an instance, as the batcher knows it: which sequence has it, and how far its next request is.

The slot's actor has the requests themselves (`slot_core`), and is told by mail what happens to them. A slot is made
when a sequence gets it for the first time, and dismissed when it is idle, so slots that no sequence uses cost nothing.

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

States: FREE (no sequence), WAITING (its sequence has no request queued), DUE (the next request is about to be offered),
READY (the next request may go), BUSY (a request is out), PARTING (no sequence any more, its last request is out), GONE.
`TRANSITIONS` says how they follow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from itertools import product

from ...job import Job
from ..core import InstanceId
from .mail import Again, Dismiss, Drop, Put, Serve, Settle, SlotMessage
from .sequence import Sequence


class SlotState(enum.Enum):
    __hash__ = object.__hash__  # asked for at every move, and nothing depends on its value

    FREE = "free"
    WAITING = "waiting"
    DUE = "due"
    READY = "ready"
    BUSY = "busy"
    PARTING = "parting"
    GONE = "gone"


class SlotEvent(enum.Enum):
    __hash__ = object.__hash__  # as above

    ASSIGN = "a sequence, with at least one request, got the slot"
    PUT = "a request joined the sequence"
    OFFER = "the next request is here"
    TAKE = "the next request went out"
    WITHDRAW = "the next request was cancelled"
    SETTLE = "the request that was out is done with"
    RETURN = "the request that was out is to be executed again, before all others"
    SHRINK = "queued requests were removed, or the sequence is over, or both"
    LOSE = "its instance or its actor died, or it was dismissed"


FREE, WAITING, DUE, READY, BUSY, PARTING, GONE = SlotState
ASSIGN, PUT, OFFER, TAKE, WITHDRAW, SETTLE, RETURN, SHRINK, LOSE = SlotEvent
Y, N, ANY = True, False, None

TRANSITIONS = (
    #  before    event      queued over  holds   after
    ((FREE,      ASSIGN),   (Y,   ANY,  ANY),   DUE),
    ((PARTING,   ASSIGN),   (Y,   ANY,  ANY),   BUSY),
    ((WAITING,   PUT),      (Y,   ANY,  ANY),   DUE),
    ((DUE,       PUT),      (Y,   ANY,  ANY),   DUE),
    ((READY,     PUT),      (Y,   ANY,  ANY),   READY),
    ((BUSY,      PUT),      (Y,   ANY,  ANY),   BUSY),
    ((DUE,       OFFER),    (ANY, ANY,  ANY),   READY),
    ((READY,     TAKE),     (N,   Y,    N),     PARTING),
    ((READY,     TAKE),     (ANY, ANY,  ANY),   BUSY),
    ((READY,     WITHDRAW), (Y,   ANY,  ANY),   DUE),
    ((READY,     WITHDRAW), (N,   Y,    ANY),   FREE),
    ((PARTING,   SETTLE),   (N,   ANY,  ANY),   FREE),
    ((BUSY,      SETTLE),   (Y,   ANY,  ANY),   DUE),
    ((BUSY,      SETTLE),   (N,   Y,    ANY),   FREE),
    ((BUSY,      SETTLE),   (N,   N,    ANY),   WAITING),
    ((BUSY,      RETURN),   (Y,   ANY,  ANY),   DUE),
    ((WAITING,   SHRINK),   (N,   Y,    ANY),   FREE),
    ((DUE,       SHRINK),   (Y,   ANY,  ANY),   DUE),
    ((DUE,       SHRINK),   (N,   Y,    ANY),   FREE),
    ((READY,     SHRINK),   (ANY, ANY,  ANY),   READY),
    ((BUSY,      SHRINK),   (N,   Y,    N),     PARTING),
    ((BUSY,      SHRINK),   (ANY, ANY,  ANY),   BUSY),
    ((FREE,      LOSE),     (ANY, ANY,  ANY),   GONE),
    ((WAITING,   LOSE),     (ANY, ANY,  ANY),   GONE),
    ((DUE,       LOSE),     (ANY, ANY,  ANY),   GONE),
    ((READY,     LOSE),     (ANY, ANY,  ANY),   GONE),
    ((BUSY,      LOSE),     (ANY, ANY,  ANY),   GONE),
    ((PARTING,   LOSE),     (ANY, ANY,  ANY),   GONE),
)  # fmt: skip
"""State and event, conditions → next state; the first match counts, and what matches none cannot happen. *queued*: a
request of the sequence waits to be offered, after the event. *over*: no request will join the sequence. *holds*: rule
3."""

VACANT = (FREE, PARTING)
"""The states in which it may get a sequence."""


UNOWNED = (FREE, PARTING, GONE)


def _following(situation: tuple[SlotState, SlotEvent]) -> list[SlotState | None]:
    """The next states by 4 queued + 2 over + holds; None for what cannot happen."""
    lines = [(conditions, after) for line, conditions, after in TRANSITIONS if line == situation]
    return [
        next((after for wanted, after in lines if all(map(_fits, wanted, given))), None)
        for given in product((N, Y), repeat=3)
    ]


def _fits(wanted: bool | None, given: bool) -> bool:
    return wanted in (ANY, given)


_NEXT = {situation: _following(situation) for situation, _, _ in TRANSITIONS}


def _tell_nothing(message: SlotMessage) -> None:
    """Stands for the mailbox of a slot that is gone."""


class Slot:
    """A slot.

    Args:
        instance: whose slot it is.
        number: which of its slots, from 0; for the direct strategy, the row in its batches.
        holds: a request may come back after its execution (rule 3).
        changed: called after each change of state, with the slot and the state before.

    Attributes:
        sequence: the one that it serves; None if it serves none.
        head: the request that was offered and has not gone; None if there is none.
        out: the request that is out; None if none is.
        send: leaves a message in the mailbox of its actor.
        idle_s: when nothing has come for too long, for the batcher to set.
        drops: answers to `Drop` that are still to come.
    """

    __slots__ = (
        "_changed",
        "drops",
        "head",
        "holds",
        "idle_s",
        "instance",
        "number",
        "out",
        "send",
        "sequence",
        "state",
    )

    def __init__(
        self,
        instance: InstanceId,
        number: int,
        holds: bool,
        changed: Callable[[Slot, SlotState], None],
    ) -> None:
        self.instance = instance
        self.number = number
        self.holds = holds
        self.state = FREE
        self.sequence: Sequence | None = None
        self.head: Job | None = None
        self.out: Job | None = None
        self.send: Callable[[SlotMessage], object] = _tell_nothing
        self.idle_s = 0.0
        self.drops = 0
        self._changed = changed

    def assign(self, sequence: Sequence) -> None:
        """Give the slot to a sequence that has requests; it must be without one."""
        assert self.sequence is None, f"{self} is taken"
        jobs, sequence.jobs = sequence.jobs, []
        sequence.waiting = len(jobs)
        self.sequence = sequence
        sequence.slot = self
        self.send(Serve(jobs, self.state is FREE))
        self._move(ASSIGN)

    def put(self, job: Job) -> None:
        """A request joins the sequence, at its end."""
        self._owner.waiting += 1
        self.send(Put(job, self.state is WAITING))
        self._move(PUT)

    def offer(self, job: Job) -> None:
        """The next request is here."""
        self._owner.waiting -= 1
        self.head = job
        self._move(OFFER)

    def take(self) -> Job:
        """Let the next request go out; the slot must be READY."""
        job, self.head = self.head, None
        assert job is not None, f"{self} has no request that may go"
        self.out = job
        self._move(TAKE)
        return job

    def settle(self, job: Job) -> bool:
        """The request that was out is done with: answered, or dropped.

        Returns:
            Whether it was this one that was out (rule 4).
        """
        if job is not self.out:
            return False
        self.out = None
        self._move(SETTLE)
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
        self._move(RETURN)
        return True

    def drop(self, job: Job) -> bool:
        """A request of the sequence was cancelled, and goes with those that continue it.

        Returns:
            Whether those are still to be told, by `Dropped`.
        """
        if job is self.out:
            self.out = None
            self._move(SETTLE)
        elif job is self.head:
            self.head = None
            self._move(WITHDRAW)
        else:
            self._owner.waiting -= 1
            self.send(Drop(job))
            self.drops += 1
            self._move(SHRINK)
            return True
        if self.state is not DUE:
            return False
        self.send(Drop(job))
        self.drops += 1
        return True

    def shrink(self, count: int = 0) -> None:
        """So many requests of the sequence were removed, or it is over."""
        self._owner.waiting -= count
        self._move(SHRINK)

    def lose(self) -> None:
        """The slot is gone."""
        self.head = self.out = None
        self._move(LOSE)
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

    def _move(self, event: SlotEvent) -> None:
        before = self.state
        sequence = self.sequence
        following = _NEXT.get((before, event))
        conditions = self.holds if sequence is None else 4 * (sequence.waiting > 0) + 2 * sequence.over + self.holds
        after = None if following is None else following[conditions]
        assert after is not None, f"{event.name} cannot happen to {self}"
        self.state = after
        if sequence is not None and self.state in UNOWNED:
            self.sequence = None
            sequence.slot = None
        self._changed(self, before)

    def __repr__(self) -> str:
        return f"<Slot {self.number} of instance {self.instance}: {self.state.value}, {self.sequence}>"
