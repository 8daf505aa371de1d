"""The part of a scheduler that is the same for all kinds of models: its instances, the order of answers, statistics.

The core forms batches (`core`); the dispatcher tells it which instances may take one. It decides itself which instance
executes a request that may have ended a process (`engine.instances.restart`).

Rules:
 1. An instance has credits: so many batches it may hold at once. While it holds fewer, it is idle for the core, and
    stands behind the others again after each batch that it gets.
 2. An instance whose credits overlap (a GPU's: one batch is copied while another is computed) is idle while it holds
    nothing. While it holds something it is *spare*: it gets only a batch that cannot grow by waiting, until just before
    the end of what it holds (rule 8), when it is idle again.
 3. An instance that has executed a batch in place while more is queued *rests*, and is idle again when its rest is
    ended, in the event loop's next turn.
 4. Where instances need leave to execute (`permits`), one that is idle by these rules is idle for the core while it has
    that.
 5. An instance that is to leave gets nothing more, and is dismissed when it holds nothing. If it is to end what it has
    begun first, it still gets what continues its sequences, and what it is to execute alone (rule 6).
 6. Requests to be isolated are executed each alone by the next instance of their seat, before it is idle for the first
    time. If their seat gets no instance any more, they pass to that of its heirs whose instance holds the least, which
    executes them before anything else when it holds nothing; while no heir has an instance, to the first heir. One that
    is cancelled meanwhile, or whose seat leaves no heir, is rejected.
 7. When the core has failed it is told nothing more, and batches that are over still count.
 8. A second batch is bound as late as its instance's `Forecast` says (`forecast`).

An instance, for the core:

    PROVING ─ nothing to isolate ▶ IDLE ─ a batch ▶ BUSY ─ all of them over ▶ IDLE
    any but LEAVING ─ inherits requests to be isolated ▶ PROVING
    BUSY ─ a credit is left ▶ IDLE, or with overlap SPARE ─ a batch ▶ BUSY
    SPARE ─ just before the end, or all of them over ▶ IDLE
    BUSY ─ a batch executed in place is over ▶ RESTING ─ end_rest ▶ IDLE
    any ─ leave ▶ LEAVING ─ holds nothing ▶ dismissed;  any ─ detach ▶ gone
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from ..clock import Clock
from ..errors import TriremeError
from ..job import ExecutionBatch, Job, Outcome, SealReason
from ..metrics.statistics import ModelStatistics
from . import refusals
from .adaptive import AdaptiveBatcher
from .core import WAIT, Action, Await, Dispatch, InstanceId, Reject, SchedulerCore, WaitUntil
from .forecast import Durations, Forecast
from .ordering import AnswerOrder
from .permits import Permits
from .sequence.batcher import SequenceBatcher

Seat = int
"""The place of an instance, over its restarts."""


class CreditState(enum.Enum):
    """See the table. An instance that overlaps is IDLE just before its end, too, and so is one with a credit left."""

    PROVING = "proving"
    IDLE = "idle"
    SPARE = "spare"
    BUSY = "busy"
    RESTING = "resting"
    LEAVING = "leaving"


PROVING, IDLE, SPARE, BUSY, RESTING, LEAVING = CreditState


@dataclass(slots=True, eq=False)
class _Instance:
    """`forecast`: of one that overlaps."""

    credits: int
    seat: Seat
    forecast: Forecast | None
    held: int = 0
    state: CreditState = PROVING


class Dispatcher:
    """Drives one core.

    Args:
        stateful: the core is a `SequenceBatcher`.
        adaptive: the core is an `AdaptiveBatcher`, which is told when batches are over.
        order: of the answers; None for none. Jobs are admitted to it by the caller, which has them queued by `core`.
        permits: of a model whose instances need leave to execute.

    Attributes:
        sequences: the core, if it is one of a stateful model.
        resting: instances that rest (rule 3).
        dismissed: instances that may close now (rule 5); for the caller to detach.
        core_failed: rule 7.
    """

    def __init__(
        self,
        core: SchedulerCore,
        stateful: bool = False,
        order: AnswerOrder | None = None,
        permits: Permits | None = None,
        adaptive: bool = False,
    ) -> None:
        self.core = core
        self.sequences = cast(SequenceBatcher, core) if stateful else None
        self._adaptive = cast(AdaptiveBatcher, core) if adaptive else None
        self.order = order
        self.permits = permits
        self.resting: list[InstanceId] = []
        self.dismissed: list[InstanceId] = []
        self.core_failed = False
        self._instances: dict[InstanceId, _Instance] = {}
        self._durations: Durations = {}
        self._spare: list[InstanceId] = []
        self._proving: list[InstanceId] = []
        self._parting: list[InstanceId] = []  # end what they have begun (rule 5)
        self._isolated: dict[Job, Seat] = {}
        self._rejects: deque[Reject] = deque()
        self._exceptional = False  # there may be something to do by rule 5 or 6

    # Jobs.

    def cancel(self, job: Job) -> None:
        """The job's client gave up."""
        if job in self._isolated:
            self._reject(job, refusals.cancelled())
        else:
            self.core.cancel(job)

    def isolate(self, jobs: Iterable[Job], seat: Seat) -> None:
        """One of these jobs has ended the process of this seat's instance (rule 6)."""
        for job in jobs:
            self._isolated[job] = seat
            if job.cancelled:
                self.cancel(job)

    def give_up(self, seat: Seat, error: TriremeError, heirs: Sequence[Seat] = ()) -> None:
        """The seat gets no instance any more (rule 6).

        Args:
            heirs: seats whose instances may execute what was left to this one.
        """
        jobs = [job for job, its in self._isolated.items() if its == seat]
        if not heirs:
            for job in jobs:
                self._reject(job, error)
        elif jobs:
            heir = self._inherit(heirs)
            for job in jobs:
                self._isolated[job] = heir

    def _inherit(self, heirs: Sequence[Seat]) -> Seat:
        """Choose who executes what is left; its instance, if it has one, gets nothing else until then (rule 6)."""
        able = [each for each, its in self._instances.items() if its.seat in heirs and its.state is not LEAVING]
        if not able:
            return heirs[0]
        instance = min(able, key=lambda each: self._instances[each].held)
        its = self._instances[instance]
        if its.state is not PROVING:
            self._forget(instance)
            its.state = PROVING
            self._proving.append(instance)
            self._exceptional = True
            if not self.core_failed:
                self.core.instance_paused(instance)
        return its.seat

    def _reject(self, job: Job, error: TriremeError) -> None:
        del self._isolated[job]
        self._rejects.append(Reject(job, error))
        self._exceptional = True

    def drop_all(self) -> list[Job]:
        """Give back all jobs that are not executed."""
        jobs = [*self.core.drop_all(), *self._isolated, *(reject.job for reject in self._rejects)]
        self._isolated.clear()
        self._rejects.clear()
        return jobs

    # Instances.

    def attach(self, instance: InstanceId, most: int = 1, *, overlaps: bool = False, seat: Seat = 0) -> None:
        """A new instance may get batches.

        Args:
            most: credits: batches that it may hold at once; 1 where it needs leave to execute.
        """
        forecast = Forecast(self._durations) if overlaps else None
        new = self._instances[instance] = _Instance(most, seat, forecast)
        if seat in self._isolated.values():
            self._proving.append(instance)
            self._exceptional = True
        else:
            self._add(instance, new)

    def _add(self, instance: InstanceId, new: _Instance) -> None:
        new.state = IDLE
        self.core.instance_idle(instance)
        if self.permits is not None:
            self.core.instance_paused(instance)
            self.permits.idle(instance, self.core)

    def over(
        self, instance: InstanceId, jobs: Sequence[Job], now: float, rescheduled: Collection[Job], in_place: bool
    ) -> None:
        """A batch that was dispatched is over.

        Args:
            rescheduled: see `SequenceBatcher.settle`.
            in_place: it was executed on the event loop (rule 3).
        """
        if self.sequences is not None:
            self.settle(jobs, now, rescheduled)
        elif self._adaptive is not None and not self.core_failed:
            batch = jobs[0].batch
            self._adaptive.executed(instance, jobs[0], now, failed=batch is not None and batch.failed)
        its = self._instances.get(instance)
        if its is None:
            return
        its.held -= 1
        state = its.state
        if its.forecast is not None:
            its.forecast.over(jobs[0], now)
        if state is LEAVING:
            if not its.held:
                self.dismissed.append(instance)
        elif state is PROVING:
            pass
        elif in_place:
            its.state = RESTING
            self.resting.append(instance)
        else:
            self._has_credit(instance, its)

    def settle(self, jobs: Sequence[Job], now: float, rescheduled: Collection[Job]) -> None:
        """See `SequenceBatcher.settle`; for the batches of an instance that has died."""
        if self.sequences is not None and not self.core_failed:
            self.sequences.settle(jobs, now, rescheduled)

    def _has_credit(self, instance: InstanceId, its: _Instance) -> None:
        """Rules 1, 2, 4 and 7."""
        if self.core_failed or its.state is IDLE:
            return
        if its.forecast is not None:
            if its.held:
                if its.state is BUSY:
                    its.state = SPARE
                    self._spare.append(instance)
                    self.core.instance_idle(instance, spare=True)
                return
            if its.state is SPARE:
                self._spare.remove(instance)
        its.state = IDLE
        if self.permits is None:
            self.core.instance_idle(instance)
        else:
            self.permits.idle(instance, self.core)

    def end_rest(self) -> None:
        """Rule 3."""
        for instance in self.resting:
            self._has_credit(instance, self._instances[instance])
        self.resting.clear()

    def granted(self, instance: InstanceId) -> None:
        """An instance was granted leave to execute. One that proves itself, or leaves, makes no use of it."""
        granted = self.permits is not None and self.permits.granted(instance)
        if granted and self._instances[instance].state is IDLE:
            self.core.instance_idle(instance)

    def leave(self, instance: InstanceId, sequences_first: bool = False) -> bool:
        """An instance wants to close (rule 5). Unknown ones are fine.

        Args:
            sequences_first: it ends what it has begun: its sequences, and what it is to execute alone.

        Returns:
            Whether it waits for no sequence.
        """
        its = self._instances.get(instance)
        if its is None:
            return True
        if sequences_first and not self.core_failed:
            bound = self.sequences is not None and not self.sequences.release(instance)
            if bound or its.state is PROVING:
                if instance not in self._parting:
                    self._parting.append(instance)
                    self._exceptional = True
                return not bound
        if its.state is not LEAVING:
            its.state = LEAVING
            self._forget(instance)
            if not self.core_failed:
                self.core.instance_paused(instance)
            if not its.held:
                self.dismissed.append(instance)
        return True

    def detach(self, instance: InstanceId) -> None:
        """An instance is gone. Unknown ones are fine."""
        self._instances.pop(instance, None)
        self._forget(instance)
        if self.permits is not None:
            self.permits.gone(instance)
        if not self.core_failed:
            self.core.instance_gone(instance)

    def _forget(self, instance: InstanceId) -> None:
        for instances in (self._spare, self.resting, self._proving, self._parting, self.dismissed):
            if instance in instances:
                instances.remove(instance)

    # What goes out.

    def next_action(self, now: float) -> Action:
        """What to do now. Not to be asked when the core has failed.

        Returns:
            As `SchedulerCore.next_action`.
        """
        if self._exceptional and (action := self._see_to_exceptions(now)) is not None:
            return action
        core = self.core
        if not core.queued and self.sequences is None:
            if self.resting and self.permits is None:
                self.end_rest()
            return WAIT
        opens_s = self._open(now) if self._spare and core.queued else math.inf
        action = core.next_action(now)
        if isinstance(action, Dispatch):
            self._dispatched(action, now)
            return action
        if opens_s < math.inf and not isinstance(action, Reject | Await):
            action = WaitUntil(min(opens_s, action.when_s) if isinstance(action, WaitUntil) else opens_s)
        if self.resting and not core.queued and self.permits is None:
            self.end_rest()
        return action

    def _see_to_exceptions(self, now: float) -> Action | None:
        """Rules 5 and 6."""
        if self._rejects:
            return self._rejects.popleft()
        if self._proving and (proof := self._prove(now)) is not None:
            return proof
        parting, self._parting = self._parting, []
        for instance in parting:
            self.leave(instance, sequences_first=True)
        self._exceptional = bool(self._proving or self._parting)
        return None

    def _dispatched(self, action: Dispatch, now: float) -> None:
        instance, jobs = action.instance, action.jobs
        its = self._instances[instance]
        its.held += 1
        its.state = BUSY
        if self.permits is not None:
            self.permits.use(instance)
        if self.order is not None:
            self.order.dispatched(instance, jobs)
        if its.forecast is not None:
            if instance in self._spare:
                self._spare.remove(instance)
            its.forecast.begin(jobs[0], sum(job.rows for job in jobs), now)
        if its.held < its.credits:
            self._has_credit(instance, its)

    def _open(self, now: float) -> float:
        """Spare instances are idle just before the end of what they hold (rule 2); when the next one is."""
        next_s = math.inf
        for instance in list(self._spare):
            its = self._instances[instance]
            assert its.forecast is not None, "only those that overlap are spare"
            opens_s = its.forecast.opens_s()
            if opens_s <= now:
                self._spare.remove(instance)
                its.state = IDLE
                self.core.instance_idle(instance)
            else:
                next_s = min(next_s, opens_s)
        return next_s

    def _prove(self, now: float) -> Dispatch | None:
        """Rule 6."""
        for instance in list(self._proving):
            its = self._instances[instance]
            if its.held:
                continue
            job = next((job for job, seat in self._isolated.items() if seat == its.seat), None)
            if job is not None:
                del self._isolated[job]
                its.held = 1
                if its.forecast is not None:
                    its.forecast.begin(job, job.rows, now)
                return Dispatch(instance, (job,), SealReason.UNBATCHED, isolated=True)
            self._proving.remove(instance)
            self._add(instance, its)
        return None

    def ask_for_permits(self, news: bool) -> None:
        """When there is nothing more to do now: ask for instances that might execute something (rule 4).

        Args:
            news: something has happened since this was last said, besides grants.
        """
        if self.permits is not None:
            self.permits.ask(self.core, news)
            self.permits.give_back(self.core)

    def __repr__(self) -> str:
        return f"<Dispatcher of {len(self._instances)} instances: {self.core!r}>"


class Accounts:
    """Counts accepted requests: executions, successes, failures, each once
    (docs/reference/statistics.md)."""

    __slots__ = ("_clock", "_statistics")

    def __init__(self, statistics: ModelStatistics, clock: Clock) -> None:
        self._statistics = statistics
        self._clock = clock

    def rejected(self, job: Job, error: TriremeError) -> None:
        """A request that waited is answered with an error."""
        statistics, now_ns = self._statistics, self._clock.now_ns()
        statistics.pending -= 1
        statistics.record_failure(job.received_ns, now_ns, error.reason)
        if statistics.tap.watched:
            statistics.tap.note_request(job.received_ns, now_ns, error)

    def over(self, batch: ExecutionBatch) -> int:
        """A batch is over: when. `count` is told of that, at once or when its answers have gone."""
        return self._clock.now_ns()

    def count(self, batch: ExecutionBatch, now_ns: int) -> None:
        """A batch was over at this time. Those of its requests that are executed again wait again, since then."""
        statistics, clock, marks = self._statistics, self._clock, batch.marks
        statistics.record_execution(batch.rows, marks, clock.wall_ms(), batch.sealed, batch.gpu)
        if batch.reported is not None:
            statistics.record_responses(batch.take_reported())
        succeeded: list[tuple[int, int, int]] = []
        for job, outcome, final in batch.answers:
            if final and not job.is_null and not isinstance(outcome, TriremeError):
                succeeded.append((job.received_ns, job.enqueued_ns, job.rows))
        for job in batch.rescheduled:
            succeeded.append((job.received_ns, job.enqueued_ns, job.rows))
            job.batch = None
            job.enqueued_ns = now_ns
            statistics.pending += 1
            statistics.tap.unanswered -= 1
        if succeeded:
            statistics.record_successes(succeeded, marks, now_ns, batch.gpu)
        if statistics.tap.left:
            statistics.tap.note(batch, statistics.execution_count, now_ns, len(succeeded))

    def failed(self, job: Job, error: TriremeError, batch: ExecutionBatch) -> None:
        """A request is answered with what its execution has raised."""
        statistics, now_ns = self._statistics, self._clock.now_ns()
        statistics.record_failure(job.received_ns, now_ns, error.reason, batch.gpu)
        if statistics.tap.watched:
            statistics.tap.note_request(job.received_ns, now_ns, error, batch.marks[0], batch.instance_name)

    def answered(self, job: Job, outcome: Outcome, final: bool) -> None:
        """A decoupled model has answered a request. An error that is not the end of it is one of its responses."""
        statistics, now_ns = self._statistics, self._clock.now_ns()
        if not job.responded and outcome is not None:
            job.responded = True
            statistics.record_first_response(job.received_ns, now_ns)
        batch = job.batch
        if batch is not None:
            batch.heard = True
            if batch.reported is not None:
                statistics.record_responses(batch.take_reported())
        if not final:
            return
        if statistics.tap.watched and batch is not None:
            why = outcome if isinstance(outcome, TriremeError) else None
            start_ns = batch.marks_until(now_ns)[0]
            statistics.tap.note_request(job.received_ns, now_ns, why, start_ns, batch.instance_name)
        if isinstance(outcome, TriremeError):
            statistics.record_failure(job.received_ns, now_ns, outcome.reason, None if batch is None else batch.gpu)
            return
        assert batch is not None, "only what is executed succeeds"
        requests = [(job.received_ns, job.enqueued_ns, job.rows)]
        statistics.record_successes(requests, batch.marks_until(now_ns), now_ns, batch.gpu)
