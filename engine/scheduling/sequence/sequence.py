"""One sequence: its requests that wait, in order, and what is known about it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from ...job import Job
from .state import SequenceState

CorrelationId = int | str
"""Numbers and strings name different sequences: 5 is not "5"."""


class Place(Protocol):
    """Where a sequence is served: its `slot.Slot`."""

    def put(self, job: Job) -> None:
        """Another request of the sequence has come."""
        ...

    def shrink(self) -> None:
        """The sequence has lost requests, or is over."""
        ...


class Sequence:
    """Requests with one correlation id, from a START to an END.

    Attributes:
        id: the correlation id.
        number: unique among the sequences of a batcher, and growing.
        jobs: its requests that were not handed on yet, in order.
        over: no request will be added any more (END came, idle too long, cancelled).
        idle_s: when it will have been idle for too long; only counts while it has a slot and is not over.
        deadline_s: when its time in the backlog is over; None for never.
        slot: whose it is; None while in the backlog, and again once its last request was handed on.
        state: implicit state, from the first request handed on; None for models without.
    """

    __slots__ = ("deadline_s", "id", "idle_s", "jobs", "number", "over", "slot", "state")

    def __init__(self, correlation_id: CorrelationId, number: int) -> None:
        self.id = correlation_id
        self.number = number
        self.jobs: OrderedDict[Job, None] = OrderedDict()
        self.over = False
        self.idle_s = 0.0
        self.deadline_s: float | None = None
        self.slot: Place | None = None
        self.state: SequenceState | None = None

    @property
    def head(self) -> Job:
        """The request that is next; there must be one."""
        return next(iter(self.jobs))

    @property
    def begins_anew(self) -> bool:
        """Whether a START is queued."""
        return any(job.request.sequence_start for job in self.jobs)

    def cut(self, job: Job | None = None) -> list[Job]:
        """Take out a queued request and those that continue it, which are all up to the next START.

        Args:
            job: where to begin; None for what continues the request that was handed on last.

        Returns:
            What was taken out, in order.
        """
        removed: list[Job] = []
        for other in self.jobs:
            if removed or job is None:
                if other.request.sequence_start:
                    break
                removed.append(other)
            elif other is job:
                removed.append(other)
        for other in removed:
            del self.jobs[other]
        return removed

    def __repr__(self) -> str:
        return f"<Sequence {self.id}: {len(self.jobs)} queued{', over' * self.over}>"
