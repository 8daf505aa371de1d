"""Answers in order of arrival, for models with preserve_ordering (scheduling.md §4.6).

Rules:
 1. A job takes its place when it is queued, and keeps it until its final answer is given.
 2. Only the job in first place may answer. What others answer is held back until they are first; then it all goes out,
    in the order in which it was given.
 3. How a job ends does not matter: one that was rejected or cancelled in the queue waits its turn with its error, and
    frees its place with it.

A place goes HOLDING ─(all before it have ended)▶ FIRST ─(final answer)▶ gone; a final answer that is given in HOLDING
goes out, and the place with it, on becoming first.
"""

from __future__ import annotations

from collections import OrderedDict

from ..job import Job, Outcome

Answer = tuple[Job, Outcome, bool]
"""A job, what it is answered with, and whether that is its last answer."""


class OrderedRelease:
    """Holds answers back until it is their turn.

    Attributes:
        held: answers held back now.
    """

    __slots__ = ("_places", "held")

    def __init__(self) -> None:
        self._places: OrderedDict[Job, list[Answer]] = OrderedDict()
        self.held = 0

    def admit(self, job: Job) -> None:
        """Give a job the last place (rule 1)."""
        self._places[job] = []

    def settle(self, job: Job, outcome: Outcome, final: bool) -> list[Answer]:
        """Take an answer.

        Args:
            final: the job answers no more.

        Returns:
            The answers that may go out now, in order. What follows a job's final answer is dropped, and so is the
            answer of a job that was never admitted.
        """
        places = self._places
        held = places.get(job)
        if held is None or (held and held[-1][2]):
            return []
        if job is not next(iter(places)):
            held.append((job, outcome, final))
            self.held += 1
            return []
        released: list[Answer] = [(job, outcome, final)]
        while final:
            places.popitem(last=False)
            if not places:
                break
            first = next(iter(places))
            waiting = places[first]
            released += waiting
            self.held -= len(waiting)
            final = bool(waiting) and waiting[-1][2]
            waiting.clear()
        return released

    def __len__(self) -> int:
        """Jobs that have not given their final answer, or not got it out."""
        return len(self._places)
