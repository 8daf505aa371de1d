"""Where a model's requests are handed in: its scheduler, its ensemble, or the door of the cache before one of these.

Rules:
 1. A job comes as a message of its own and is accepted or refused in that turn. One that is accepted counts as
    `inflight` until its final answer.
 2. A refusal is the final answer of a job that was not accepted. It is in none of Triton's statistics, and is
    counted by its reason (`engine.metrics.refusals`).
 3. A door that is buried answers all that it holds, and whatever still comes, with the error it was buried with.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

import trio

from ..engine.description import ActorNode
from ..engine.errors import RefusalReason, TriremeError, UnavailableError
from ..engine.job import Job
from ..engine.metrics.refusals import count_refusal
from ..engine.metrics.statistics import ModelStatistics
from ..engine.request import InferenceRequest
from .actor import Actor, Turn

M = TypeVar("M")


def stopping_error() -> TriremeError:
    """The answer to what is left when a model's time is up."""
    return UnavailableError(
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
        refusal=RefusalReason.STOPPING,
    )


class Door(Actor[M], Generic[M]):
    """What models have in common that take requests in.

    Attributes:
        turns_away: it has refused a job for want of room, and nothing that it knows of has made any since.
    """

    def __init__(self, name: str, kind: str, turn: Turn, statistics: ModelStatistics) -> None:
        super().__init__(f"{kind} of {name}", turn)
        self.name = name
        self._kind = kind
        self._statistics = statistics
        self._inflight = 0
        self.turns_away = False
        self._burial: TriremeError = stopping_error()
        self._watchers = trio.lowlevel.ParkingLot()
        self._watched = False

    @property
    def inflight(self) -> int:
        """Jobs accepted and not finally answered."""
        return self._inflight

    @property
    def full(self) -> bool:
        """Whether any job would be refused now, because the queue is full."""
        return False

    def turn_away(self, request: InferenceRequest) -> TriremeError | None:
        """The refusal, which is counted, of a request that is not to become a job, as that would be refused for
        certain; asked while it `turns_away`. None: it may have room."""
        return None

    @abstractmethod
    def admit(self, job: Job) -> None:
        """Take a job in.

        Raises:
            TriremeError: it is refused (queue full, stopping).
        """

    def refuse(self, job: Job, error: TriremeError) -> None:
        """Answer a job that goes no further."""
        count_refusal(self._statistics.refused, error)
        if self._statistics.tap.watched:
            self._statistics.tap.note_request(job.received_ns, max(job.received_ns, job.enqueued_ns), error)
        job.answered = True
        job.reply.deliver(error, True)

    def node(self) -> ActorNode:
        """What it looks like to people."""
        mail = self.mailbox.statistics()
        detail = f"{self._inflight} in flight, {self._statistics.pending} of them queued"
        state = "serving" if self.alive else "ended"
        return ActorNode(self._kind, self.name, state, detail, mail=mail.current_buffer_used, room=mail.max_buffer_size)

    # For its supervisor.

    def bury(self, error: TriremeError) -> None:
        """Rule 3: it decides nothing any more."""
        if error.refusal is None:
            error.refusal = RefusalReason.NOT_READY
        self._burial = error
        self.turns_away = False
        self.end()
        self.return_mail()

    def return_mail(self) -> None:
        for message in self.undelivered():
            if isinstance(message, Job):
                self.refuse(message, self._burial)
            else:
                self.receive_last(message)
        self.fail_held(self._burial)
        self._notify_watchers()

    @abstractmethod
    def receive_last(self, message: M) -> None:
        """Do what is still to be done about a message to a door that is buried."""

    @abstractmethod
    def fail_held(self, error: TriremeError) -> None:
        """Answer everything with `error` that is not being executed."""

    async def drained(self) -> None:
        """Wait until every job that was handed in has its final answer."""
        while self.mailbox or self.inflight:
            await self.next_step()

    async def next_step(self) -> None:
        """Wait until it has acted."""
        self._watched = True
        await self._watchers.park()

    def _notify_watchers(self) -> None:
        if self._watched:
            self._watched = False
            self._watchers.unpark_all()
