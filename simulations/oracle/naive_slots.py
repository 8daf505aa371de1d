"""What a naive sequence batcher keeps: requests, sequences, slots and instances (`naive_sequences`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from .observed import NEVER_S
from .queues import NaiveEntry


@dataclass(slots=True, eq=False)
class NaiveRequest:
    """A request. `since_s`: when it was queued, or issued, or came back."""

    number: int
    arrival: int
    start: bool
    since_s: float
    entry: NaiveEntry


@dataclass(slots=True, eq=False)
class NaiveRun:
    """A sequence from a START on.

    Attributes:
        jobs: its requests that wait, in order.
        over: no request can continue it.
        idle_s: when it will have been silent for too long, while it has a slot.
        deadline_s: when its time in the backlog is over.
    """

    name: int | str
    jobs: list[NaiveRequest] = field(default_factory=list)
    over: bool = False
    slot: NaiveSlot | None = None
    idle_s: float = NEVER_S
    deadline_s: float = NEVER_S

    def cut(self, first: NaiveRequest | None = None) -> list[NaiveRequest]:
        """Take out a request and those that continue it, up to the next START; without one, from the first on."""
        at = 0 if first is None else self.jobs.index(first)
        end = at + (first is not None)
        while end < len(self.jobs) and not self.jobs[end].start:
            end += 1
        taken = self.jobs[at:end]
        del self.jobs[at:end]
        return taken


@dataclass(slots=True, eq=False)
class NaiveSlot:
    """A slot. `out`: its request that was handed on and is not settled; `ready_turn`: when it became ready. `cut`: what
    follows cancelled requests, of which the slot has yet to say that it has dropped them; `asked`: so many times."""

    instance: int
    number: int
    run: NaiveRun | None = None
    out: NaiveRequest | None = None
    free_turn: int = 0
    ready_turn: int = 0
    cut: set[int] = field(default_factory=set)
    asked: int = 0

    @property
    def is_ready(self) -> bool:
        return self.run is not None and bool(self.run.jobs) and self.out is None


@dataclass(slots=True, eq=False)
class NaiveInstance:
    """An instance and its slots. `issued`: of the oldest strategy, what may be batched, in order; `orphans`: requests
    in execution whose slots have died; `least`: of the oldest strategy, so many are issued before a batch is formed."""

    places: list[NaiveSlot]
    issued: list[NaiveRequest] = field(default_factory=list)
    executing: int = 0
    orphans: set[int] = field(default_factory=set)
    leaving: bool = False
    least: int = 0
