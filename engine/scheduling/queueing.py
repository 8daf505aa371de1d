"""The schedulers of models without state: the default one, for models that name no other
(docs/reference/scheduling.md#default-scheduler), and the dynamic batcher
(docs/reference/scheduling.md#dynamic-batching).

Rules:
 1. A batch is formed when an instance is there to take it, never before (late binding). Queue limits, timeouts and
    priorities act on everything that is not executing.
 2. The instance that has been idle longest takes the batch. An instance that reports idle twice can take two batches.
 3. A spare instance takes a batch only if none is idle, and if the batch cannot grow by waiting.
 4. A job that expires or is cancelled in the queue is rejected at once, whether an instance is idle or not.
 5. Once stopped, the core refuses new jobs and waits for no delay.
 6. The default scheduler executes one request at a time, whatever max_batch_size is, first come, first served. It has
    no queue limit, no timeout and no priority: what a request asks for in these respects is left to the model.
 7. In the dynamic batcher batches grow while all instances are busy; `formation` decides what one holds, and whether to
    wait for more.

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
from collections import deque
from collections.abc import Sequence

from ..config.model import DynamicBatching
from ..job import Job, SealReason
from . import refusals
from .core import WAIT, Action, Dispatch, InstanceId, Reject, WaitUntil
from .formation import Compatibility, Formation
from .queue import job_queue

_NO_POLICIES = DynamicBatching()
_ONE = 1, SealReason.UNBATCHED


class QueueingCore:
    """A `SchedulerCore` of a model without state: any instance may execute anything.

    Args:
        formation: of the batches; None if each execution takes one job.

    Attributes:
        queued: see `SchedulerCore.queued`.
    """

    __slots__ = ("_formation", "_idle", "_is_current", "_left", "_queue", "_spare", "_stopping", "queued")

    def __init__(self, policies: DynamicBatching, formation: Formation | None) -> None:
        self.queued = 0
        self._queue = job_queue(policies)
        self._formation = formation
        self._is_current = True  # whether the formation agrees with the queue
        self._idle: deque[InstanceId] = deque()
        self._spare: deque[InstanceId] = deque()
        self._left: deque[Reject] = deque()  # jobs out of the queue whose rejection was not fetched yet
        self._stopping = False

    def enqueue(self, job: Job, now: float) -> None:
        """
        Raises:
            UnavailableError: stopping, or the job's level of the queue is full.
        """
        if self._stopping:
            raise refusals.stopping(job)
        at_end = self._queue.put(job, now)
        self.queued += 1
        formation = self._formation
        if formation is not None and self._is_current:
            if not at_end:
                self._is_current = False
            elif formation.closed is None:
                formation.add(job)

    def instance_idle(self, instance: InstanceId, spare: bool = False) -> None:
        if spare:
            self._spare.append(instance)
            return
        if instance in self._spare:
            self._spare.remove(instance)
        self._idle.append(instance)

    def instance_paused(self, instance: InstanceId) -> None:
        self._idle = deque(other for other in self._idle if other != instance)
        self._spare = deque(other for other in self._spare if other != instance)

    instance_gone = instance_paused

    def wants(self, instance: InstanceId, others: int) -> bool:
        return len(self._queue) > others

    @property
    def full(self) -> bool:
        return self._queue.full

    def cancel(self, job: Job) -> None:
        job.cancelled = True
        if self._queue.remove(job):
            self._is_current = False
            self._left.append(Reject(job, refusals.cancelled()))

    def next_action(self, now: float) -> Action:
        queue = self._queue
        if queue.deadlines:
            self._expire(now)
        if self._left:
            self.queued -= 1
            return self._left.popleft()
        when_s = math.inf
        instances = self._idle or self._spare
        if instances and self.queued:
            formation = self._formation
            formed = _ONE if formation is None else self._form(formation, now)
            if isinstance(formed, tuple):
                count, reason = formed
                self.queued -= count
                return Dispatch(instances.popleft(), queue.take(count), reason)
            when_s = formed
        if queue.deadlines:
            when_s = min(when_s, queue.deadlines[0][0])
        return WAIT if when_s == math.inf else WaitUntil(when_s)

    def _expire(self, now: float) -> None:
        """Rule 4, for deadlines."""
        for job, rejected in self._queue.expire(now):
            self._is_current = False
            if rejected:
                self._left.append(Reject(job, refusals.expired()))

    def _form(self, formation: Formation, now: float) -> tuple[int, SealReason] | float:
        """How many jobs of the queue, which is not empty, are executed now, and why; or when there will be any."""
        if not self._is_current:
            formation.walk(self._queue)
            self._is_current = True
        if not self._idle and not formation.is_complete(now):
            return math.inf
        decision = formation.decide(now, self._stopping)
        if decision is None:
            return formation.ripe_s
        self._is_current = decision[0] == self.queued
        if self._is_current:
            formation.clear()
        return decision

    def stop(self) -> None:
        self._stopping = True

    def drop_all(self) -> Sequence[Job]:
        """Jobs whose `Reject` was not fetched yet are among those given back."""
        jobs = self._queue.drain() + [reject.job for reject in self._left]
        self._left.clear()
        self._is_current = False
        self.queued = 0
        return sorted(jobs, key=lambda job: job.arrival)

    def __repr__(self) -> str:
        idle = f"{len(self._idle)} idle" + f", {len(self._spare)} spare" * bool(self._spare)
        return f"<{type(self).__name__}: {self.queued} queued, {idle}{', stopping' * self._stopping}>"


class DefaultScheduler(QueueingCore):
    """A `SchedulerCore` that does not batch."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_NO_POLICIES, None)


class DynamicBatcher(QueueingCore):
    """A `SchedulerCore` that batches.

    Args:
        batching: the model's ``dynamic_batching``.
        max_batch_size: the model's, in rows; 0 for a model without a batch dimension.
        compatibility: what requests must agree on to share a batch; None for nothing.
    """

    __slots__ = ()

    def __init__(
        self, batching: DynamicBatching, max_batch_size: int, compatibility: Compatibility | None = None
    ) -> None:
        max_rows = max(1, max_batch_size)
        delay_s = batching.max_queue_delay_us / 1_000_000
        super().__init__(batching, Formation(batching.preferred_batch_sizes, max_rows, delay_s, compatibility))
