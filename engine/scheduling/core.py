"""What scheduler cores have in common: events in, actions out, time as an argument.

A core is synchronous and owns no clock. It is fed events (`enqueue`, `instance_idle`, `cancel` …) and then asked for
its `next_action` until that is `Wait`, `WaitUntil` or `Await`. Asking again without a new event and with the same `now`
gives that answer again. Cores decide; they never answer a job themselves: a refusal at the door is raised, a later one
is a `Reject`.

`SchedulerCore` is what each kind of model needs; stateful models need more (`sequence.batcher`). Which instances there
are, and when each may take a batch, is the `Dispatcher`'s, which all kinds of models share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import TriremeError
from ..job import Job, SealReason

InstanceId = int


@dataclass(slots=True)  # not frozen, which would cost as much as the rest of the decision
class Dispatch:
    """Execute these jobs, in this order, on this instance, which is busy from now on.

    Attributes:
        isolated: the only one of them may have ended the process of an instance before.
    """

    instance: InstanceId
    jobs: Sequence[Job]
    reason: SealReason
    isolated: bool = False


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


@dataclass(frozen=True, slots=True)
class Await:
    """Nothing is decided before what comes in this turn has come: ask again then, and give back nothing meanwhile."""


Action = Dispatch | Reject | WaitUntil | Wait | Await

WAIT = Wait()
AWAIT = Await()


class SchedulerCore(Protocol):
    """Decides which queued jobs are executed together, and when."""

    @property
    def queued(self) -> int:
        """Jobs that have not left by an action, those included whose `Reject` was not fetched yet."""
        ...

    def enqueue(self, job: Job, now: float) -> None:
        """Take a job into the queue, filling in its `level`, `arrival`, `enqueued_s` and `deadline_s`.

        Raises:
            TriremeError: the job is refused (queue full, stopping); it was not queued.
        """

    def instance_idle(self, instance: InstanceId, spare: bool = False) -> None:
        """An instance (new, or done with a batch) can take a batch, or one that was spare can take any.

        Args:
            spare: it still executes one: it takes only a batch that could not grow if it waited.
        """

    def instance_paused(self, instance: InstanceId) -> None:
        """An idle instance may take no batch after all, until `instance_idle` is said again. Fine for a busy one."""

    def wants(self, instance: InstanceId, others: int) -> bool:
        """Whether something that is queued may be for this instance, which is not idle only because it needs leave to
        execute. `others` are about to take, or to get, a batch each."""
        ...

    def instance_gone(self, instance: InstanceId) -> None:
        """An instance will take no more batches. Unknown and busy ones are fine."""

    def cancel(self, job: Job) -> None:
        """The job's client gave up. Fine for jobs that are not queued (any more). A job that was queued gets a `Reject`
        of kind CANCELLED at the next `next_action`."""

    def next_action(self, now: float) -> Action: ...

    def stop(self) -> None:
        """Refuse new jobs from now on, and no longer wait for delays: drain what is queued."""

    def drop_all(self) -> Sequence[Job]:
        """Empty the queue and give back what was in it, in arrival order (the model failed, or time is up)."""
        ...

    @property
    def full(self) -> bool:
        """Whether any job would be refused now, because the queue is full."""
        ...
