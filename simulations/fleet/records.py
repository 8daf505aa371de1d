"""What is known of simulated requests from outside: what was asked, what was answered, and where they were executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...engine.fleet.types import FleetRequest

ProcessPlace = tuple[str, int]
"""A replica, and which of its processes, counted from 0."""


@dataclass(eq=False, slots=True)
class SequenceRecord:
    """One sequence, from its first request to its last.

    Attributes:
        executed: the numbers of its requests, in the order of their execution, and where.
        broken: a request of it was not answered well, so the client has given it up.
    """

    executed: list[tuple[int, ProcessPlace]] = field(default_factory=list)
    broken: bool = False


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One request.

    Attributes:
        number: of a sequence's, its place in that.
        outcomes: what the client was told: "answered", or what went wrong.
        executed: where.
        sent_to: the replicas that it was sent to.
        then: called with the outcome.
    """

    asked: FleetRequest
    came_s: float
    sequence: SequenceRecord | None = None
    number: int = 0
    outcomes: list[str] = field(default_factory=list)
    executed: list[ProcessPlace] = field(default_factory=list)
    sent_to: list[str] = field(default_factory=list)
    then: Callable[[str], None] | None = None

    def finish(self, outcome: str) -> None:
        """The client is told."""
        self.outcomes.append(outcome)
        if outcome != "answered" and self.sequence is not None:
            self.sequence.broken = True
        if self.then is not None:
            self.then(outcome)
