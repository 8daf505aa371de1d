"""The adaptive batcher: a dynamic batcher that is given a latency objective and chooses delays and sizes itself
(docs/adaptive_batching.md).

It learns how long batches take and how fast requests come (`service_times`). Every request is *due* the objective after
it was queued. While no batch has ever been over, nothing is known: no request is refused for its time, none is delayed,
and sizes are those of the configuration.

Rules:
 1. What `queueing` says in its rules 1 to 5 holds here, too. A batch is a run of requests from the head of the queue
    that may share one; its rows are at most max_batch_size.
 2. The *target* is the size that answers most requests in time: of the sizes b that are tried (preferred ones; without
    any, some up to max_batch_size), the largest with the highest rate min(b, what comes while a batch is executed, what
    comes while a request may still wait for one) a time of b.
 3. A batch holds at most the target, and no more than lets each of its requests be over when it is due, as long as
    batches take no longer than nearly all do. If it reaches a preferred size on the way, it ends there.
 4. The *load* of a size is what part of their time instances would be busy with batches of that size. *Needed* is the
    smallest size whose load is at most `BEARABLE`, or what comes in `DELAY_SHARE` of the objective, if that is less.
    A batch that is smaller waits, for as long as it takes such a batch to come together, but for no more than a part,
    `WAITED`, of the time that it has to spare. Sizes and delay are chosen anew whenever a batch is over.
 5. A request is refused at the door if it would be late, by what is known: behind all that is before it in the queue,
    in batches of the target size, on all instances by turns, in a batch with what will have come until it begins.
 6. The first request of a level is rejected as soon as it would be late even alone, on the next instance that is free.
 7. If a request that is alone takes longer than the objective, all are late. Then one is taken, alone, whenever an
    instance is idle and nothing is queued, so that it is learnt when that changes; others are refused. An instance that
    needs leave to execute is idle only when it has that, and asks for it if something is queued: so while no batch is
    in execution, one request waits for an instance.
 8. A spare instance takes a batch that has reached the target, or that a request behind it has closed.
 9. If requests at the head would be late in a batch of the target size, and those of their level behind them make up
    such a batch, which answers more requests a time of its execution than the one that the first ones allow (by a part
    of 1 - `WORTH`), the first ones are rejected. Otherwise too much work would make batches small, and small batches
    would make too little room.
10. Nothing is learnt from a batch of which all requests failed or were cancelled: it may have taken no time at all.

What `next_action` answers; the first line that applies:

    a job was cancelled or has expired, or is late by rule 6          Reject
    no job queued                                                     Wait
    an instance is idle, and a batch need not wait                    Dispatch
    an instance is spare, and a batch cannot grow                     Dispatch
    an instance is idle                                               WaitUntil the delay is over, or a deadline
    otherwise                                                         WaitUntil the closest deadline, or rule 6 applies
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from ..config.model import DynamicBatching
from ..job import Job, SealReason
from . import refusals
from .core import WAIT, Action, Dispatch, InstanceId, Reject, WaitUntil
from .formation import Compatibility
from .queueing import QueueingCore
from .service_times import ArrivalRate, ServiceTimes

BEARABLE = 0.7
DELAY_SHARE = 0.4
MEMORY = 8.0
"""Of the rate of arrivals, in objectives."""

WORTH = 0.9
"""Of the rate of a batch of the target size: from which on a smaller one will do (rule 9)."""

WAITED = 0.5
"""How much of the time that a batch has to spare it may wait for. With all of it, a timer that is a little late makes
its requests late, and rule 6 rejects them beside an idle instance."""

_STEP = 1.25
"""From one size that is tried to the next."""

_COUNTED = -1
"""The `arrival` of a job that counts in the rate of arrivals and is not queued."""

FULL, PREFERRED, DELAY, IDLE, SHAPE, DRAIN = (
    SealReason.FULL,
    SealReason.PREFERRED,
    SealReason.DELAY,
    SealReason.IDLE,
    SealReason.SHAPE,
    SealReason.DRAIN,
)


@dataclass(slots=True, eq=False)
class _Held:
    """A batch in execution. `behind`: it was bound while its instance still executed another one."""

    instance: InstanceId
    rows: int
    start_s: float
    behind: bool


@dataclass(slots=True, eq=False)
class _Formed:
    """The batch at the head of the queue.

    Attributes:
        closed: why nothing more can join it, or why it goes without; None while something can join it.
        due_s: when the first of its requests is due.
        is_tight: it would hold more, were they not due so soon.
    """

    count: int = 0
    rows: int = 0
    closed: SealReason | None = None
    oldest_s: float = math.inf
    due_s: float = math.inf
    is_tight: bool = False


class AdaptiveBatcher(QueueingCore):
    """A `SchedulerCore` that batches for an objective. It is also told when batches are over (`executed`).

    Args:
        batching: the model's ``dynamic_batching``; its delay is not used.
        max_batch_size: the model's, in rows; 0 for a model without a batch dimension.
        objective_s: within which a request is to be executed from when it was queued.
        compatibility: what requests must agree on to share a batch; None for nothing.

    Attributes:
        times, rate: what it has learnt.
        target: rule 2.
        needed: the size for which a batch may wait (rule 4).
        delay_s: how long.
    """

    __slots__ = (
        "_compatibility",
        "_free_s",
        "_held",
        "_known",
        "_max_rows",
        "_preferred",
        "_rows",
        "_sizes",
        "delay_s",
        "needed",
        "objective_s",
        "rate",
        "target",
        "times",
    )

    def __init__(
        self,
        batching: DynamicBatching,
        max_batch_size: int,
        objective_s: float,
        compatibility: Compatibility | None = None,
    ) -> None:
        super().__init__(batching, None)
        self.objective_s = objective_s
        self._compatibility = compatibility
        self._max_rows = max(1, max_batch_size)
        chosen = set(batching.preferred_batch_sizes) - {self._max_rows}
        self._preferred = frozenset(batching.preferred_batch_sizes) if chosen else frozenset[int]()
        self._sizes = tuple(sorted(self._preferred)) or sizes_up_to(self._max_rows)
        self.times = ServiceTimes()
        self.rate = ArrivalRate(MEMORY * objective_s)
        self.target = self._sizes[-1]
        self.needed = 1
        self.delay_s = 0.0
        self._rows: dict[int, int] = {}  # queued, by level
        self._held: dict[Job, _Held] = {}  # by the first job of the batch
        self._known: set[InstanceId] = set()
        self._free_s: dict[InstanceId, float] = {}  # when the last batch of an instance was over

    # What it is told.

    def enqueue(self, job: Job, now: float) -> None:
        """
        Raises:
            UnavailableError: stopping, the job's level of the queue is full, or the job would be late (rule 5).
        """
        if self._stopping:
            raise refusals.stopping(job)
        if not job.arrival:  # a scheduler may ask again after a refusal
            job.arrival = _COUNTED
            self.rate.arrived(job.rows, now)
        if self.would_be_late(job, now):
            raise refusals.would_be_late(job.id)
        self._queue.put(job, now)
        self._rows[job.level] = self._rows.get(job.level, 0) + job.rows
        self.queued += 1

    def instance_idle(self, instance: InstanceId, spare: bool = False) -> None:
        self._known.add(instance)
        super().instance_idle(instance, spare)

    def instance_gone(self, instance: InstanceId) -> None:
        self.instance_paused(instance)
        self._known.discard(instance)
        self._free_s.pop(instance, None)
        for first in [first for first, held in self._held.items() if held.instance == instance]:
            del self._held[first]

    def cancel(self, job: Job) -> None:
        before = len(self._queue)
        super().cancel(job)
        if len(self._queue) < before:
            self._rows[job.level] -= job.rows

    def executed(self, instance: InstanceId, first: Job, now: float, *, failed: bool = False) -> None:
        """A batch is over that `first` stood at the head of. Unknown ones are fine.

        Args:
            failed: none of its requests was executed, so what it took says nothing (rule 10).
        """
        held = self._held.pop(first, None)
        if held is None:
            return
        start_s = max(held.start_s, self._free_s.get(instance, -math.inf)) if held.behind else held.start_s
        self._free_s[instance] = now
        if not failed:
            self.times.learn(held.rows, now - start_s)
            self._choose(now)

    def drop_all(self) -> Sequence[Job]:
        self._rows.clear()
        return super().drop_all()

    def expected(self) -> list[tuple[int, float]]:
        """What batches of 1, 2, 4 and so on rows, and of the most, are expected to take, in seconds; none while nothing
        is known."""
        if not self.times.known:
            return []
        powers = [1 << bits for bits in range((self._max_rows - 1).bit_length())]
        return [(rows, self.times.expected_s(rows)) for rows in (*powers, self._max_rows)]

    # What it decides.

    def _choose(self, now: float) -> None:
        """Rules 2 and 4, anew after each batch."""
        times, objective_s = self.times, self.objective_s
        slots = max(len(self._known), len(self._idle) + len(self._held) + 1)  # one has just become free
        each_per_s = self.rate.rows_per_s(now) / slots
        best = -1.0
        needed = 0
        for size in self._sizes:
            takes_s = times.expected_s(size)
            spare_s = objective_s - times.bound_s(size)
            rate = min(size, each_per_s * min(takes_s, max(0.0, spare_s))) / takes_s
            if rate >= best * (1 - 1e-9) and spare_s > 0:
                best, self.target = rate, size
            if not needed and each_per_s * takes_s <= BEARABLE * size:
                needed = size
        if best < 0:
            self.target = self._sizes[0]
        come = math.floor(each_per_s * slots * DELAY_SHARE * objective_s)
        self.needed = max(1, min(needed or self.target, self.target, come))
        self.delay_s = 0.0 if self.needed == 1 else self.needed / (each_per_s * slots)

    def would_be_late(self, job: Job, now: float) -> bool:
        """Rules 5 and 7, for a job that is about to be queued."""
        if not self.times.known:
            return False
        free_s = self._free_from(now)
        if not free_s:
            return False
        level = self._queue.level_of(job)
        ahead = sum([rows for other, rows in self._rows.items() if other <= level])
        if not self.queued and free_s[0] <= now:
            return False
        size = max(self.target, job.rows)
        number = ahead // size
        inside = ahead - number * size
        if inside + job.rows > size:
            number, inside = number + 1, 0
        rounds, place = divmod(number, len(free_s))
        wait_s = free_s[place] - now + rounds * self.times.expected_s(size)
        come = math.ceil(self.rate.rows_per_s(now) * wait_s / len(free_s))
        rows = min(size, inside + job.rows + come)
        return wait_s + self.times.expected_s(rows) > self.objective_s

    def _free_from(self, now: float) -> list[float]:
        """When each instance can take a batch, by what is known; the first one first."""
        times = self.times
        busy = [max(now, held.start_s + times.expected_s(held.rows)) for held in self._held.values()]
        return sorted([now] * len(self._idle) + busy)

    def next_action(self, now: float) -> Action:
        queue = self._queue
        if queue.deadlines:
            self._expire(now)
        when_s = math.inf
        if self.queued and self.times.known:
            when_s = self._reject_late(now)
        if self._left:
            self.queued -= 1
            return self._left.popleft()
        instances = self._idle or self._spare
        if instances and self.queued:
            formed = self._form_batch(now)
            if formed.is_tight and self._idle and self._make_way(formed, now):
                self.queued -= 1
                return self._left.popleft()
            ripe_s = math.inf
            if self._idle:
                ripe_s = self._ripe_s(formed, now)
            elif formed.closed is not None:
                ripe_s = now
            if ripe_s <= now:
                return self._dispatch(formed, now)
            when_s = min(when_s, ripe_s)
        if queue.deadlines:
            when_s = min(when_s, queue.deadlines[0][0])
        return WAIT if when_s == math.inf else WaitUntil(when_s)

    def _expire(self, now: float) -> None:
        for job, _ in self._queue.expire(now):  # all are rejected: objectives are refused with other policies
            self._rows[job.level] -= job.rows
            self._left.append(Reject(job, refusals.expired()))

    def _reject_late(self, now: float) -> float:
        """Rule 6. Gives back when it will apply to the next job, if nothing happens before."""
        times, idle = self.times, bool(self._idle)
        may_try = idle or not self._held
        free_s = self._free_from(now)
        start_s = free_s[0] if free_s else now
        next_s = math.inf
        hopeless = False
        while True:
            rejected = False
            for head in self._queue.heads():
                takes_s = times.bound_s(head.rows)
                late_s = head.enqueued_s + self.objective_s - takes_s
                if start_s < late_s:
                    next_s = min(next_s, late_s)
                elif takes_s >= self.objective_s and may_try and not hopeless:
                    hopeless = True  # rule 7: it is executed
                else:
                    self._reject_as_late(head)
                    rejected = True
            if not rejected or hopeless:
                return math.inf if idle else next_s
            next_s = math.inf

    def _form_batch(self, now: float, skipped: int = 0) -> _Formed:
        """Rule 3; the queue holds more than the `skipped` jobs at its head."""
        compatibility, known = self._compatibility, self.times.known
        limit = self.target if known else self._max_rows
        formed = _Formed()
        signature = cut = None
        for job in islice(self._queue, skipped, None):
            rows = formed.rows + job.rows
            due_s = min(formed.due_s, job.enqueued_s + self.objective_s)
            if not formed.count:
                signature = None if compatibility is None else compatibility.signature(job)
            elif rows > limit:
                formed.closed = FULL
                break
            elif known and now + self.times.bound_s(rows) > due_s:
                formed.closed, formed.is_tight = FULL, True
                break
            elif compatibility is not None and compatibility.signature(job) != signature:
                formed.closed = SHAPE
                break
            oldest_s = min(formed.oldest_s, job.enqueued_s)
            formed = _Formed(formed.count + 1, rows, FULL if rows >= limit else None, oldest_s, due_s)
            if rows in self._preferred:
                cut = replace(formed, closed=formed.closed or PREFERRED)
            if formed.closed is not None:
                break
        return formed if cut is None else replace(cut, is_tight=formed.is_tight)

    def _make_way(self, formed: _Formed, now: float) -> bool:
        """Rule 9. Gives back whether any job was rejected."""
        full_s = now + self.times.bound_s(self.target) - self.objective_s  # who was queued later has the time for it
        tight = list(takewhile(lambda job: job.enqueued_s < full_s, self._queue))
        if len(tight) == len(self._queue):
            return False
        other = self._form_batch(now, len(tight))
        if other.closed is not FULL or other.is_tight or self._rate(formed) >= WORTH * self._rate(other):
            return False
        if next(islice(self._queue, len(tight), None)).level != tight[0].level:
            return False
        for job in tight:
            self._reject_as_late(job)
        return True

    def _rate(self, formed: _Formed) -> float:
        """Rows a second while the batch is executed."""
        return formed.rows / self.times.expected_s(formed.rows)

    def _reject_as_late(self, job: Job) -> None:
        self._queue.remove(job)
        self._rows[job.level] -= job.rows
        self._left.append(Reject(job, refusals.too_late()))

    def _ripe_s(self, formed: _Formed, now: float) -> float:
        """When the batch is to be sent to an idle instance (rule 4)."""
        if formed.closed is not None or self._stopping or formed.rows >= self.needed:
            return now
        spare_s = formed.due_s - self.times.bound_s(self.needed) - formed.oldest_s
        ripe_s = formed.oldest_s + min(self.delay_s, WAITED * spare_s)
        if ripe_s <= now:
            formed.closed = DELAY
        return ripe_s

    def _dispatch(self, formed: _Formed, now: float) -> Dispatch:
        behind = not self._idle
        instance = (self._spare if behind else self._idle).popleft()
        jobs = self._queue.take(formed.count)
        for job in jobs:
            self._rows[job.level] -= job.rows
        self.queued -= formed.count
        self._held[jobs[0]] = _Held(instance, formed.rows, now, behind)
        return Dispatch(instance, jobs, formed.closed or (DRAIN if self._stopping else IDLE))


def sizes_up_to(most: int) -> tuple[int, ...]:
    """The sizes that are tried, where none are preferred."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(min(most, max(sizes[-1] + 1, math.floor(sizes[-1] * _STEP))))
    return tuple(sizes)
