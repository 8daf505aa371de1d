"""What the default scheduler and the dynamic batcher share: a queue, and instances that are idle.

Rules:
 1. A batch is formed when an instance is there to take it, never before (late binding). Queue limits, timeouts and
    priorities act on everything that is not executing.
 2. The instance that has been idle longest takes the batch. An instance that reports idle twice can take two batches.
 3. A spare instance takes a batch only if none is idle, and if the batch cannot grow by waiting.
 4. A job that expires or is cancelled in the queue is rejected at once, whether an instance is idle or not.
 5. Once stopped, the core refuses new jobs and waits for no delay.

Each job leaves once:

    enqueue ─┬─▶ refused (raised): stopping, or its level is full
             └─▶ QUEUED ─┬─▶ Dispatch
                         ├─▶ Reject: expired (policy REJECT), reason REJECTED
                         ├─▶ Reject: cancelled, reason CANCELED
                         └─▶ given back by drop_all

What `next_action` answers; the first line that applies:

    a job was cancelled or has expired            Reject
    no job queued                                 Wait
    an instance is idle, a batch is ready         Dispatch
    an instance is spare, a batch cannot grow     Dispatch
    an instance is idle                           WaitUntil the batch's delay is over, or the closest deadline
    otherwise                                     WaitUntil the closest deadline, if there is one
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from ..config.model import DynamicBatching
from ..execution import SealReason
from ..job import Job
from . import refusals
from .core import WAIT, Action, Dispatch, InstanceId, Reject, WaitUntil
from .queue import PriorityQueues


class QueueingCore(ABC):
    """A `SchedulerCore` of a model without state: any instance may execute anything.

    Attributes:
        queued: see `SchedulerCore.queued`.
    """

    __slots__ = ("_idle", "_left", "_queue", "_spare", "_stopping", "queued")

    def __init__(self, policies: DynamicBatching) -> None:
        self.queued = 0
        self._queue = PriorityQueues(policies)
        self._idle: deque[InstanceId] = deque()
        self._spare: deque[InstanceId] = deque()
        self._left: deque[Reject] = deque()  # jobs out of the queue whose rejection was not fetched yet
        self._stopping = False

    @abstractmethod
    def _joined(self, job: Job, at_end: bool) -> None:
        """A job has been put into the queue."""

    @abstractmethod
    def _reordered(self) -> None:
        """Something else has changed in the queue."""

    @abstractmethod
    def _form(self, now: float, spare: bool) -> tuple[int, SealReason] | float:
        """How many jobs of the queue, which is not empty, are to be executed now, and why; or when there will be any.

        Args:
            spare: only if waiting could not add to them.
        """

    def enqueue(self, job: Job, now: float) -> None:
        """See `SchedulerCore.enqueue`.

        Raises:
            UnavailableError: stopping, or the job's level of the queue is full.
        """
        if self._stopping:
            raise refusals.stopping(job)
        self._joined(job, self._queue.put(job, now))
        self.queued += 1

    def instance_idle(self, instance: InstanceId, spare: bool = False) -> None:
        """See `SchedulerCore.instance_idle`."""
        if spare:
            self._spare.append(instance)
            return
        if instance in self._spare:
            self._spare.remove(instance)
        self._idle.append(instance)

    def instance_paused(self, instance: InstanceId) -> None:
        """See `SchedulerCore.instance_paused`."""
        self._idle = deque(other for other in self._idle if other != instance)
        self._spare = deque(other for other in self._spare if other != instance)

    instance_gone = instance_paused

    def wants(self, instance: InstanceId, others: int) -> bool:
        """See `SchedulerCore.wants`. Any instance may take the next."""
        return self._queue.size > others

    @property
    def full(self) -> bool:
        """See `SchedulerCore.full`."""
        return self._queue.full

    def cancel(self, job: Job) -> None:
        """See `SchedulerCore.cancel`."""
        job.cancelled = True
        if self._queue.remove(job):
            self._reordered()
            self._left.append(Reject(job, refusals.cancelled()))

    def next_action(self, now: float) -> Action:
        """See `SchedulerCore.next_action`."""
        queue = self._queue
        when_s = math.inf
        if queue.deadlines:
            for job, rejected in queue.expire(now):
                self._reordered()
                if rejected:
                    self._left.append(Reject(job, refusals.expired()))
            when_s = queue.closest_deadline_s
        if self._left:
            self.queued -= 1
            return self._left.popleft()
        if queue.size and (self._idle or self._spare):
            formed = self._form(now, not self._idle)
            if isinstance(formed, tuple):
                count, reason = formed
                self.queued -= count
                return Dispatch((self._idle or self._spare).popleft(), queue.take(count), reason)
            when_s = min(when_s, formed)
        return WAIT if when_s == math.inf else WaitUntil(when_s)

    def stop(self) -> None:
        """See `SchedulerCore.stop`."""
        self._stopping = True

    def drop_all(self) -> Sequence[Job]:
        """See `SchedulerCore.drop_all`. Jobs whose `Reject` was not fetched yet are among those given back."""
        jobs = self._queue.drain() + [reject.job for reject in self._left]
        self._left.clear()
        self._reordered()
        self.queued = 0
        return sorted(jobs, key=lambda job: job.arrival)

    def __repr__(self) -> str:
        idle = f"{len(self._idle)} idle" + f", {len(self._spare)} spare" * bool(self._spare)
        return f"<{type(self).__name__}: {self.queued} queued, {idle}{', stopping' * self._stopping}>"
