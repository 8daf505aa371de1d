"""One sequence, as its batcher knows it."""

from __future__ import annotations

from typing import Protocol

from ...job import Job

CorrelationId = int | str
"""Numbers and strings name different sequences: 5 is not "5"."""


class Place(Protocol):
    """Where a sequence is served: its `slot.Slot`."""

    idle_s: float

    def put(self, job: Job) -> None:
        """Another request of the sequence has come."""
        ...

    def shrink(self, count: int = 0) -> None:
        """The sequence has lost requests, or is over."""
        ...


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

    __slots__ = ("deadline_s", "id", "jobs", "number", "over", "slot", "started", "waiting")

    def __init__(self, correlation_id: CorrelationId, number: int) -> None:
        self.id = correlation_id
        self.number = number
        self.jobs: list[Job] = []
        self.waiting = 0
        self.started = 0
        self.over = False
        self.deadline_s: float | None = None
        self.slot: Place | None = None

    def begins_anew(self, job: Job) -> bool:
        """Whether a START is queued behind this request of it."""
        return self.started > job.arrival

    def __repr__(self) -> str:
        return f"<Sequence {self.id}: {len(self.jobs) + self.waiting} queued{', over' * self.over}>"
