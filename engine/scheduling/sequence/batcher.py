"""The sequence batcher (docs/reference/sequences.md): requests of a sequence are executed in order, all on one
instance.

Rules:
 1. A sequence begins with a START and ends with an END; its id is unknown before and after. A START for an id that is
    known begins anew in the same place: what is queued of the old sequence is executed first.
 2. A new sequence gets the free slot with the lowest number over all instances, and keeps it; if there is none, it
    waits in the backlog, and its requests with it. A slot that becomes free goes to the backlog's first.
 3. A slot is an actor (`slot_core`). It has the requests of its sequence and offers them one at a time; `slot` says
    when it is free. `strategies` decide which batch an instance gets of what is offered.
 4. A slot that was told something that it has to answer does so in the same turn, and until then nothing is decided
    (`Await`). So it does not matter which slot answers first: offers count in the order in which they were due. Nor is
    a slot given away while one that may become free has yet to say what else of its sequence is cancelled.
 5. A sequence that has a slot, and for max_sequence_idle no new request, is over: its id becomes unknown, what is
    queued is executed. The time counts from the last request, or from when the sequence got its slot if that was
    later, so that time spent in the backlog does not count. The slot says when it has come; so does a request that
    comes later than that.
 6. In the backlog, where a request may limit its waiting, a sequence is rejected as a whole when one of its requests
    has waited too long, and cancelled as a whole when one of them is cancelled.
 7. In a slot, cancelling a request that is queued cancels those that continue it, too, and the sequence is over; what
    comes before it is executed.
 8. When an instance dies, all sequences in its slots are over. What is queued of them is refused as lost; what would
    continue them is told to START. They move to no other instance: what the model knew of them died, too.
 9. In an iterative model each request is a sequence of its own unless it names one that is known; without an id
    it gets one. A request that was executed may come back, again and again, in front of all others of its sequence and
    without its flags; when it does not, the sequence is over.
10. Once stopped, the batcher accepts only what continues a sequence, and waits for no delay. When no client can
    continue one any more (the model is unloaded), all are over, so that those in the backlog need not wait for silent
    ones.
11. An instance that is to leave gets no new sequence; it is released when those that it has are over.
12. When a slot dies its sequence is over, as in rule 8; the request that is being executed is answered. Another slot
    takes its place.

Each job leaves the batcher once, or comes back by `settle`:

    enqueue ─┬─▶ refused (raised)
             └─▶ QUEUED ─┬─▶ Dispatch ──▶ settle ─┬─▶ done
                  ▲      │                        │
                  └──────┼──────── rescheduled ───┘
                         ├─▶ Reject: its time in the backlog is over, reason REJECTED
                         ├─▶ Reject: cancelled, reason CANCELED
                         ├─▶ Reject: lost with its instance or its slot, reason BACKEND
                         └─▶ given back by drop_all
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from collections.abc import Sequence as Row

from ...errors import InvalidArgumentError, TriremeError
from ...job import Job
from ...logs.request_lines import about
from .. import refusals
from ..core import AWAIT, WAIT, Action, Dispatch, InstanceId, Reject, WaitUntil
from .backlog import Backlog, Vacancies
from .slot import DUE, FREE, GONE, READY, VACANT, CorrelationId, Sequence, Slot, SlotMessage, SlotState
from .slot_core import Discarded, Idle, Offer, SlotCore, SlotReport
from .strategies import SequenceHost, SequencePlan

StartSlot = Callable[[Slot, SlotCore], Callable[[SlotMessage], object]]
"""Makes the actor of a slot; what it returns leaves a message in the actor's mailbox."""

logger = logging.getLogger("trireme.sequence")


class SequenceBatcher:
    """The `SchedulerCore` of stateful models; methods without a text are described there.

    Args:
        plan: what the model's configuration asks for.
    """

    def __init__(self, plan: SequencePlan) -> None:
        self._plan = plan
        self._max_idle_s = plan.max_idle_s
        self._hosts: dict[InstanceId, SequenceHost] = {}
        self._idle: list[InstanceId] = []
        self._vacancies = Vacancies()
        self._backlog = Backlog()
        self._known: dict[CorrelationId, Sequence] = {}  # those that a request may continue
        self._queued: dict[Job, Sequence] = {}
        self._out: dict[Job, Slot] = {}  # issued or executing
        self._start: StartSlot | None = None
        self._due: dict[Slot, None] = {}  # whose next request is to be offered, or was in this turn
        self._offers = 0  # that slots have yet to make (rule 4)
        self._drops = 0  # answers to `Discard` that are still to come
        self._left: OrderedDict[Job, TriremeError] = OrderedDict()  # rejections not fetched yet
        self._arrivals = 0
        self._sequences = 0
        self._iterations = 0
        self._stopping = False

    def use_slots(self, start: StartSlot) -> None:
        """To be called before anything else: `start` makes slots' actors, whose reports are to be given to `hear`."""
        self._start = start

    # What comes in.

    def enqueue(self, job: Job, now: float) -> None:
        """For an iterative model, id and flags of the request may change (rule 9).

        Raises:
            TriremeError: the request has no place in a sequence; see `refusals`.
        """
        self._expire(now)
        self._assign(now)
        sequence = self._admit(job, now)
        self._arrivals += 1
        job.arrival = self._arrivals
        job.level = 0
        job.enqueued_s = now
        job.deadline_s = None
        self._queued[job] = sequence
        if job.request.sequence_start:
            sequence.started = job.arrival
        if job.request.sequence_end:
            self._finish(sequence)
        if sequence.slot is not None:
            sequence.slot.put(job)
            sequence.slot.idle_s = now + self._max_idle_s
            return
        sequence.jobs.append(job)
        if sequence not in self._backlog:
            self._backlog.add(sequence)
            self._assign(now)
        if sequence in self._backlog and job.request.timeout_us:
            job.deadline_s = now + job.request.timeout_us / 1_000_000
            self._backlog.limit(sequence, job.deadline_s)

    def instance_idle(self, instance: InstanceId, spare: bool = False) -> None:
        """An instance's slots come with it when it is first idle; one that is gone must not report any more."""
        if instance not in self._hosts:
            self._hosts[instance] = self._plan.host(instance)
            self._vacancies.add_new(instance, 0, self._plan.slots)
        host = self._hosts[instance]
        if not host.spare:
            self._idle.append(instance)
        host.spare = spare

    def settle(self, jobs: Row[Job], now: float, rescheduled: Collection[Job] = ()) -> None:
        """A batch is over; said before its answers go out and before its instance is idle again, or gone.

        Args:
            jobs: the batch, as dispatched.
            rescheduled: those of them that are to be executed once more instead of being answered (rule 9); one whose
                sequence is over gets a `Reject`.
        """
        host: SequenceHost | None = None
        for job in jobs:
            slot = self._out.pop(job, None)
            if slot is not None:
                host = self._hosts[slot.instance]
                if job in rescheduled:
                    self._come_back(job, slot, now)
                    continue
                sequence = slot.sequence
                if self._plan.iterative and sequence is not None and not sequence.begins_anew(job):
                    self._finish(sequence)
                slot.settle(job)
            elif job in rescheduled:
                self._left[job] = refusals.lost(job, job.request.correlation_id)
        if host is not None:
            host.executing -= 1

    def cancel(self, job: Job) -> None:
        """Rules 6 and 7."""
        job.cancelled = True
        sequence = self._queued.get(job)
        if sequence is None:
            return
        if sequence in self._backlog:
            self._backlog.remove(sequence)
            self._finish(sequence)
            self._reject_cancelled(sequence.jobs)
            return
        slot = self._out.get(job) or sequence.slot
        assert slot is not None, "a request that is queued is in the backlog or has a slot"
        if not sequence.begins_anew(job):  # otherwise another sequence, with a START of its own, follows in its place
            self._finish(sequence)
        if self._out.pop(job, None) is not None:
            self._hosts[slot.instance].withdraw(job)
        self._drop(slot, job)

    def instance_paused(self, instance: InstanceId) -> None:
        """The instance keeps its slots, and they their sequences."""
        self._idle = [other for other in self._idle if other != instance]
        if instance in self._hosts:
            self._hosts[instance].spare = False

    def wants(self, instance: InstanceId, others: int) -> bool:
        """What is queued is for the instance that has its sequence, and no other."""
        host = self._hosts[instance]
        return bool(host.ready or host.issued) or any(slot.instance == instance for slot in self._due)

    def instance_gone(self, instance: InstanceId) -> None:
        """Rule 8."""
        host = self._hosts.pop(instance, None)
        if host is None:
            return
        self.instance_paused(instance)
        self._vacancies.forget(instance)
        slots = set(host.slots.values())
        lost = {job for job, sequence in self._queued.items() if sequence.slot in slots}.union(host.issued)
        for slot in host.slots.values():
            if slot.sequence is not None:
                self._finish(slot.sequence)
            if slot.out is not None:
                del self._out[slot.out]
            slot.lose()
        self._reject_lost(lost, refusals.lost)

    def release(self, instance: InstanceId) -> bool:
        """An instance is to go (rule 11): whether nothing binds it now, but what it executes. Ask again after each
        event; unknown ones are free."""
        host = self._hosts.get(instance)
        if host is None:
            return True
        if not host.leaving:
            host.leaving = True
            self._vacancies.forget(instance)
        return all(slot.sequence is None for slot in host.slots.values()) and not host.issued

    def stop(self) -> None:
        """Rule 10."""
        self._stopping = True

    def end_sequences(self) -> None:
        """Each sequence is over when its queued requests have been executed (rule 10)."""
        for sequence in list(self._known.values()):
            self._finish(sequence)
            if sequence.slot is not None:
                sequence.slot.shrink()

    def drop_all(self) -> Row[Job]:
        """All sequences are over; jobs whose `Reject` was not fetched are among those given back."""
        jobs = sorted([*self._queued, *self._left], key=lambda job: job.arrival)
        self._left.clear()
        self._queued.clear()
        self._backlog.clear()
        self._known.clear()
        for instance, host in self._hosts.items():
            for job in list(host.issued):
                host.withdraw(job)
                del self._out[job]
            self._vacancies.forget(instance)
            if not host.leaving:
                self._vacancies.add_new(instance, 0, self._plan.slots)
            for number in list(host.slots):
                host.slots.pop(number).lose()
        return jobs

    def hear(self, report: SlotReport, now: float) -> None:
        """A slot has said something."""
        slot = report.slot
        if slot.state is GONE:
            return
        if isinstance(report, Offer):
            if self._queued.get(report.job, self) is slot.sequence:  # otherwise it was cancelled meanwhile
                slot.offer(report.job)
        elif isinstance(report, Discarded):
            slot.drops -= 1
            self._drops -= 1
            jobs = [job for job in report.jobs if job in self._queued]
            if jobs:
                self._reject_cancelled(jobs)
                slot.shrink(len(jobs))
        elif isinstance(report, Idle):
            if now >= slot.idle_s:
                self._slot_idle(slot)
        else:
            self._slot_failed(slot)

    # What goes out.

    def next_action(self, now: float) -> Action:
        self._expire(now)
        if not self._fill(now):
            return AWAIT
        if self._left:
            return Reject(*self._left.popitem(last=False))
        for position, instance in enumerate(() if self._held_back() else self._idle):
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

    def _held_back(self) -> bool:
        """Whether no batch is to be formed for now."""
        return False

    def _rest(self) -> Action:
        """Until when there is nothing to do."""
        times = [ripe_s for instance in self._idle if (ripe_s := self._hosts[instance].ripe_s) is not None]
        deadline_s = self._backlog.closest_deadline_s
        if deadline_s is not None:
            times.append(deadline_s)
        return WaitUntil(min(times)) if times else WAIT

    @property
    def queued(self) -> int:
        return len(self._queued) + len(self._left)

    def continues(self, correlation_id: CorrelationId) -> bool:
        """Whether it has a sequence of this id that a request may continue."""
        return correlation_id in self._known

    @property
    def active(self) -> int:
        """Sequences that a request may continue."""
        return len(self._known)

    @property
    def full(self) -> bool:
        """It depends on a job's sequence."""
        return False

    # Sequences.

    def _admit(self, job: Job, now: float) -> Sequence:
        """The sequence that a request belongs to, found or begun; the checks are in the order of
        docs/reference/sequences.md#admission."""
        request = job.request
        self._plan.controls.check(job)
        if job.rows > 1:
            raise refusals.batched(job)
        anonymous = not request.correlation_id
        if anonymous and not self._plan.iterative:
            raise refusals.no_id(job)
        starts = request.sequence_start or anonymous
        if self._stopping and starts:
            raise refusals.no_new_sequence()
        states = self._plan.controls.states
        if starts and states is not None and states.unusable:
            raise InvalidArgumentError(states.unusable)
        sequence = None if anonymous else self._known.get(request.correlation_id)
        if sequence is not None and (slot := sequence.slot) is not None and now >= slot.idle_s:
            self._slot_idle(slot)
            sequence = None
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

    def _come_back(self, job: Job, slot: Slot, now: float) -> None:
        """A request is to be executed again (rule 9), unless its client gave up meanwhile."""
        sequence = slot.sequence
        if sequence is None:
            slot.settle(job)
            self._left[job] = refusals.cancelled() if job.cancelled else refusals.lost(job, job.request.correlation_id)
        elif job.cancelled:
            if not sequence.begins_anew(job):
                self._finish(sequence)
            self._drop(slot, job)
        else:
            job.enqueued_s = now
            self._queued[job] = sequence
            slot.give_back(job)
            slot.idle_s = now + self._max_idle_s

    def _drop(self, slot: Slot, job: Job) -> None:
        """A request in a slot is cancelled; those that continue it follow when the slot has said which."""
        self._reject_cancelled([job])
        if slot.drop(job):
            self._drops += 1

    def _reject_cancelled(self, jobs: Collection[Job]) -> None:
        for job in jobs:
            self._queued.pop(job, None)
            self._left[job] = refusals.cancelled()

    def _reject_lost(self, jobs: Collection[Job], error: Callable[[Job, CorrelationId], TriremeError]) -> None:
        for job in sorted(jobs, key=lambda job: job.arrival):
            self._left[job] = error(job, self._queued.pop(job).id)

    # Slots.

    def _make_slot(self, instance: InstanceId, number: int) -> Slot:
        assert self._start is not None, "a sequence batcher is told how to make slots"
        slot = Slot(instance, number, self._plan.iterative, self._slot_changed)
        slot.send = self._start(slot, SlotCore(slot, self._plan.controls, self._max_idle_s))
        self._hosts[instance].slots[number] = slot
        return slot

    def _slot_changed(self, slot: Slot, before: SlotState) -> None:
        after = slot.state
        if after is before:
            return
        if after is DUE:
            self._due[slot] = None
            self._offers += 1
        else:
            self._offers -= before is DUE
            if after is READY:
                return
            self._due.pop(slot, None)  # with another sequence it is due anew, behind the others
        if after is GONE:
            self._drops -= slot.drops
        host = self._hosts.get(slot.instance)
        if host is not None and before is READY:
            host.ready.pop(slot.number, None)
            if slot.out is not None:
                self._out[slot.out] = slot
        if host is not None and after in VACANT and before not in VACANT and not host.leaving:
            self._vacancies.add(slot)

    def _slot_idle(self, slot: Slot) -> None:
        """Nothing comes for a slot (rule 5)."""
        sequence = slot.sequence
        if sequence is not None and not sequence.over:
            self._finish(sequence)
            slot.shrink()
        if slot.state is FREE:
            del self._hosts[slot.instance].slots[slot.number]
            slot.lose()

    def _slot_failed(self, slot: Slot) -> None:
        """Rule 12."""
        host = self._hosts[slot.instance]
        lost = [job for job, sequence in self._queued.items() if sequence.slot is slot]
        if slot.out is not None and host.withdraw(slot.out) is not None:
            del self._out[slot.out]
            lost.append(slot.out)
        if slot.sequence is not None:
            self._finish(slot.sequence)
            if not host.leaving:
                self._vacancies.add_new(slot.instance, slot.number, slot.number + 1)
        del host.slots[slot.number]
        slot.lose()
        self._reject_lost(set(lost), refusals.slot_died)

    def _expire(self, now: float) -> None:
        """Reject what has waited too long in the backlog."""
        for sequence in self._backlog.expire(now):
            self._finish(sequence)
            for job in sequence.jobs:
                del self._queued[job]
                self._left[job] = refusals.backlog_expired()

    def _assign(self, now: float) -> None:
        """Give free slots to the backlog, once it is known which are free."""
        while self._backlog and self._vacancies and not self._drops:
            instance, number, slot = self._vacancies.pop()
            slot = slot or self._make_slot(instance, number)
            slot.assign(self._backlog.pop())
            slot.idle_s = now + self._max_idle_s

    def _fill(self, now: float) -> bool:
        """Give free slots to the backlog, and let requests go that may; a slot may become free by that. Whether that is
        done: no answer of a slot is awaited."""
        self._assign(now)
        while not (self._offers or self._drops):
            for slot in self._due:
                if slot.state is READY:
                    self._hosts[slot.instance].ready[slot.number] = slot
            self._due.clear()
            for host in self._hosts.values():
                host.issue(now)
            if not (self._backlog and self._vacancies):
                return True
            self._assign(now)
        return False
