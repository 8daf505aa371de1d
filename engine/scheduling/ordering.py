"""Answers in order, for models with preserve_ordering (docs/reference/scheduling.md#preserved-order,
docs/reference/sequences.md#oldest-strategy).

`OrderedRelease` keeps the order of arrival of everything that a dynamic batcher gets. The sequence batcher's oldest
strategy has a dynamic batcher an instance, so there `OrderedByInstance` keeps the order in which requests were given
to each instance, and instances do not wait for each other.

Rules:
 1. A job takes its place when it is queued, and keeps it until its final answer is given.
 2. Only the job in first place may answer. What others answer is held back until they are first; then it all goes out,
    in the order in which it was given.
 3. How a job ends does not matter: one that was rejected or cancelled in the queue waits its turn with its error, and
    frees its place with it.
 4. Answers that are held back do not hold their model back (`engine.instances.answer_window`): it may have to go on in
    order to answer the job in first place. They count again when they go out.

A place goes HOLDING ─(all before it have ended)▶ FIRST ─(final answer)▶ gone; a final answer that is given in HOLDING
goes out, and the place with it, on becoming first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

from ..config.model import ModelConfig
from ..config.sequence import OldestStrategy, sequence_batching
from ..job import Job, Outcome
from .core import InstanceId

GivenAnswer = tuple[Job, Outcome, bool]
"""A job, what it is answered with, and whether that is its last answer."""


class AnswerOrder(ABC):
    """Decides when an answer may go out."""

    __slots__ = ()

    def admit(self, job: Job) -> None:
        """A job was queued."""

    def dispatched(self, instance: InstanceId, jobs: Sequence[Job]) -> None:
        """Jobs were given to an instance, in batch order."""

    @abstractmethod
    def settle(self, job: Job, outcome: Outcome, final: bool) -> list[GivenAnswer]:
        """Take an answer, the job's last one if it is `final`; the answers that may go out now, in order.

        What follows a job's final answer is dropped.
        """


def answer_order(config: ModelConfig) -> AnswerOrder | None:
    """The order that a model's answers must keep; None for none."""
    batching = config.dynamic_batching
    if batching is not None and batching.preserve_ordering:
        return OrderedRelease()
    sequences = sequence_batching(config)
    if (
        sequences is not None
        and isinstance(sequences.strategy, OldestStrategy)
        and sequences.strategy.preserve_ordering
    ):
        return OrderedByInstance()
    return None


class OrderedRelease(AnswerOrder):
    """Holds answers back until it is their turn.

    Attributes:
        held: answers held back now.
    """

    __slots__ = ("_places", "held")

    def __init__(self) -> None:
        self._places: OrderedDict[Job, list[GivenAnswer]] = OrderedDict()
        self.held = 0

    def admit(self, job: Job) -> None:
        """Give a job the last place (rule 1)."""
        self._places[job] = []

    def settle(self, job: Job, outcome: Outcome, final: bool) -> list[GivenAnswer]:
        """See `AnswerOrder.settle`. The answer of a job that was never admitted is dropped, too."""
        places = self._places
        held = places.get(job)
        if held is None or (held and held[-1][2]):
            return []
        if job is not next(iter(places)):
            held.append((job, outcome, final))
            self.held += 1
            if job.window is not None:
                job.window.leave(1)
            return []
        released: list[GivenAnswer] = [(job, outcome, final)]
        while final:
            places.popitem(last=False)
            if not places:
                break
            first = next(iter(places))
            waiting = places[first]
            released += waiting
            for held_job, _, _ in waiting:
                if held_job.window is not None:
                    held_job.window.enter()
            self.held -= len(waiting)
            final = bool(waiting) and waiting[-1][2]
            waiting.clear()
        return released

    def __len__(self) -> int:
        """Jobs that have not given their final answer, or not got it out."""
        return len(self._places)


class OrderedByInstance(AnswerOrder):
    """Holds answers back until it is their turn on their instance.

    Who executes a batch at a time answers in order anyway; a decoupled model may still answer an earlier request when
    it has begun a later one. A job has no place before it is dispatched: one that is refused in the queue is answered
    at once, and one that is rescheduled keeps its place if it stays on its instance, as a sequence's jobs do.
    """

    __slots__ = ("_executors", "_lines")

    def __init__(self) -> None:
        self._lines: dict[InstanceId, OrderedRelease] = {}
        self._executors: dict[Job, InstanceId] = {}

    def dispatched(self, instance: InstanceId, jobs: Sequence[Job]) -> None:
        """Give jobs the last places of their instance."""
        for job in jobs:
            if job not in self._executors and not job.is_null:
                self._executors[job] = instance
                self._lines.setdefault(instance, OrderedRelease()).admit(job)

    def settle(self, job: Job, outcome: Outcome, final: bool) -> list[GivenAnswer]:
        instance = self._executors.pop(job, None) if final else self._executors.get(job)
        if instance is None:
            return [(job, outcome, final)]
        line = self._lines[instance]
        released = line.settle(job, outcome, final)
        if not line:
            del self._lines[instance]
        return released
