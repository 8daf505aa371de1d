"""What every scheduler core has in common: events in, actions out, time as an argument.

A core is synchronous and owns no clock. Its actor feeds it events (`enqueue`, `instance_idle`, `cancel` …) and then
calls `next_action` until it answers `Wait` or `WaitUntil`. Asking again without a new event and with the same `now`
gives that answer again. Cores decide; they never answer a job themselves: a refusal at the door is raised, a later one
is a `Reject`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import TriremeError
from ..execution import SealReason
from ..job import Job

InstanceId = int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Execute these jobs, in this order, on this instance, which is busy from now on."""

    instance: InstanceId
    jobs: Sequence[Job]
    reason: SealReason


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer this job, which has left the queue, with this error."""

    job: Job
    error: TriremeError


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to do before `when_s` (in the terms of `now`) unless an event comes first."""

    when_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until an event comes."""


Action = Dispatch | Reject | WaitUntil | Wait

WAIT = Wait()


class SchedulerCore(Protocol):
    """A scheduler's decisions."""

    def enqueue(self, job: Job, now: float) -> None:
        """Take a job into the queue, filling in its `level`, `arrival`, `enqueued_s` and `deadline_s`.

        Raises:
            TriremeError: the job is refused (queue full, stopping); it was not queued.
        """
        ...

    def instance_idle(self, instance: InstanceId) -> None:
        """An instance (new, or done with its batch) can take a batch."""
        ...

    def instance_paused(self, instance: InstanceId) -> None:
        """An idle instance may take no batch after all, until `instance_idle` is said again. Fine for a busy one."""
        ...

    def wants(self, instance: InstanceId, others: int) -> bool:
        """Whether something that is queued may be for this instance, which is not idle only because it needs leave to
        execute. `others` are about to take, or to get, a batch each."""
        ...

    def instance_gone(self, instance: InstanceId) -> None:
        """An instance will take no more batches. Unknown and busy ones are fine."""
        ...

    def release(self, instance: InstanceId) -> bool:
        """An instance is to go: give it nothing any more that would bind it for longer than a batch.

        Returns:
            Whether nothing binds it now, but what it executes; ask again after each event. Unknown ones are free.
        """
        ...

    def cancel(self, job: Job) -> None:
        """The job's client gave up. Fine for jobs that are not queued (any more). A core that drops cancelled jobs
        answers with a `Reject` of kind CANCELLED at the next `next_action`."""
        ...

    def settle(self, jobs: Sequence[Job], now: float, rescheduled: Collection[Job]) -> None:
        """A batch is over; said before its answers go out and before its instance is idle again, or gone.

        Args:
            jobs: the batch, as dispatched.
            rescheduled: those of them that are to be executed once more instead of being answered (iterative models).
        """
        ...

    def next_action(self, now: float) -> Action: ...

    def stop(self) -> None:
        """Refuse new jobs from now on, and no longer wait for delays: drain what is queued."""
        ...

    def end_sequences(self) -> None:
        """Sequences cannot be continued any more: each is over when its queued requests have been executed."""
        ...

    def drop_all(self) -> Sequence[Job]:
        """Empty the queue and give back what was in it, in arrival order (the model failed, or time is up)."""
        ...

    @property
    def full(self) -> bool:
        """Whether any job would be refused now, because the queue is full."""
        ...

    def continues(self, correlation_id: int | str) -> bool:
        """Whether it has a sequence of this id that a request may continue."""
        ...

    @property
    def active(self) -> int:
        """Sequences that a request may continue."""
        ...

    @property
    def queued(self) -> int:
        """Jobs in the queue."""
        ...
