"""A sequence batcher as its rules say it: lists that are looked through from end to end (docs/reference/sequences.md).

`NaiveSequences` is told what the batcher is told, and says what the right decision is. What is a rule of the protocol
stands here as plainly as it could; where the reference leaves a choice, the batcher's own rule is taken: of free slots
with equal numbers the one that has been free longest, and requests are issued in the order in which they became ready.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...engine.config.model import DynamicBatching, ModelConfig
from ...engine.config.sequence import OldestStrategy, SequenceBatching, sequence_batching
from ...engine.job import SealReason
from ...engine.scheduler_delays import SchedulerDelays
from .batches import Batch, cannot_grow, may_share, right_batch
from .naive_slots import NaiveInstance, NaiveRequest, NaiveRun, NaiveSlot
from .observed import NEVER_S, Admitted, RefusedAtDoor
from .queues import NaiveEntry

NO_DELAYS = SchedulerDelays()

CANCELLED = "Cancelled"
EXPIRED = "timeout of the corresponding sequence has been expired"
LOST = "is lost, because the model instance"
SLOT_DIED = "is lost, because its slot died"
BATCHED = "must specify batch-size 1 due to requirements of sequence batcher"
NO_ID = "must specify a non-zero or non-empty correlation ID"
NO_START = "must specify the START flag on the first request of the sequence"
STOPPING = "Server is stopping"


@dataclass(frozen=True, slots=True)
class RightBatch:
    """The right batch of an instance."""

    instance: int
    requests: tuple[int, ...]
    reason: SealReason


class NaiveSequences:
    """One model's.

    Attributes:
        left: requests to be rejected, in order, each with a part of the text of its error.
    """

    def __init__(self, config: ModelConfig, delays: SchedulerDelays = NO_DELAYS) -> None:
        batching = sequence_batching(config)
        assert batching is not None, "a model with a sequence batcher"
        self._config = config
        self._batching: SequenceBatching = batching
        self._rows = max(1, config.max_batch_size)
        self._oldest = batching.strategy if isinstance(batching.strategy, OldestStrategy) else None
        self._instances: dict[int, NaiveInstance] = {}
        self._idle: list[int] = []
        self._spare: set[int] = set()  # those of them that get only a batch that cannot grow by waiting
        self._backlog: list[NaiveRun] = []
        self._known: dict[int | str, NaiveRun] = {}
        self._cancelled: set[int] = set()
        self._delays = delays
        self._holds = self._oldest is None and delays.queued > 0
        self._gone_while_held = [0, 0]  # from slots, from the backlog
        self._turns = 0
        self.stopping = False
        self.left: list[tuple[int, str]] = []
        self._either: set[int] = set()  # of those: cancelled, or lost with a slot that died before it said which

    def _turn(self) -> int:
        self._turns += 1
        return self._turns

    # Admission.

    def refusal(self, event: Admitted | RefusedAtDoor) -> str:
        """Part of the text with which a request must be refused; "" if it must not."""
        anonymous = not event.sequence
        if event.rows > 1:
            return BATCHED
        if anonymous and not self._batching.iterative:
            return NO_ID
        if self.stopping and (event.start or anonymous):
            return STOPPING
        return "" if anonymous or event.start or event.sequence in self._known else NO_START

    def admit(self, event: Admitted) -> None:
        anonymous = not event.sequence
        run = None if anonymous else self._known.get(event.sequence)
        if run is None:
            run = NaiveRun(f"of request {event.request}" if anonymous else event.sequence, over=anonymous)
            if not anonymous:
                self._known[event.sequence] = run
        arrival, now_s = self._turn(), event.at_s
        entry = NaiveEntry(event.request, 1, 0, arrival, now_s, NEVER_S, event.inputs)
        run.jobs.append(NaiveRequest(event.request, arrival, event.start or anonymous, now_s, entry))
        if event.end and not anonymous:
            self._finish(run)
        if run.slot is not None:
            self._look_at(run.slot)
            self._touch(run, now_s)
            return
        if run not in self._backlog:
            self._backlog.append(run)
            self._assign(now_s)
        if run in self._backlog and event.timeout_us:
            run.deadline_s = min(run.deadline_s, now_s + event.timeout_us / 1_000_000)

    # What happens.

    def idle(self, instance: int, spare: bool = False) -> None:
        if instance not in self._instances:
            slots = self._oldest.max_candidate_sequences if self._oldest is not None else 0
            places = [NaiveSlot(instance, number, free_turn=self._turn()) for number in range(slots or self._rows)]
            least = self._delays.queued if self._oldest is not None else 0
            self._instances[instance] = NaiveInstance(places, least=least)
        if instance not in self._spare:
            self._idle.append(instance)
        self._spare = self._spare - {instance} | ({instance} if spare else set())

    def paused(self, instance: int) -> None:
        self._idle = [each for each in self._idle if each != instance]
        self._spare = self._spare - {instance}

    def gone(self, instance: int) -> None:
        """All of its sequences are over, and lost is what is queued of them."""
        self.paused(instance)
        host = self._instances.pop(instance, None)
        if host is None:
            return
        lost = list(host.issued)
        for place in host.places:
            if place.run is not None:
                self._finish(place.run)
                lost += place.run.jobs
                place.run.slot = None
        self.left += [(asked.number, LOST) for asked in sorted(lost, key=lambda asked: asked.arrival)]

    def slot_died(self, instance: int, number: int) -> None:
        """Its sequence is over; what is queued of it is lost, and what is executed is answered."""
        host = self._instances[instance]
        place = host.places[number]
        self._either.update(request for request, why in self.left if why == CANCELLED)
        if place.out in host.issued:
            host.issued.remove(place.out)
            host.least = max(0, host.least - 1)
            self.left.append((place.out.number, SLOT_DIED))
        elif place.out is not None:
            host.orphans.add(place.out.number)
        place.out = None
        place.ready_turn = place.asked = 0
        place.cut.clear()
        if place.run is not None:
            self._finish(place.run)
            self._reject(place.run.jobs, SLOT_DIED)
            place.run.slot = place.run = None
            place.free_turn = self._turn()

    def texts(self, left: tuple[int, str]) -> tuple[str, ...]:
        """What the error of one of those left may say."""
        return (left[1], SLOT_DIED) if left[0] in self._either else (left[1],)

    def released(self, instance: int) -> bool:
        """Whether nothing binds an instance that is to go."""
        host = self._instances.get(instance)
        if host is None:
            return True
        host.leaving = True
        return self._is_unbound(host)

    def unbound(self) -> list[int]:
        """Instances that are to go, and that nothing binds or keeps busy."""
        return [each for each, host in self._instances.items() if self._is_unbound(host) and not host.executing]

    def _is_unbound(self, host: NaiveInstance) -> bool:
        return host.leaving and not host.issued and all(place.run is None for place in host.places)

    def end_sequences(self) -> None:
        for run in list(self._known.values()):
            self._finish(run)
            if run.slot is not None:
                self._look_at(run.slot)

    def cancel(self, number: int) -> None:
        """In the backlog a sequence is cancelled as a whole; in a slot, what continues the request."""
        self._cancelled.add(number)
        for run in self._backlog:
            if any(asked.number == number for asked in run.jobs):
                self._backlog.remove(run)
                self._finish(run)
                self._gone_while_held[1] += len(run.jobs)
                self._reject(run.jobs)
                return
        for place in self._places():
            if number in place.cut:
                place.cut.remove(number)
                place.free_turn = place.free_turn if place.cut else self._turn()
                return
            asked = next((each for each in (place.run.jobs if place.run else ()) if each.number == number), None)
            issued = place.out if place.out in self._instances[place.instance].issued else None
            if asked is not None and place.run is not None:
                place.cut.update(each.number for each in self._cut(place.run, asked)[1:])
            elif issued is not None and issued.number == number:
                host = self._instances[place.instance]
                host.issued.remove(issued)
                host.least = max(0, host.least - 1)
                self._gone_while_held[0] += 1
                self._reject([issued])
                if place.run is not None:
                    place.cut.update(each.number for each in self._cut_behind(place.run))
                place.out = None
            else:
                continue
            self._look_at(place)
            return

    def slot_asked(self, instance: int, number: int) -> None:
        """A slot is to say what follows a cancelled request."""
        self._instances[instance].places[number].asked += 1

    def discarded(self, instance: int, number: int, requests: tuple[int, ...]) -> None:
        """It has said so. A sequence that left with the last of these has left now."""
        place = self._instances[instance].places[number]
        place.asked -= 1
        if place.cut and not place.cut.difference(requests) and place.run is None:
            place.free_turn = self._turn()
        place.cut.difference_update(requests)

    def _cut(self, run: NaiveRun, asked: NaiveRequest) -> list[NaiveRequest]:
        removed = run.cut(asked)
        self._gone_while_held[0] += len(removed)
        if not run.jobs or removed[-1].arrival > run.jobs[-1].arrival:
            self._finish(run)
        self._reject(removed)
        return removed

    def _cut_behind(self, run: NaiveRun) -> list[NaiveRequest]:
        """What continues a request that was issued."""
        removed = run.cut()
        self._gone_while_held[0] += len(removed)
        if not run.jobs:
            self._finish(run)
        self._reject(removed)
        return removed

    def settle(self, now_s: float, requests: tuple[int, ...], rescheduled: tuple[int, ...]) -> None:
        """A batch is over; some of its requests come back."""
        host: NaiveInstance | None = None
        for number in filter(None, requests):
            place = next((each for each in self._places() if each.out is not None and each.out.number == number), None)
            if place is None:
                host = next((each for each in self._instances.values() if number in each.orphans), host)
                if host is not None:
                    host.orphans.discard(number)
                if number in rescheduled:
                    self.left.append((number, CANCELLED if host and number in self._cancelled else LOST))
                continue
            host, asked, run = self._instances[place.instance], place.out, place.run
            assert asked is not None
            if number in rescheduled:
                self._come_back(place, asked, now_s)
                continue
            if self._batching.iterative and run is not None and not any(each.start for each in run.jobs):
                self._finish(run)
            place.out = None
            self._look_at(place)
        if host is not None:
            host.executing -= 1

    def _come_back(self, place: NaiveSlot, asked: NaiveRequest, now_s: float) -> None:
        run, place.out = place.run, None
        if run is None or asked.number in self._cancelled:
            self.left.append((asked.number, CANCELLED if asked.number in self._cancelled else LOST))
            if run is not None:
                place.cut.update(each.number for each in self._cut_behind(run))
        else:
            asked.start, asked.since_s = False, now_s
            run.jobs.insert(0, asked)
            self._touch(run, now_s)
        self._look_at(place)

    def dropped(self) -> set[int]:
        """All that was queued is given back, and every sequence is over."""
        given = {number for number, _ in self.left}
        for run in self._backlog:
            given.update(asked.number for asked in run.jobs)
        for host in self._instances.values():
            given.update(asked.number for asked in host.issued)
            for place in host.places:
                if place.run is not None:
                    given.update(asked.number for asked in place.run.jobs)
                    place.run.jobs.clear()
                    place.run.over = True
                if place.out in host.issued:
                    place.out = None
                place.asked = 0
                place.cut.clear()
                self._look_at(place)
            host.issued.clear()
        self.left.clear()
        self._backlog.clear()
        self._known.clear()
        return given

    # Sequences and slots.

    def _places(self) -> list[NaiveSlot]:
        return [place for host in self._instances.values() for place in host.places]

    def _finish(self, run: NaiveRun) -> None:
        run.over = True
        run.idle_s = NEVER_S
        if self._known.get(run.name) is run:
            del self._known[run.name]

    def _touch(self, run: NaiveRun, now_s: float) -> None:
        if not run.over:
            run.idle_s = now_s + self._batching.max_sequence_idle_us / 1_000_000

    def _reject(self, jobs: list[NaiveRequest], why: str = CANCELLED) -> None:
        self.left += [(asked.number, why) for asked in jobs]

    def _look_at(self, place: NaiveSlot) -> None:
        """A sequence that is over leaves when its last request has been handed on; of an iterative model, when it is
        done. A slot that is ready keeps its turn."""
        run = place.run
        if run is not None and run.over and not run.jobs and not (self._batching.iterative and place.out is not None):
            run.slot = place.run = None
            place.free_turn = self._turn()
        place.ready_turn = (place.ready_turn or self._turn()) if place.is_ready else 0

    def silent(self, name: int | str, now_s: float) -> bool:
        """A sequence is over if it has been silent for too long; whether that is so."""
        run = self._known.get(name)
        if run is None or run.idle_s > now_s:
            return False
        self._finish(run)
        if run.slot is not None:
            self._look_at(run.slot)
        return True

    def overdue(self, now_s: float) -> list[int | str]:
        """Sequences that should be over by now, because they have been silent for too long."""
        return [run.name for run in self._known.values() if run.idle_s < now_s]

    def advance(self, now_s: float, decides: bool = True) -> None:
        """What is due at this time. Requests are issued when it is decided about batches, not when one comes."""
        late = [run for run in self._backlog if run.deadline_s <= now_s]
        for run in sorted(late, key=lambda run: run.deadline_s):
            self._backlog.remove(run)
            self._finish(run)
            self._reject(run.jobs, EXPIRED)
        self._assign(now_s)
        while decides and self._oldest is not None:
            self._issue(now_s)
            if not self._assign(now_s):
                return

    def _assign(self, now_s: float) -> bool:
        """The backlog's first gets the free slot with the lowest number, once it is known which are free; whether one
        did."""
        if not self._backlog or any(place.asked for place in self._places()):
            return False
        assigned = False
        while self._backlog and (place := self._free_place()) is not None:
            run = self._backlog.pop(0)
            run.slot, place.run = place, run
            self._look_at(place)
            self._touch(run, now_s)
            assigned = True
        return assigned

    def _free_place(self) -> NaiveSlot | None:
        free = [place for place in self._places() if place.run is None and not self._instances[place.instance].leaving]
        return min(free, key=lambda place: (place.number, place.free_turn), default=None)

    def _issue(self, now_s: float) -> None:
        """Each candidate has at most one request issued."""
        for host in self._instances.values():
            ready = [place for place in host.places if place.is_ready]
            for place in sorted(ready, key=lambda place: place.ready_turn):
                asked = self._take(place)
                asked.since_s = asked.entry.queued_s = now_s
                host.issued.append(asked)

    def _take(self, place: NaiveSlot) -> NaiveRequest:
        assert place.run is not None
        place.out = place.run.jobs.pop(0)
        asked = place.out
        self._look_at(place)
        return asked

    # Decisions.

    def right_decision(self, now_s: float) -> RightBatch | float:
        """The batch to be executed now, on the instance that has been idle longest of those that have one; if there is
        none, when something is due next."""
        due_s = min([run.deadline_s for run in self._backlog], default=NEVER_S)
        for instance in () if self._is_held() else self._idle:
            formed = self._formed(self._instances[instance], now_s)
            if isinstance(formed, tuple):
                return RightBatch(instance, *formed)
            due_s = min(due_s, formed)
        return due_s

    def _is_held(self) -> bool:
        """Until slots and backlog have held enough requests at a time, those included that are gone since, nothing is
        sent, unless the batcher is stopping."""
        if self._holds and not self.stopping:
            in_slots, in_backlog = self._gone_while_held
            in_slots += sum(len(place.run.jobs) for place in self._places() if place.run is not None)
            in_backlog += sum(len(run.jobs) for run in self._backlog)
            self._holds = in_slots < self._delays.queued or in_backlog < self._delays.backlog
        return self._holds and not self.stopping

    def _formed(self, host: NaiveInstance, now_s: float) -> tuple[tuple[int, ...], SealReason] | float:
        """The requests of a batch, padding included, and why it is sent; or when it will be due."""
        return self._formed_direct(host, now_s) if self._oldest is None else self._formed_oldest(host, now_s)

    def _formed_oldest(self, host: NaiveInstance, now_s: float) -> tuple[tuple[int, ...], SealReason] | float:
        strategy = self._oldest
        if strategy is None or not host.issued or (len(host.issued) < host.least and not self.stopping):
            return NEVER_S
        host.least = 0
        batching = DynamicBatching(strategy.preferred_batch_sizes, strategy.max_queue_delay_us)
        line = [asked.entry for asked in host.issued]
        is_spare = host.places[0].instance in self._spare
        if is_spare and not cannot_grow(self._config, batching, line, now_s, self.stopping):
            return NEVER_S
        right = right_batch(self._config, batching, line, now_s, self.stopping)
        if not isinstance(right, Batch):
            return right.due_s
        return tuple([entry.number for entry in line[: right.count]]), right.reason

    def _formed_direct(self, host: NaiveInstance, now_s: float) -> tuple[tuple[int, ...], SealReason] | float:
        ready = [place for place in host.places if place.is_ready]
        if host.executing or not ready:
            return NEVER_S
        heads = {place.number: place.run.jobs[0] for place in ready if place.run is not None}
        strategy = self._batching.strategy
        utilization = 0.0 if isinstance(strategy, OldestStrategy) else strategy.minimum_slot_utilization
        reason = SealReason.DRAIN if self.stopping else SealReason.IDLE
        if strategy.max_queue_delay_us and utilization and not self.stopping:
            reason = SealReason.PREFERRED
            if np.float32(len(ready)) / np.float32(self._rows) < np.float32(utilization):
                reason = SealReason.DELAY
                due_s = min(asked.since_s for asked in heads.values()) + strategy.max_queue_delay_us / 1_000_000
                if now_s < due_s:
                    return due_s
        first = heads[min(heads)]
        rows = [
            heads[number].number if number in heads and may_share(self._config, first.entry, heads[number].entry) else 0
            for number in range(max(heads) + 1)
        ]
        return tuple(rows), SealReason.FULL if len(rows) == self._rows and all(rows) else reason

    def dispatched(self, instance: int, requests: tuple[int, ...]) -> None:
        """A right batch was sent."""
        host = self._instances[instance]
        self._idle.remove(instance)
        self._spare = self._spare - {instance}
        host.executing += 1
        if self._oldest is not None:
            host.issued = [asked for asked in host.issued if asked.number not in requests]
            return
        for number, request in enumerate(requests):
            if request:
                self._take(host.places[number])
