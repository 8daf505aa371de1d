"""One slot of an instance: the place of one sequence at a time, and the guard of its order.

Rules:
 1. A slot belongs to one instance for good, and serves one sequence at a time. All requests of a sequence go through
    the slot that it was given.
 2. At most one request of a slot is *out*, from `take` until `settle`; the next one goes only then. So the requests of
    a sequence are executed strictly in order, even if their instance could execute several batches at once.
 3. A sequence leaves as soon as it is over and none of its requests waits: the slot is free for another one, whose
    first request then waits for the one that is still out. In a slot that *holds* (iterative models), where a request
    may come back, the sequence leaves only when nothing is out.
 4. Only the very request that is out can be settled or come back. Any other is ignored, however often it is tried: a
    sequence cannot be made to leave twice.
 5. A slot whose instance died gets no sequence any more.

States: FREE (no sequence), WAITING (its sequence has no request queued), READY (the next request may go), BUSY (a
request is out), PARTING (no sequence any more, its last request is out), GONE. `TRANSITIONS` says how they follow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from ...job import Job
from ..core import InstanceId
from .sequence import Sequence


class SlotState(enum.Enum):
    __hash__ = object.__hash__  # asked for at every move, and nothing depends on its value

    FREE = "free"
    WAITING = "waiting"
    READY = "ready"
    BUSY = "busy"
    PARTING = "parting"
    GONE = "gone"


class SlotEvent(enum.Enum):
    __hash__ = object.__hash__  # as above

    ASSIGN = "a sequence, with at least one request, got the slot"
    PUT = "a request joined the sequence"
    TAKE = "the next request went out"
    SETTLE = "the request that was out is done with"
    RETURN = "the request that was out is to be executed again, before all others"
    SHRINK = "queued requests were removed, or the sequence is over, or both"
    LOSE = "the instance died"


FREE, WAITING, READY, BUSY, PARTING, GONE = SlotState
ASSIGN, PUT, TAKE, SETTLE, RETURN, SHRINK, LOSE = SlotEvent
Y, N, ANY = True, False, None

TRANSITIONS = (
    #  before    event    queued  over  holds   after
    ((FREE,      ASSIGN), (Y,     ANY,  ANY),   READY),
    ((PARTING,   ASSIGN), (Y,     ANY,  ANY),   BUSY),
    ((WAITING,   PUT),    (Y,     ANY,  ANY),   READY),
    ((READY,     PUT),    (Y,     ANY,  ANY),   READY),
    ((BUSY,      PUT),    (Y,     ANY,  ANY),   BUSY),
    ((READY,     TAKE),   (N,     Y,    N),     PARTING),
    ((READY,     TAKE),   (ANY,   ANY,  ANY),   BUSY),
    ((PARTING,   SETTLE), (N,     ANY,  ANY),   FREE),
    ((BUSY,      SETTLE), (Y,     ANY,  ANY),   READY),
    ((BUSY,      SETTLE), (N,     Y,    ANY),   FREE),
    ((BUSY,      SETTLE), (N,     N,    ANY),   WAITING),
    ((BUSY,      RETURN), (Y,     ANY,  ANY),   READY),
    ((WAITING,   SHRINK), (N,     Y,    ANY),   FREE),
    ((READY,     SHRINK), (Y,     ANY,  ANY),   READY),
    ((READY,     SHRINK), (N,     Y,    ANY),   FREE),
    ((BUSY,      SHRINK), (N,     Y,    N),     PARTING),
    ((BUSY,      SHRINK), (ANY,   ANY,  ANY),   BUSY),
    ((FREE,      LOSE),   (ANY,   ANY,  ANY),   GONE),
    ((WAITING,   LOSE),   (ANY,   ANY,  ANY),   GONE),
    ((READY,     LOSE),   (ANY,   ANY,  ANY),   GONE),
    ((BUSY,      LOSE),   (ANY,   ANY,  ANY),   GONE),
    ((PARTING,   LOSE),   (ANY,   ANY,  ANY),   GONE),
)  # fmt: skip
"""State and event, conditions → next state; the first match counts, and what matches none cannot happen. *queued*: a
request of the sequence waits, after the event. *over*: no request will join the sequence. *holds*: rule 3."""

UNOWNED = (FREE, PARTING, GONE)
"""The states without a sequence."""


_NEXT = {
    (before, event, queued, over, holds): after
    for (before, event), conditions, after in reversed(TRANSITIONS)
    for queued in (False, True)
    for over in (False, True)
    for holds in (False, True)
    if all(wanted in (ANY, given) for wanted, given in zip(conditions, (queued, over, holds), strict=True))
}


class Slot:
    """A slot.

    Args:
        instance: whose slot it is.
        number: which of its slots, from 0; for the direct strategy, the row in its batches.
        holds: a request may come back after its execution (rule 3).
        changed: called after each change of state, with the slot and the state before.

    Attributes:
        sequence: the one that it serves; None if it serves none.
        out: the request that is out; None if none is.
    """

    __slots__ = ("_changed", "holds", "instance", "number", "out", "sequence", "state")

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
        self.state = SlotState.FREE
        self.sequence: Sequence | None = None
        self.out: Job | None = None
        self._changed = changed

    def assign(self, sequence: Sequence) -> None:
        """Give the slot to a sequence that has requests; it must be without one."""
        assert self.sequence is None, f"{self} is taken"
        self.sequence = sequence
        sequence.slot = self
        self._move(SlotEvent.ASSIGN)

    def put(self, job: Job) -> None:
        """A request joins the sequence, at its end."""
        self._owner.jobs[job] = None
        self._move(SlotEvent.PUT)

    def take(self) -> Job:
        """Let the next request go out; the slot must be READY."""
        assert self.state is SlotState.READY, f"{self} has no request that may go"
        job, _ = self._owner.jobs.popitem(last=False)
        self.out = job
        self._move(SlotEvent.TAKE)
        return job

    def settle(self, job: Job) -> bool:
        """The request that was out is done with: answered, or dropped.

        Returns:
            Whether it was this one that was out (rule 4).
        """
        if job is not self.out:
            return False
        self.out = None
        self._move(SlotEvent.SETTLE)
        return True

    def give_back(self, job: Job) -> bool:
        """The request that was out will be executed again, before all others of its sequence.

        Returns:
            Whether it was this one that was out, and its sequence is still here (rules 3 and 4).
        """
        if job is not self.out or self.sequence is None:
            return False
        self.out = None
        self.sequence.jobs[job] = None
        self.sequence.jobs.move_to_end(job, last=False)
        self._move(SlotEvent.RETURN)
        return True

    def shrink(self) -> None:
        """Requests of the sequence were removed, or it is over."""
        self._move(SlotEvent.SHRINK)

    def lose(self) -> None:
        """The instance died."""
        self.out = None
        self._move(SlotEvent.LOSE)

    @property
    def next_s(self) -> float:
        """When the next request of its sequence, which must have one, was queued."""
        return self._owner.head.enqueued_s

    @property
    def _owner(self) -> Sequence:
        assert self.sequence is not None, f"{self} has no sequence"
        return self.sequence

    def _move(self, event: SlotEvent) -> None:
        before = self.state
        sequence = self.sequence
        queued = sequence is not None and len(sequence.jobs) > 0
        over = sequence is not None and sequence.over
        key = (before, event, queued, over, self.holds)
        assert key in _NEXT, f"{event.name} cannot happen to {self}"
        self.state = _NEXT[key]
        if sequence is not None and self.state in UNOWNED:
            self.sequence = None
            sequence.slot = None
        self._changed(self, before)

    def __repr__(self) -> str:
        return f"<Slot {self.number} of instance {self.instance}: {self.state.value}, {self.sequence}>"
