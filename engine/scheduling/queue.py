"""Queues of models without state: one lane, or priority levels with size limits and deadlines.

Rules of the latter (docs/reference/scheduling.md#queue-policies, docs/reference/scheduling.md#priorities):
 1. Level 1 goes before level 2, and so on; within a level, first come, first served. A request that names no level, or
    one that does not exist, gets the default level. A model without levels has one queue.
 2. A level that holds max_queue_size jobs refuses the next one.
 3. The policy's default timeout gives a job its deadline. If the policy allows it, a request may ask for a shorter one.
 4. At its deadline a job is rejected, or (DELAY) loses its deadline and moves behind all jobs of its level that have
    not expired. Expired jobs keep the order in which they expired, and go before the next level.

Where a job can be:

    put ──▶ fresh ──────────────▶ out (taken, rejected, removed, drained)
              └─ DELAY ▶ delayed ─▶ out (taken, removed, drained)

Both lanes are insertion-ordered dictionaries, so that a job can leave from the middle at no cost. Deadlines are in a
heap whose entries outlive their jobs; it is swept when it holds more ghosts than jobs.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..config.model import DynamicBatching, QueuePolicy, TimeoutAction
from ..job import Job
from . import refusals

_MIN_SWEEP = 64
"""A heap of deadlines with fewer entries than this is not worth sweeping."""

Lane = OrderedDict[Job, None]
QueueDeadline = tuple[float, int, Job]
"""When, and whose: (deadline_s, arrival, job)."""


@dataclass(slots=True, eq=False)
class _Level:
    """The jobs of one priority level."""

    policy: QueuePolicy
    fresh: Lane = field(default_factory=OrderedDict)
    delayed: Lane = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.delayed)


class FifoQueue:
    """Queued jobs in the order in which they are to be executed: first come, first served. Iterating gives them in that
    order.

    Attributes:
        deadlines: a heap; it may have entries of jobs that have left.
    """

    __slots__ = ("_arrivals", "_jobs", "deadlines")

    def __init__(self) -> None:
        self._jobs: Lane = OrderedDict()
        self._arrivals = 0
        self.deadlines: list[QueueDeadline] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def put(self, job: Job, now: float) -> bool:
        """Add a job, setting its `arrival`, `level`, `enqueued_s` and `deadline_s`.

        Returns:
            Whether it is the last in the queue.

        Raises:
            UnavailableError: its level is full.
        """
        self._arrivals += 1
        job.arrival = self._arrivals
        job.level = 0
        job.enqueued_s = now
        job.deadline_s = None
        self._jobs[job] = None
        return True

    def level_of(self, job: Job) -> int:
        """The level that a job gets; 0 without levels."""
        return 0

    def heads(self) -> list[Job]:
        """The first job of each level that holds any."""
        return [next(iter(self._jobs))] if self._jobs else []

    @property
    def full(self) -> bool:
        """Whether the next job is refused, whatever it is. With levels that depends on the job."""
        return False

    def take(self, count: int) -> list[Job]:
        """Remove and return the first `count` jobs; there must be so many."""
        jobs = self._jobs
        if count < len(jobs):
            return [jobs.popitem(last=False)[0] for _ in range(count)]
        taken = list(jobs)
        jobs.clear()
        return taken

    def remove(self, job: Job) -> bool:
        """Remove a job from wherever it is in the queue; False if it is not in it."""
        if job not in self._jobs:
            return False
        del self._jobs[job]
        return True

    def expire(self, now: float) -> list[tuple[Job, bool]]:
        """Apply rule 4 to the jobs whose deadline has come, in the order of their deadlines.

        Returns:
            The expired jobs, and of each whether it was rejected, and so has left the queue.
        """
        return []

    def drain(self) -> list[Job]:
        """Remove and return all jobs, in arrival order."""
        return self.take(len(self._jobs))


class PriorityQueues(FifoQueue):
    """A queue with the rules above."""

    __slots__ = ("_active", "_batching", "_levels", "_size")

    def __init__(self, batching: DynamicBatching) -> None:
        super().__init__()
        self._batching = batching
        self._levels: dict[int, _Level] = {}  # made when first used
        self._active: list[int] = []  # levels that hold jobs, ascending
        self._size = 0

    def put(self, job: Job, now: float) -> bool:
        number = self.level_of(job) if self._batching.priority_levels else 0
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._batching.policy(number))
        policy = level.policy
        occupied = len(level.fresh) + len(level.delayed)
        if 0 < policy.max_queue_size <= occupied:
            raise refusals.queue_full(job.id)
        self._arrivals += 1
        job.arrival = self._arrivals
        job.level = number
        job.enqueued_s = now
        job.deadline_s = None
        level.fresh[job] = None
        self._size += 1
        active = self._active
        if not active:
            active.append(number)
        elif not occupied:
            insort(active, number)
        if policy.default_timeout_us:
            self._set_deadline(job, policy, now)
        return number == active[-1] and not level.delayed

    @property
    def full(self) -> bool:
        level = self._levels.get(0)
        return level is not None and 0 < level.policy.max_queue_size <= len(level)

    def level_of(self, job: Job) -> int:
        levels = self._batching.priority_levels
        priority = job.request.priority
        return priority if 1 <= priority <= levels else self._batching.default_priority_level

    def heads(self) -> list[Job]:
        levels = [self._levels[number] for number in self._active]
        return [next(iter(level.fresh or level.delayed)) for level in levels]

    def _set_deadline(self, job: Job, policy: QueuePolicy, now: float) -> None:
        timeout_us = policy.default_timeout_us
        if policy.allow_timeout_override and 0 < job.request.timeout_us < timeout_us:
            timeout_us = job.request.timeout_us
        job.deadline_s = now + timeout_us / 1_000_000
        heap = self.deadlines
        if len(heap) >= max(_MIN_SWEEP, 2 * self._size):
            self.deadlines = heap = [entry for entry in heap if self._is_live(entry)]
            heapq.heapify(heap)
        heapq.heappush(heap, (job.deadline_s, job.arrival, job))

    def _is_live(self, entry: QueueDeadline) -> bool:
        _, arrival, job = entry
        return job.arrival == arrival and job in self._levels[job.level].fresh

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Job]:
        for number in self._active:
            level = self._levels[number]
            yield from level.fresh
            yield from level.delayed

    def take(self, count: int) -> list[Job]:
        taken: list[Job] = []
        self._size -= count
        while count:
            level = self._levels[self._active[0]]
            lane = level.fresh or level.delayed
            while lane and count:
                taken.append(lane.popitem(last=False)[0])
                count -= 1
            if not lane and not level.delayed:
                del self._active[0]
        return taken

    def remove(self, job: Job) -> bool:
        level = self._levels.get(job.level)
        if level is None:
            return False
        if job in level.fresh:
            del level.fresh[job]
        elif job in level.delayed:
            del level.delayed[job]
        else:
            return False
        self._size -= 1
        if not level:
            self._active.remove(job.level)
        return True

    def expire(self, now: float) -> list[tuple[Job, bool]]:
        expired: list[tuple[Job, bool]] = []
        heap = self.deadlines
        while heap:
            is_live = self._is_live(heap[0])
            if is_live and heap[0][0] > now:
                break
            job = heapq.heappop(heap)[2]
            if not is_live:
                continue
            level = self._levels[job.level]
            if level.policy.timeout_action is TimeoutAction.DELAY:
                del level.fresh[job]
                level.delayed[job] = None
                job.deadline_s = None
                expired.append((job, False))
            else:
                self.remove(job)
                expired.append((job, True))
        return expired

    def drain(self) -> list[Job]:
        jobs = sorted(self, key=lambda job: job.arrival)
        for number in self._active:
            self._levels[number].fresh.clear()
            self._levels[number].delayed.clear()
        self._active.clear()
        self.deadlines.clear()
        self._size = 0
        return jobs


def job_queue(batching: DynamicBatching) -> FifoQueue:
    """The queue that a model needs for its policies."""
    policy = batching.policy(0)
    plain = not (batching.priority_levels or policy.max_queue_size or policy.default_timeout_us)
    return FifoQueue() if plain else PriorityQueues(batching)
