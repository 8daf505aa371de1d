"""Sequences: strictly in order, one request at a time, on one instance (docs/reference/sequences.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.config.sequence import DirectStrategy
from ..events import (
    BatchSealed,
    InstanceDetached,
    ReplyDelivered,
    RequestDropped,
    RequestQueued,
    RequestRejected,
    RequestRescheduled,
    StateUsed,
)
from ..history import Handlers
from .base import Complain, Invariant
from .state import WorldState


@dataclass(slots=True, eq=False)
class SequenceRun:
    """A sequence from a START on.

    Attributes:
        waiting: its requests that are queued, in order.
        place: the instance that it is bound to, and which life of that instance; None until it is executed first.
        slot: under the direct strategy, its row in its instance's batches.
        left: the implicit state that its last request left.
    """

    name: int | str
    waiting: dict[int, None] = field(default_factory=dict)
    place: tuple[str, str, int] | None = None
    slot: int = -1
    left: float = 0.0


class SequenceOrder(Invariant):
    """Order, affinity, no two of a sequence in one batch, and under the direct strategy a slot of its own.

    A sequence begins with a START, and ends with an END or the life of its instance: what is bound to that is not
    executed by another one, which would know nothing of it. In an iterative model a request that belongs to none is a
    sequence of its own, and one that comes back goes before all others of its sequence.
    """

    name = "sequences are executed in order on one instance"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self.executing: dict[int, SequenceRun] = {}  # by request
        self._open: dict[tuple[str, int | str], SequenceRun] = {}
        self._runs: dict[int, SequenceRun] = {}  # by queued request
        self._lives: dict[tuple[str, str], int] = {}
        self._owners: dict[tuple[str, str, int, int], SequenceRun] = {}  # by slot, who was executed there last

    def handlers(self) -> Handlers:
        if not any(view.sequences for view in self._state.models.values()):
            return {}
        return {
            RequestQueued: self._queued,
            RequestRejected: self._left,
            RequestDropped: self._left,
            BatchSealed: self._sealed,
            ReplyDelivered: self._delivered,
            RequestRescheduled: self._rescheduled,
            InstanceDetached: self._detached,
        }

    def _queued(self, event: RequestQueued) -> None:
        asked = self._state.asked.get(event.request)
        if asked is None or self._state.models[event.model].sequences is None:
            return
        key = (event.model, asked.sequence)
        run = self._open.get(key)
        if not asked.sequence:
            run = SequenceRun(f"of request {event.request}")
        elif asked.start:
            run = self._open[key] = SequenceRun(asked.sequence)
        elif run is None:
            self.broken(f"request {event.request} was accepted for sequence {asked.sequence}, which never began")
            return
        if asked.end:
            self._open.pop(key, None)
        run.waiting[event.request] = None
        self._runs[event.request] = run

    def _left(self, event: RequestRejected | RequestDropped) -> None:
        run = self._runs.pop(event.request, None)
        if run is not None:
            del run.waiting[event.request]

    def _sealed(self, batch: BatchSealed) -> None:
        batching = self._state.models[batch.model].sequences
        if batching is None:
            return
        where = (batch.model, batch.instance)
        place = (*where, self._lives.get(where, 0))
        seen: list[SequenceRun] = []
        direct = isinstance(batching.strategy, DirectStrategy)
        for row, request in enumerate(batch.requests):
            run = self._runs.pop(request, None)
            if run is None:
                continue  # a row of padding
            first = next(iter(run.waiting))
            del run.waiting[request]
            if run in seen:
                self.broken(f"batch {batch.batch} has several requests of sequence {run.name}")
            elif first != request:
                self.broken(f"request {request} of sequence {run.name} is executed before request {first}")
            elif run.place not in (None, place):
                self.broken(f"request {request} of sequence {run.name}, bound to {run.place}, is executed by {place}")
            elif direct and run.slot not in (-1, row):
                self.broken(f"request {request} of sequence {run.name} is in row {row}; its slot is {run.slot}")
            elif direct and run.place is not None and self._owners[*place, row] is not run:
                self.broken(f"slot {row} of {place} was given away while sequence {run.name} had it")
            self.executing[request] = run
            run.place = place
            run.slot = row
            self._owners[*place, row] = run
            seen.append(run)

    def _delivered(self, event: ReplyDelivered) -> None:
        if event.final:
            self.executing.pop(event.request, None)

    def _rescheduled(self, event: RequestRescheduled) -> None:
        run = self.executing.pop(event.request)
        run.waiting = {event.request: None, **run.waiting}
        self._runs[event.request] = run

    def _detached(self, event: InstanceDetached) -> None:
        where = (event.model, event.instance)
        self._lives[where] = self._lives.get(where, 0) + 1


class StatesKept(Invariant):
    """A request finds the implicit state that the one before it in its sequence left, and a START finds none
    (docs/reference/sequences.md#implicit-state).

    Args:
        order: knows which sequences are executed.
    """

    name = "a sequence's state is its own"

    def __init__(self, complain: Complain, order: SequenceOrder) -> None:
        super().__init__(complain)
        self._order = order

    def handlers(self) -> Handlers:
        return {StateUsed: self._used}

    def _used(self, event: StateUsed) -> None:
        run = self._order.executing[event.request]
        if event.found != run.left:
            self.broken(f"request {event.request} of sequence {run.name} found {event.found:g}, not {run.left:g}")
        run.left = event.left
