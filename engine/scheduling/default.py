"""The default scheduler (docs/reference/scheduling.md#default-scheduler), for models that name no other.

Rules:
 1. First come, first served; each execution takes one request, whatever max_batch_size is.
 2. The instance that has been idle longest takes the head. An instance that reports idle twice can take two requests.
 3. There is no queue limit, no timeout and no priority: what a request asks for in these respects is left to the model.
 4. A cancelled request leaves the queue at once and is answered as cancelled, whether an instance is idle or not.
 5. Once stopped, the scheduler refuses new jobs and goes on with those that it has.

Each job leaves once:

    enqueue ─┬─▶ refused (raised): stopping
             └─▶ QUEUED ─┬─▶ Dispatch
                         ├─▶ Reject: cancelled, reason CANCELED
                         └─▶ given back by drop_all
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence

from ..execution import SealReason
from ..job import Job
from . import refusals
from .core import WAIT, Action, Dispatch, InstanceId, Reject


class DefaultScheduler:
    """A `SchedulerCore` that does not batch."""

    __slots__ = ("_arrivals", "_idle", "_left", "_queue", "_stopping")

    def __init__(self) -> None:
        self._queue: OrderedDict[Job, None] = OrderedDict()
        self._idle: deque[InstanceId] = deque()
        self._left: deque[Reject] = deque()  # jobs out of the queue whose rejection was not fetched yet
        self._arrivals = 0
        self._stopping = False

    def enqueue(self, job: Job, now: float) -> None:
        """See `SchedulerCore.enqueue`.

        Raises:
            UnavailableError: stopping.
        """
        if self._stopping:
            raise refusals.stopping(job)
        self._arrivals += 1
        job.arrival = self._arrivals
        job.level = 0
        job.enqueued_s = now
        job.deadline_s = None
        self._queue[job] = None

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
        return False  # it has no limit

    def cancel(self, job: Job) -> None:
        job.cancelled = True
        if job in self._queue:
            del self._queue[job]
            self._left.append(Reject(job, refusals.cancelled()))

    def settle(self, jobs: Sequence[Job], now: float, rescheduled: Collection[Job]) -> None:
        """Nothing follows from the end of a batch."""

    def next_action(self, now: float) -> Action:
        if self._left:
            return self._left.popleft()
        if self._queue and self._idle:
            return Dispatch(self._idle.popleft(), (self._queue.popitem(last=False)[0],), SealReason.UNBATCHED)
        return WAIT

    def stop(self) -> None:
        self._stopping = True

    def end_sequences(self) -> None:
        """See `SchedulerCore.end_sequences`. There are none here."""

    def drop_all(self) -> Sequence[Job]:
        """See `SchedulerCore.drop_all`. Jobs whose `Reject` was not fetched yet are among those given back."""
        jobs = sorted([*self._queue, *(reject.job for reject in self._left)], key=lambda job: job.arrival)
        self._queue.clear()
        self._left.clear()
        return jobs

    @property
    def queued(self) -> int:
        """Jobs that have not left by an action, those included whose `Reject` was not fetched yet."""
        return len(self._queue) + len(self._left)

    def __repr__(self) -> str:
        return f"<DefaultScheduler: {self.queued} queued, {len(self._idle)} idle{', stopping' * self._stopping}>"
