"""The dynamic batcher (docs/reference/scheduling.md#dynamic-batching): requests wait in a queue, and idle instances
take batches of them.

Rules:
 1. A batch is formed when an instance is there to take it, never before (late binding): while all are busy, batches
    grow. Queue limits, timeouts and priorities act on everything that is not executing.
 2. `formation` decides what a batch holds, and whether to wait for more.
 3. The instance that has been idle longest takes the batch. An instance that reports idle twice can take two batches.
 4. A job that expires or is cancelled in the queue is rejected at once, whether an instance is idle or not.
 5. Once stopped, the batcher refuses new jobs and waits for no delay.

Each job leaves the batcher once:

    enqueue ─┬─▶ refused (raised): stopping, or its level is full
             └─▶ QUEUED ─┬─▶ Dispatch
                         ├─▶ Reject: expired (policy REJECT), reason REJECTED
                         ├─▶ Reject: cancelled, reason CANCELED
                         └─▶ given back by drop_all

What `next_action` answers; the first line that applies:

    a job was cancelled or has expired            Reject
    no job queued                                 Wait
    no instance idle, no deadline                 Wait
    no instance idle                              WaitUntil the closest deadline
    a batch is ready                              Dispatch
    otherwise                                     WaitUntil its delay is over, or the closest deadline
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from ..config.model import DynamicBatching
from ..job import Job
from . import refusals
from .compatibility import Compatibility
from .core import WAIT, Action, Dispatch, InstanceId, Reject, WaitUntil
from .formation import Formation
from .queue import PriorityQueues


class DynamicBatcher:
    """A `SchedulerCore` that batches.

    Args:
        batching: the model's ``dynamic_batching``.
        max_batch_size: the model's, in rows; 0 for a model without a batch dimension.
        compatibility: what requests must agree on to share a batch; None for nothing.
    """

    __slots__ = ("_formation", "_idle", "_is_current", "_left", "_queue", "_stopping")

    def __init__(
        self, batching: DynamicBatching, max_batch_size: int, compatibility: Compatibility | None = None
    ) -> None:
        max_rows = max(1, max_batch_size)
        preferred = frozenset(batching.preferred_batch_sizes or (max_rows,))
        self._queue = PriorityQueues(batching)
        self._formation = Formation(preferred, max_rows, batching.max_queue_delay_us / 1_000_000, compatibility)
        self._is_current = True  # whether the formation agrees with the queue
        self._idle: deque[InstanceId] = deque()
        self._left: deque[Reject] = deque()  # jobs out of the queue whose rejection was not fetched yet
        self._stopping = False

    def enqueue(self, job: Job, now: float) -> None:
        """See `SchedulerCore.enqueue`.

        Raises:
            UnavailableError: stopping, or the job's level of the queue is full.
        """
        if self._stopping:
            raise refusals.stopping(job)
        if not self._queue.put(job, now):
            self._is_current = False
        elif self._is_current and not self._formation.is_closed:
            self._formation.add(job)

    def instance_idle(self, instance: InstanceId) -> None:
        self._idle.append(instance)

    def instance_paused(self, instance: InstanceId) -> None:
        self._idle = deque(other for other in self._idle if other != instance)

    def wants(self, instance: InstanceId, others: int) -> bool:
        """See `SchedulerCore.wants`. Anybody may take the next."""
        return len(self._queue) > others

    def instance_gone(self, instance: InstanceId) -> None:
        self.instance_paused(instance)

    def release(self, instance: InstanceId) -> bool:
        """See `SchedulerCore.release`. Nothing ever binds an instance here."""
        return True

    def continues(self, correlation_id: int | str) -> bool:
        """See `SchedulerCore.continues`. There are no sequences here."""
        return False

    @property
    def active(self) -> int:
        return 0

    @property
    def full(self) -> bool:
        return self._queue.full

    def cancel(self, job: Job) -> None:
        job.cancelled = True
        if self._queue.remove(job):
            self._is_current = False
            self._left.append(Reject(job, refusals.cancelled()))

    def settle(self, jobs: Sequence[Job], now: float, rescheduled: Collection[Job]) -> None:
        """Nothing follows from the end of a batch."""

    def next_action(self, now: float) -> Action:
        queue = self._queue
        when_s = None
        if queue.deadlines:
            for job, rejected in queue.expire(now):
                self._is_current = False
                if rejected:
                    self._left.append(Reject(job, refusals.expired()))
            when_s = queue.closest_deadline_s
        if self._left:
            return self._left.popleft()
        if not queue.size:
            return WAIT
        if self._idle:
            self._catch_up()
            decision = self._formation.decide(now, self._stopping)
            if decision is not None:
                count, reason = decision
                self._is_current = count == queue.size
                if self._is_current:
                    self._formation.clear()
                return Dispatch(self._idle.popleft(), queue.take(count), reason)
            ripe_s = self._formation.ripe_s
            when_s = ripe_s if when_s is None else min(ripe_s, when_s)
        return WAIT if when_s is None else WaitUntil(when_s)

    def _catch_up(self) -> None:
        """Walk the queue from its head, unless the formation has kept up with it."""
        if self._is_current:
            return
        formation = self._formation
        formation.clear()
        for job in self._queue:
            if not formation.add(job):
                break
        self._is_current = True

    def stop(self) -> None:
        self._stopping = True

    def end_sequences(self) -> None:
        """See `SchedulerCore.end_sequences`. There are none here."""

    def drop_all(self) -> Sequence[Job]:
        """See `SchedulerCore.drop_all`. Jobs whose `Reject` was not fetched yet are among those given back."""
        jobs = self._queue.drain() + [reject.job for reject in self._left]
        self._left.clear()
        self._is_current = False
        return sorted(jobs, key=lambda job: job.arrival)

    @property
    def queued(self) -> int:
        """Jobs that have not left by an action, those included whose `Reject` was not fetched yet."""
        return self._queue.size + len(self._left)

    def __repr__(self) -> str:
        return f"<DynamicBatcher: {self.queued} queued, {len(self._idle)} idle{', stopping' * self._stopping}>"
