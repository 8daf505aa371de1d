"""The sequence batcher (docs/reference/sequences.md): requests of a sequence are executed in order, all on one
instance.

Rules:
 1. A sequence begins with a START and ends with an END; its id is unknown before and after. A START for an id that is
    known begins anew in the same place: what is queued of the old sequence is executed first.
 2. A new sequence gets the free slot with the lowest number over all instances, and keeps it; if there is none, it
    waits in the backlog, and its requests with it. A slot that becomes free goes to the backlog's first.
 3. `slot` decides which request of a sequence goes next, and when a slot is free; `direct` and `oldest` decide which
    batch an instance gets.
 4. A sequence that has a slot, and for max_sequence_idle no new request, is over: its id becomes unknown, what is
    queued is executed. The time counts from its last request, or from when it got its slot if that was later, so that
    time spent in the backlog does not count.
 5. In the backlog, where a request may limit its waiting, a sequence is rejected as a whole when one of its requests
    has waited too long, and cancelled as a whole when one of them is cancelled.
 6. In a slot, cancelling a request that is queued cancels those that continue it, too, and the sequence is over; what
    comes before it is executed.
 7. When an instance dies, all sequences in its slots are over. What is queued of them is refused as lost; what would
    continue them is told to START. They move to no other instance: what the model knew of them died, too.
 8. In an iterative model each request is a sequence of its own unless it names one that is known; without an id
    it gets one. A request that was executed may come back, again and again, in front of all others of its sequence and
    without its flags; when it does not, the sequence is over.
 9. Once stopped, the batcher accepts only what continues a sequence, and waits for no delay. When no client can
    continue one any more (the model is unloaded), all are over, so that those in the backlog need not wait for silent
    ones.
10. An instance that is to leave gets no new sequence; it is released when those that it has are over.

Each job leaves the batcher once, or comes back by `settle`:

    enqueue ─┬─▶ refused (raised)
             └─▶ QUEUED ─┬─▶ Dispatch ──▶ settle ─┬─▶ done
                  ▲      │                        │
                  └──────┼──────── rescheduled ───┘
                         ├─▶ Reject: its time in the backlog is over, reason REJECTED
                         ├─▶ Reject: cancelled, reason CANCELED
                         ├─▶ Reject: lost with its instance, reason BACKEND
                         └─▶ given back by drop_all
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection
from collections.abc import Sequence as Row

from ...errors import TriremeError
from ...job import Job
from ...logs.request_lines import about
from .. import refusals as common_refusals
from ..core import WAIT, Action, Dispatch, InstanceId, Reject, WaitUntil
from . import refusals
from .backlog import Backlog
from .host import Host
from .plan import SequencePlan
from .sequence import CorrelationId, Sequence
from .slot import UNOWNED, Slot, SlotState
from .vacancies import Vacancies

logger = logging.getLogger("trireme.sequence")


class SequenceBatcher:
    """The `SequenceCore` of stateful models.

    Args:
        plan: what the model's configuration asks for.
    """

    def __init__(self, plan: SequencePlan) -> None:
        self._plan = plan
        self._hosts: dict[InstanceId, Host] = {}
        self._idle: list[InstanceId] = []
        self._vacancies = Vacancies()
        self._backlog = Backlog()
        self._known: dict[CorrelationId, Sequence] = {}  # those that a request may continue
        self._reaping: OrderedDict[Sequence, None] = OrderedDict()  # known ones with a slot, the idlest first
        self._queued: dict[Job, Sequence] = {}
        self._out: dict[Job, Slot] = {}  # issued or executing
        self._left: OrderedDict[Job, TriremeError] = OrderedDict()  # rejections not fetched yet
        self._arrivals = 0
        self._sequences = 0
        self._iterations = 0
        self._stopping = False

    # What comes in.

    def enqueue(self, job: Job, now: float) -> None:
        """See `SchedulerCore.enqueue`. For an iterative model, id and flags of the request may change (rule 8).

        Raises:
            TriremeError: the request has no place in a sequence; see `refusals`.
        """
        self._advance(now)
        sequence = self._admit(job)
        self._arrivals += 1
        job.arrival = self._arrivals
        job.level = 0
        job.enqueued_s = now
        job.deadline_s = None
        self._queued[job] = sequence
        if job.request.sequence_end:
            self._finish(sequence)
        if sequence.slot is not None:
            sequence.slot.put(job)
            self._touch(sequence, now)
            return
        sequence.jobs[job] = None
        if sequence not in self._backlog:
            self._backlog.add(sequence)
            self._fill(now)
        if sequence in self._backlog and job.request.timeout_us:
            job.deadline_s = now + job.request.timeout_us / 1_000_000
            self._backlog.limit(sequence, job.deadline_s)

    def instance_idle(self, instance: InstanceId, spare: bool = False) -> None:
        """See `SchedulerCore.instance_idle`. The slots of an instance come with it when it is idle for the first time;
        one that is gone must not report any more."""
        if instance not in self._hosts:
            self._add_host(instance)
        host = self._hosts[instance]
        if not host.spare:
            self._idle.append(instance)
        host.spare = spare

    def settle(self, jobs: Row[Job], now: float, rescheduled: Collection[Job] = ()) -> None:
        """A batch is over. Must be called before its instance is idle again, or gone.

        Args:
            jobs: those of the `Dispatch`.
            rescheduled: those that are not answered, but to be executed again. They are queued from now on, or get a
                `Reject` if there is no sequence for them any more.
        """
        host: Host | None = None
        for job in jobs:
            slot = self._out.pop(job, None)
            if slot is not None:
                host = self._hosts[slot.instance]
                if job in rescheduled:
                    self._come_back(job, slot, now)
                    continue
                sequence = slot.sequence
                if self._plan.iterative and sequence is not None and not sequence.begins_anew:
                    self._finish(sequence)
                slot.settle(job)
            elif job in rescheduled:
                self._left[job] = refusals.lost(job, job.request.correlation_id)
        if host is not None:
            host.executing -= 1

    def cancel(self, job: Job) -> None:
        """See `SchedulerCore.cancel` (rules 5 and 6)."""
        job.cancelled = True
        sequence = self._queued.get(job)
        if sequence is None:
            return
        if sequence in self._backlog:
            self._backlog.remove(sequence)
            self._finish(sequence)
            self._reject_all(list(sequence.jobs), common_refusals.cancelled())
            return
        out = self._out.get(job)
        last = next(reversed(sequence.jobs), job)
        removed = [job, *sequence.cut()] if out is not None else sequence.cut(job)
        if removed[-1] is last:  # otherwise another sequence, with a START of its own, follows in the same place
            self._finish(sequence)
        self._reject_all(removed, common_refusals.cancelled())
        if sequence.slot is not None:
            sequence.slot.shrink()
        if out is not None:
            self._hosts[out.instance].withdraw(job)
            del self._out[job]
            out.settle(job)

    def instance_paused(self, instance: InstanceId) -> None:
        """See `SchedulerCore.instance_paused`. The instance keeps its slots, and they their sequences."""
        self._idle = [other for other in self._idle if other != instance]
        if instance in self._hosts:
            self._hosts[instance].spare = False

    def wants(self, instance: InstanceId, others: int) -> bool:
        """See `SchedulerCore.wants`. What is queued is for the instance that has its sequence, and no other."""
        host = self._hosts[instance]
        return bool(host.ready or host.issued())

    def instance_gone(self, instance: InstanceId) -> None:
        """See `SchedulerCore.instance_gone` (rule 7)."""
        host = self._hosts.pop(instance, None)
        if host is None:
            return
        self.instance_paused(instance)
        lost = list(host.issued())
        for slot in host.slots:
            sequence = slot.sequence
            if sequence is not None:
                self._finish(sequence)
                lost += sequence.jobs
            if slot.out is not None:
                del self._out[slot.out]
            slot.lose()
        self._vacancies.forget(instance)
        for job in sorted(lost, key=lambda job: job.arrival):
            self._left[job] = refusals.lost(job, self._queued.pop(job).id)

    def release(self, instance: InstanceId) -> bool:
        """See `SequenceCore.release` (rule 10)."""
        host = self._hosts.get(instance)
        if host is None:
            return True
        if not host.leaving:
            host.leaving = True
            self._vacancies.forget(instance)
        return all(slot.sequence is None for slot in host.slots) and not host.issued()

    def stop(self) -> None:
        """Refuse new sequences from now on, and wait for no delay (rule 9)."""
        self._stopping = True

    def end_sequences(self) -> None:
        """See `SequenceCore.end_sequences` (rule 9)."""
        for sequence in list(self._known.values()):
            self._finish(sequence)
            if sequence.slot is not None:
                sequence.slot.shrink()

    def drop_all(self) -> Row[Job]:
        """See `SchedulerCore.drop_all`. All sequences are over; jobs whose `Reject` was not fetched are among those
        given back."""
        jobs = sorted([*self._queued, *self._left], key=lambda job: job.arrival)
        self._left.clear()
        self._queued.clear()
        self._backlog.clear()
        self._known.clear()
        self._reaping.clear()
        for host in self._hosts.values():
            for slot in host.slots:
                if slot.sequence is not None:
                    slot.sequence.over = True
                    slot.sequence.jobs.clear()
                    slot.shrink()
            for job in host.issued():
                host.withdraw(job)
                self._out.pop(job).settle(job)
        return jobs

    # What goes out.

    def next_action(self, now: float) -> Action:
        self._advance(now)
        if self._left:
            return Reject(*self._left.popitem(last=False))
        for position, instance in enumerate(self._idle):
            host = self._hosts[instance]
            batch = host.form(now, self._stopping)
            if batch is None:
                continue
            jobs, reason = batch
            del self._idle[position]
            host.spare = False
            host.executing += 1
            for job in jobs:
                self._queued.pop(job, None)
            return Dispatch(instance, jobs, reason)
        return self._rest()

    def _rest(self) -> Action:
        """Until when there is nothing to do."""
        times = [ripe_s for instance in self._idle if (ripe_s := self._hosts[instance].ripe_s) is not None]
        if self._reaping:
            times.append(next(iter(self._reaping)).idle_s)
        deadline_s = self._backlog.closest_deadline_s
        if deadline_s is not None:
            times.append(deadline_s)
        return WaitUntil(min(times)) if times else WAIT

    @property
    def queued(self) -> int:
        """Jobs that are not in execution, those included whose `Reject` was not fetched yet."""
        return len(self._queued) + len(self._left)

    def continues(self, correlation_id: CorrelationId) -> bool:
        """See `SequenceCore.continues`."""
        return correlation_id in self._known

    @property
    def active(self) -> int:
        """See `SequenceCore.active`."""
        return len(self._known)

    @property
    def full(self) -> bool:
        """See `SchedulerCore.full`. It depends on a job's sequence."""
        return False

    # Sequences.

    def _admit(self, job: Job) -> Sequence:
        """The sequence that a request belongs to, found or begun; the checks are in the order of
        docs/reference/sequences.md#admission."""
        request = job.request
        self._plan.inputs.controls.check(job)
        if job.rows > 1:
            raise refusals.batched(job)
        anonymous = not request.correlation_id
        if anonymous and not self._plan.iterative:
            raise refusals.no_id(job)
        starts = request.sequence_start or anonymous
        if self._stopping and starts:
            raise refusals.stopping()
        if starts:
            self._plan.inputs.check_start()
        sequence = None if anonymous else self._known.get(request.correlation_id)
        if sequence is None:
            if not starts:
                raise refusals.not_started(job)
            return self._begin(job)
        if starts:
            logger.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
                "start. Previous sequence will be terminated early.",
                sequence.id,
                job.model_name,
                extra=about(job.model_name, job.id),
            )
        return sequence

    def _begin(self, job: Job) -> Sequence:
        request = job.request
        self._sequences += 1
        if request.correlation_id:
            sequence = Sequence(request.correlation_id, self._sequences)
            self._known[sequence.id] = sequence
            return sequence
        self._iterations += 1
        request.correlation_id, request.sequence_start, request.sequence_end = self._iterations, True, False
        sequence = Sequence(self._iterations, self._sequences)
        sequence.over = True  # the id is unknown to clients, so nothing will be added
        return sequence

    def _finish(self, sequence: Sequence) -> None:
        """No request will be added to this sequence: its id is unknown from now on."""
        sequence.over = True
        if self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]
        self._reaping.pop(sequence, None)

    def _touch(self, sequence: Sequence, now: float) -> None:
        """A sequence got a request or a slot; if it has one, its idle time begins anew."""
        if sequence.slot is not None and not sequence.over:
            sequence.idle_s = now + self._plan.max_idle_s
            self._reaping[sequence] = None
            self._reaping.move_to_end(sequence)

    def _come_back(self, job: Job, slot: Slot, now: float) -> None:
        """A request is to be executed again (rule 8), unless its client gave up meanwhile."""
        sequence = slot.sequence
        if sequence is None or job.cancelled:
            self._left[job] = (
                common_refusals.cancelled() if job.cancelled else refusals.lost(job, job.request.correlation_id)
            )
            if sequence is not None:
                self._reject_all(sequence.cut(), common_refusals.cancelled())
                if not sequence.jobs:
                    self._finish(sequence)
            slot.settle(job)
            return
        job.request.sequence_start = job.request.sequence_end = False
        job.enqueued_s = now
        self._queued[job] = sequence
        slot.give_back(job)
        self._touch(sequence, now)

    def _reject_all(self, jobs: list[Job], error: TriremeError) -> None:
        for job in jobs:
            del self._queued[job]
            self._left[job] = error

    # Slots.

    def _add_host(self, instance: InstanceId) -> None:
        host = self._hosts[instance] = self._plan.host(instance)
        for number in range(self._plan.slots):
            slot = Slot(instance, number, self._plan.iterative, self._slot_changed)
            host.slots.append(slot)
            self._vacancies.add(slot)

    def _slot_changed(self, slot: Slot, before: SlotState) -> None:
        host = self._hosts.get(slot.instance)
        if host is None:
            return  # gone
        if slot.state is SlotState.READY:
            host.ready[slot.number] = slot
        elif before is SlotState.READY:
            del host.ready[slot.number]
            if slot.out is not None:
                self._out[slot.out] = slot
        if slot.state in UNOWNED and before not in UNOWNED and not host.leaving:
            self._vacancies.add(slot)

    def _advance(self, now: float) -> None:
        """Do what is due: end idle sequences, reject what waited too long, fill slots, issue requests."""
        while self._reaping:
            sequence = next(iter(self._reaping))
            if sequence.idle_s > now:
                break
            self._finish(sequence)
            assert sequence.slot is not None, "only sequences with a slot are reaped"
            sequence.slot.shrink()
        for sequence in self._backlog.expire(now):
            self._finish(sequence)
            self._reject_all(list(sequence.jobs), refusals.expired())
        self._fill(now)

    def _fill(self, now: float) -> None:
        """Give free slots to the backlog, and let requests go that may; a slot may become free by that."""
        while True:
            while self._backlog and self._vacancies:
                sequence = self._backlog.pop()
                self._vacancies.pop().assign(sequence)
                self._touch(sequence, now)
            for host in self._hosts.values():
                host.issue(now)
            if not (self._backlog and self._vacancies):
                return
