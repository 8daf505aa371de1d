"""The scheduler actor: a shell around a scheduler core.

The core decides (`engine.scheduling`). The scheduler tells it what its messages say, asks it once a turn what to do,
and does that: batches go to instances, refusals to clients.

Rules:
 1. Before a job is refused because the queue is full, the jobs before it may go: they may have come in the same turn.
 2. Instances have credits: so many batches they may hold at once. One that has a credit left is idle for the core, and
    stands behind the others again after each batch that it gets.
 3. An instance that has executed a batch in place while more is queued is idle again from the next turn on, so that
    others have their turn in between, and the next batch is formed of what has come until then.
 4. Of a batch that is over, first the core is told, then it is asked for the next batches, and then the answers go out:
    an instance that works elsewhere works while they are sent. Answers keep the order of arrival if the model does.
 5. An instance that wants to leave gets nothing more, and is dismissed when it holds nothing any more.

Messages: see `messages`. What it tells others: `Execute` and `Dismissed` to instances, answers to replies.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from functools import partial

from ..engine.clock import Clock
from ..engine.errors import TriremeError, UnavailableError
from ..engine.execution import ExecutionBatch
from ..engine.job import Job, Outcome
from ..engine.logs import request_lines
from ..engine.metrics.statistics import ModelStatistics
from ..engine.scheduling.core import Dispatch, InstanceId, Reject, SchedulerCore, WaitUntil
from ..engine.scheduling.ordering import AnswerOrder
from ..engine.scheduling.refusals import cancelled
from .address import InstanceAddress
from .door import Door
from .messages import (
    Admit,
    Answer,
    Answered,
    Cancel,
    Dismissed,
    EndSequences,
    Execute,
    Executed,
    Gone,
    Granted,
    Leaving,
    SchedulerMessage,
)
from .rate_limiter import Permits, RateLimiter
from .scheduler_statistics import SchedulerStatistics
from .turn import Turn


class Scheduler(Door[SchedulerMessage]):
    """One model version's scheduler.

    Args:
        name: the model's, for people.
        core: takes the decisions.
        ordering: releases answers in order; None lets them go as they come.
        decoupled: the model answers any number of times, each answer going out at once.
        limiter: whom instances ask before they execute; None if they need not ask.
        iterative: the model may have a request executed again instead of answering it.
    """

    def __init__(
        self,
        name: str,
        core: SchedulerCore,
        clock: Clock,
        turn: Turn,
        statistics: ModelStatistics,
        ordering: AnswerOrder | None = None,
        decoupled: bool = False,
        iterative: bool = False,
        limiter: RateLimiter | None = None,
    ) -> None:
        super().__init__(name, "scheduler", turn)
        self._inflight = 0
        self._core = core
        self._clock = clock
        self._statistics = statistics
        self._ordering = ordering
        self._stream = self._answer_from_thread if decoupled else None
        self._iterative = iterative
        self._permits = None if limiter is None else Permits(limiter)
        self._addresses: dict[InstanceId, InstanceAddress] = {}
        self._resting: list[InstanceId] = []
        self._resting_in = 0
        self._over: list[ExecutionBatch] = []
        self._finishes_sequences = False
        self._suspects: dict[Job, None] = {}
        self._news = True
        self._granted = False

    @property
    def inflight(self) -> int:
        return self._inflight

    @property
    def limited(self) -> bool:
        """Whether instances need leave to execute, which they get for one batch at a time."""
        return self._permits is not None

    @property
    def full(self) -> bool:
        return self._core.full

    # What comes in.

    def receive(self, message: SchedulerMessage) -> None:
        if isinstance(message, Admit):
            try:
                self.admit(message.job)
            except TriremeError as error:
                self.refuse(message.job, error)
        elif isinstance(message, Executed):
            self._executed(message)
        elif isinstance(message, Answered):
            self._answered(message.job, message.outcome, message.final)
        elif isinstance(message, Granted):
            self._granted = True
            if self._permits is not None and self._permits.grant(message.instance):
                self._core.instance_idle(message.instance)
            return
        elif isinstance(message, Cancel):
            self.cancel(message.job)
        elif isinstance(message, Answer):
            self._answer(message)
        elif isinstance(message, Leaving):
            self._leave(message.instance)
        elif isinstance(message, Gone):
            self._gone(message)
        elif isinstance(message, EndSequences):
            self._core.end_sequences()
        else:
            self.stop()
        self._news = True

    def admit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            TriremeError: refused (queue full, stopping).
        """
        clock = self._clock
        job.enqueued_ns = job.enqueued_ns or clock.now_ns()
        try:
            self._core.enqueue(job, clock.now_s())
        except UnavailableError:
            self._make_room()
            self._core.enqueue(job, clock.now_s())
        self._inflight += 1
        self._statistics.pending += 1
        if self._ordering is not None:
            self._ordering.admit(job)
        job.accept()

    def _make_room(self) -> None:
        """Rule 1. What is granted meanwhile counts."""
        self.act()
        for message in self.mailbox.receive_all():
            self.receive(message)
        self.act()

    def cancel(self, job: Job) -> None:
        """The job's client gave up."""
        if job.answered:
            return
        job.cancelled = True
        if job.on_cancel is not None:
            job.on_cancel()
        if job in self._suspects:
            self._refuse_suspect(job, cancelled())
            return
        self._core.cancel(job)

    def stop(self) -> None:
        """Refuse new jobs, drain the queue without waiting for delays."""
        self._core.stop()

    def _answer(self, message: Answer) -> None:
        job = message.job
        self._inflight += 1
        if self._ordering is not None:
            self._ordering.admit(job)
        job.accept()
        self._release(job, message.response, True)

    def _executed(self, message: Executed) -> None:
        self._settle(message.batch)
        address = self._addresses.get(message.instance)
        if address is None:
            return
        address.held -= 1
        if address.leaving:
            self._dismiss_if_done(message.instance, address)
        elif address.held + 1 < address.credits:
            pass  # it is idle
        elif message.in_place:
            self._rest(message.instance)
        else:
            self._idle(message.instance)

    def _gone(self, message: Gone) -> None:
        for batch in message.batches:
            self._settle(batch)
        self.detach(message.instance)

    def _settle(self, batch: ExecutionBatch) -> None:
        """A batch is over: count it. Its answers go out when the next ones have been dispatched (rule 4)."""
        if batch in self._over:
            return  # this scheduler has died when it was told so before
        clock = self._clock
        statistics = self._statistics
        marks = batch.marks
        if not self.failed:
            self._core.settle(batch.jobs, clock.now_s(), batch.rescheduled)
        statistics.record_execution(batch.rows, marks, clock.wall_ms(), batch.sealed, batch.gpu)
        if batch.reported is not None:
            statistics.record_responses(batch.take_reported())
        succeeded = [
            (job.received_ns, job.enqueued_ns, job.rows)
            for job, outcome, final in batch.answers
            if final and not isinstance(outcome, TriremeError) and not job.is_null
        ]
        if batch.rescheduled:
            succeeded += [(job.received_ns, job.enqueued_ns, job.rows) for job in batch.rescheduled]
        if succeeded:
            statistics.record_successes(succeeded, marks, clock.now_ns(), batch.gpu)
        for job in batch.rescheduled:
            job.batch = None
            job.enqueued_ns = clock.now_ns()
            statistics.pending += 1
        self._over.append(batch)

    # What goes out.

    def act(self) -> None:
        """Do what the core says until it has nothing more to say but how long to wait."""
        if self._resting and self._resting_in != self._turn.number:
            self._end_rest()
        # Instances ask the rate limiter if something is new, and not because others were granted what they had asked
        # for: who was granted in vain must not ask again at once.
        news = self._news or not self._granted
        self._news = self._granted = False
        now = self._clock.now_s()
        next_action = self._core.next_action
        while True:
            action = next_action(now)
            if isinstance(action, Dispatch):
                self._dispatch(action)
            elif isinstance(action, Reject):
                self._reject(action.job, action.error)
            else:
                break
        if self._permits is not None:
            self._permits.ask(self._core, news)
            self._permits.give_back(self._core)
        wakes_s = action.when_s if isinstance(action, WaitUntil) else math.inf
        self.deadline_s = wakes_s if news else min(wakes_s, self.deadline_s)  # that of those who were granted in vain
        if self._over:
            self._send_answers()
        if self._resting:
            if self._permits is not None or self._core.queued:
                self._turn.defer(self)
            else:
                self._end_rest()
        if self._watched:
            self._notify_watchers()

    def _dispatch(self, action: Dispatch) -> None:
        instance = action.instance
        address = self._addresses[instance]
        if self._permits is not None:
            self._permits.use(instance)
        if self._ordering is not None:
            self._ordering.dispatched(instance, action.jobs)
        batch = ExecutionBatch(
            action.jobs, address.name, self._clock, action.reason, self._stream, self._iterative, address.gpu
        )
        if request_lines.logger.isEnabledFor(logging.DEBUG):
            request_lines.tell_executing(batch)
        for job in batch.jobs:
            if not job.is_null:
                self._statistics.pending -= 1
        address.held += 1
        if address.held < address.credits:
            self._core.instance_idle(instance)
        address.mailbox.send_nowait(Execute(batch))

    def _reject(self, job: Job, error: TriremeError) -> None:
        self._statistics.pending -= 1
        job.answered = True
        self._statistics.record_failure(job.received_ns, self._clock.now_ns(), error.reason)
        self._release(job, error, True)

    def _send_answers(self) -> None:
        """Let the answers go of batches that are over."""
        for batch in self._over:
            for job, outcome, final in batch.answers:
                if job.is_null:
                    job.batch = None
                    continue
                if isinstance(outcome, TriremeError):
                    self._statistics.record_failure(job.received_ns, self._clock.now_ns(), outcome.reason, batch.gpu)
                if self._ordering is None:
                    self._let_go(job, outcome, final)
                else:
                    self._release(job, outcome, final)
            if request_lines.logger.isEnabledFor(logging.DEBUG):
                request_lines.tell_executed(batch)
        self._over.clear()

    def _answer_from_thread(self, job: Job, outcome: Outcome, final: bool) -> None:
        """An answer of a decoupled model, from any thread."""
        self._turn.call_from_thread(self.mailbox.send_nowait, Answered(job, outcome, final))

    def _answered(self, job: Job, outcome: Outcome, final: bool) -> None:
        if job.is_null:
            return  # no client asked, so nothing is counted
        now_ns = self._clock.now_ns()
        if not job.responded and outcome is not None:
            job.responded = True
            self._statistics.record_first_response(job.received_ns, now_ns)
        batch = job.batch
        if batch is not None:
            batch.heard = True
            if batch.reported is not None:
                self._statistics.record_responses(batch.take_reported())
        if not final:
            pass  # an error that is not the end of the request is one of its responses
        elif isinstance(outcome, TriremeError):
            gpu = None if batch is None else batch.gpu
            self._statistics.record_failure(job.received_ns, now_ns, outcome.reason, gpu)
        else:
            assert batch is not None
            requests = [(job.received_ns, job.enqueued_ns, job.rows)]
            self._statistics.record_successes(requests, batch.marks_until(now_ns), now_ns, batch.gpu)
        self._release(job, outcome, final)

    def _release(self, job: Job, outcome: Outcome, final: bool) -> None:
        if self._ordering is None:
            self._let_go(job, outcome, final)
            return
        for released in self._ordering.settle(job, outcome, final):
            self._let_go(*released)

    def _let_go(self, job: Job, outcome: Outcome, final: bool) -> None:
        if job.reply.deliver(outcome, final):
            job.batch = None  # the batch holds the job: a cycle left here would be work for the garbage collector
            self._inflight -= 1
            if self._watched and not self._inflight:
                self._notify_watchers()

    # Instances.

    def attach(self, instance: InstanceId, address: InstanceAddress) -> None:
        """A new instance may get batches.

        Raises:
            InvalidArgumentError: there is not enough of what it needs in order to execute.
        """
        if self._permits is not None:
            granted = partial(self.mailbox.send_nowait, Granted(instance))
            self._permits.attach(instance, address.limit, address.device, granted)
        if address.gpu is not None:
            self._statistics.add_device(address.gpu)
        self._addresses[instance] = address
        self._idle(instance)
        self._news = True
        self._turn.post(self)

    def detach(self, instance: InstanceId) -> None:
        """An instance is gone."""
        self._addresses.pop(instance, None)
        if self._permits is not None:
            self._permits.detach(instance)
        if instance in self._resting:
            self._resting.remove(instance)
        if not self.failed:
            self._core.instance_gone(instance)

    def _idle(self, instance: InstanceId) -> None:
        """An instance can take a batch; where it needs leave to execute, once that is granted."""
        self._core.instance_idle(instance)
        if self._permits is not None:
            self._core.instance_paused(instance)
            self._permits.idle(instance, self._core)

    def _rest(self, instance: InstanceId) -> None:
        """Rule 3."""
        if self._resting and self._resting_in != self._turn.number:
            self._end_rest()
        self._resting.append(instance)
        self._resting_in = self._turn.number

    def _end_rest(self) -> None:
        resting, self._resting = self._resting, []
        for instance in resting:
            self._idle(instance)

    def _leave(self, instance: InstanceId) -> None:
        """Rule 5."""
        address = self._addresses.get(instance)
        if address is not None:
            address.leaving = True
            if instance in self._resting:
                self._resting.remove(instance)
            if not self.failed:
                self._core.instance_paused(instance)
            self._dismiss_if_done(instance, address)

    def _dismiss_if_done(self, instance: InstanceId, address: InstanceAddress) -> None:
        if not address.held:
            self.detach(instance)
            address.mailbox.send_nowait(Dismissed())

    def is_bound(self, instance: InstanceId) -> bool:
        """Whether an instance has sequences; from now on it gets no new ones."""
        return not self._core.release(instance)

    async def released(self, instance: InstanceId) -> None:
        """Give an instance nothing that would bind it for longer than its next batch, and wait until nothing does."""
        while not self._core.release(instance):
            await self.next_step()

    # Requests that may have killed an instance.

    def suspect(self, job: Job) -> None:
        """A request that was executed with others when the instance died waits to be executed once more, alone."""
        job.batch = None
        self._statistics.pending += 1
        self._suspects[job] = None
        if job.cancelled:
            self._refuse_suspect(job, cancelled())

    def recall(self, job: Job, instance_name: str, gpu: int | None) -> ExecutionBatch | None:
        """A batch of such a request alone, for an instance to execute now; None if it has been answered meanwhile."""
        if job not in self._suspects:
            return None
        del self._suspects[job]
        self._statistics.pending -= 1
        return ExecutionBatch((job,), instance_name, self._clock, gpu=gpu)

    def refuse_suspects(self, jobs: Iterable[Job], error: TriremeError) -> None:
        """Answer those of these requests that still wait."""
        for job in jobs:
            if job in self._suspects:
                self._refuse_suspect(job, error)

    def _refuse_suspect(self, job: Job, error: TriremeError) -> None:
        del self._suspects[job]
        self._reject(job, error)

    # For its supervisor.

    def fail_held(self, error: TriremeError) -> None:
        """Answer everything with `error` that is not being executed."""
        self._send_answers()
        for job in self._core.drop_all():
            self._reject(job, error)
        self.refuse_suspects(list(self._suspects), error)

    def receive_last(self, message: SchedulerMessage) -> None:
        """Its core is told nothing any more if it may be what it died of."""
        if isinstance(message, Executed):
            self._settle(message.batch)
            address = self._addresses.get(message.instance)
            if address is not None:
                address.held -= 1
                if address.leaving:
                    self._dismiss_if_done(message.instance, address)
        elif isinstance(message, Answered | Leaving | Gone):
            self.receive(message)

    def finish_sequences(self, wanted: bool) -> None:
        """Whether to count as drained only when all sequences are over that have begun."""
        self._finishes_sequences = wanted
        self._notify_watchers()

    async def drained(self) -> None:
        """Wait until every accepted job has its final answer, and sequences are over that are to be finished."""
        while self.mailbox or self._inflight or (self._finishes_sequences and self._core.active):
            await self.next_step()

    def continues(self, correlation_id: int | str) -> bool:
        """Whether it has a sequence of this id that a request may continue."""
        return self._core.continues(correlation_id)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(self._core.queued, self._inflight, len(self._addresses), self.mailbox.statistics())

    def __repr__(self) -> str:
        return f"<Scheduler of {self.name}: {self._core.queued} queued, {self._inflight} in flight>"
