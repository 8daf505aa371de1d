"""The scheduler actor: a shell around a scheduler core.

The core decides (`engine.scheduling`); this task asks it what to do whenever something happened or a deadline has come,
and does it: batches go to instances, refusals go to clients.

Jobs come in through a door instead of the mailbox: `submit` and `cancel` are synchronous, run in the caller's task and
cannot be interrupted, so a full queue is refused to the caller's face, and nobody ever waits for the scheduler to say
so. The door only touches the core, and leaves word in the mailbox. Who submits several jobs in one breath can have the
word withheld and call `attend` at the end of it: then the core is asked at once, in the caller's task, and the
scheduler's own task is woken only if it would sleep too long. On the other side `settle` takes a finished batch back
and lets the answers go, in order of arrival if the model preserves ordering.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import trio

from ..engine import request_lines
from ..engine.clock import Clock
from ..engine.config.rate_limiter import UNLIMITED, RateLimit
from ..engine.errors import TriremeError, UnavailableError
from ..engine.execution import ExecutionBatch
from ..engine.job import Job, Outcome
from ..engine.scheduling.core import Dispatch, InstanceId, Reject, SchedulerCore, WaitUntil
from ..engine.scheduling.ordering import AnswerOrder
from ..engine.scheduling.refusals import cancelled
from ..engine.statistics import ModelStatistics
from .mailbox import Mailbox
from .messages import (
    QUEUE_CHANGED,
    BatchSealed,
    InstanceGranted,
    InstanceIdle,
    InstanceMessage,
    SchedulerMessage,
)
from .rate_limiter import Permits, RateLimiter
from .scheduler_statistics import SchedulerStatistics

_MESSAGES_EACH = 3
"""Most messages that an instance leaves before they are read."""


@dataclass(frozen=True, slots=True)
class InstanceAddress:
    """Where to send an instance's batches: to its mailbox, unless `execute_now` takes one on the spot, or
    `begin_now` takes it to settle it later.

    Attributes:
        limit: what it needs in order to execute, where that is limited.
        device: that of those resources which each device has.
        gpu: where it executes, if it is of kind KIND_GPU.
        prompt: see `Scheduler`; only with `begin_now`.
    """

    name: str
    mailbox: Mailbox[InstanceMessage]
    execute_now: Callable[[ExecutionBatch], bool]
    limit: RateLimit = UNLIMITED
    device: int = 0
    gpu: int | None = None
    begin_now: Callable[[ExecutionBatch], bool] | None = None
    prompt: bool = False


class Scheduler:
    """One model version's scheduler.

    Args:
        name: the model's, for people.
        core: takes the decisions.
        ordering: releases answers in order; None lets them go as they come.
        decoupled: the model answers any number of times, each answer going out at once.
        limiter: whom instances ask before they execute; None for nobody.
        iterative: the model may have a request executed again instead of answering it.

    Attributes:
        prompt: what can be executed is better begun at once than together with what comes in the same breath: an
            instance works elsewhere meanwhile.
    """

    def __init__(
        self,
        name: str,
        core: SchedulerCore,
        clock: Clock,
        statistics: ModelStatistics,
        ordering: AnswerOrder | None = None,
        decoupled: bool = False,
        iterative: bool = False,
        limiter: RateLimiter | None = None,
    ) -> None:
        self.name = name
        self.mailbox: Mailbox[SchedulerMessage] = Mailbox(f"scheduler of {name}", _MESSAGES_EACH + 1)
        self.inflight = 0
        self.prompt = False
        self._core = core
        self._clock = clock
        self._statistics = statistics
        self._ordering = ordering
        self._decoupled = decoupled
        self._iterative = iterative
        self._permits = None if limiter is None else Permits(limiter)
        self._addresses: dict[InstanceId, InstanceAddress] = {}
        self._word_left = False
        self._watched = False
        self._finishes_sequences = False
        self._suspects: dict[Job, None] = {}
        self._wakes_s = -math.inf
        self._idle = trio.lowlevel.ParkingLot()
        self._token = trio.lowlevel.current_trio_token()

    @property
    def limited(self) -> bool:
        """Whether instances need leave to execute, which they get for one batch at a time."""
        return self._permits is not None

    # The door: synchronous, in the caller's task.

    def submit(self, job: Job, *, attended: bool = False) -> None:
        """Take a job in.

        Args:
            attended: `attend` will be called before anybody else gets a turn.

        Raises:
            TriremeError: refused (queue full, stopping).
        """
        clock = self._clock
        job.enqueued_ns = clock.now_ns()
        try:
            self._core.enqueue(job, clock.now_s())
        except UnavailableError:
            self._make_room()
            self._core.enqueue(job, clock.now_s())
        self.inflight += 1
        self._statistics.pending += 1
        if self._ordering is not None:
            self._ordering.admit(job)
        if not attended:
            self._leave_word()

    @property
    def full(self) -> bool:
        """Whether any job would be refused now, because the queue is full."""
        if not self._core.full:
            return False
        self._make_room()
        return self._core.full

    def answer(self, job: Job, response: Outcome) -> None:
        """Answer a job that nobody needs to execute, in its turn if the model preserves ordering."""
        self.inflight += 1
        if self._ordering is not None:
            self._ordering.admit(job)
        self._release(job, response, True)

    def _make_room(self) -> None:
        """Jobs that came in the same breath still stand in the queue, although an instance may be idle or about to be
        granted what it needs: let those go before anybody is told that there is no room."""
        self._hear(self.mailbox.drain())
        self._act()
        self._act(self._hear(self.mailbox.drain()))
        self._leave_word()  # in place of the words just heard: the task is to see how long it may wait now

    def attend(self) -> None:
        """Do at once what is to be done about jobs that were submitted as `attended`."""
        if self._word_left:
            return  # the task is on its way
        wait = self._act()
        if isinstance(wait, WaitUntil) and wait.when_s < self._wakes_s:
            self._leave_word()

    def idle(self, instance: InstanceId) -> None:
        """An instance that was given a batch by `begin_now` has settled it, and can take another: at once."""
        if self._permits is not None or instance not in self._addresses:
            self.mailbox.put_nowait(InstanceIdle(instance))
            return
        core = self._core
        core.instance_idle(instance)
        if core.queued or core.active or self._watched:  # else there is nothing to be done
            self.attend()

    def reconsider(self) -> None:
        """An instance that was idle all the time, having room for more, has settled a batch: the next request of a
        sequence may have waited for that."""
        if self._core.queued:
            self.attend()

    def has_room(self, instance: InstanceId) -> None:
        """An instance that is just being given a batch by `begin_now` can take another one beside it."""
        self._core.instance_idle(instance)

    def cancel(self, job: Job) -> None:
        """The job's client gave up."""
        job.cancelled = True
        if job.on_cancel is not None:
            job.on_cancel()
        if job in self._suspects:
            self._refuse_suspect(job, cancelled())
            return
        self._core.cancel(job)
        self._leave_word()

    def stop(self) -> None:
        """Refuse new jobs, drain the queue without waiting for delays."""
        self._core.stop()
        self._leave_word()

    def finish_sequences(self, wanted: bool) -> None:
        """Whether to count as drained only when all sequences are over that have begun."""
        self._finishes_sequences = wanted
        self._idle.unpark_all()

    def end_sequences(self) -> None:
        """Nobody can continue a sequence any more."""
        self._core.end_sequences()
        self._leave_word()

    def fail_queued(self, error: TriremeError) -> None:
        """Answer everything that is not being executed with `error`."""
        for job in self._core.drop_all():
            self._reject(job, error)
        for job in list(self._suspects):
            self._refuse_suspect(job, error)

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

    # Instances.

    def expect_instances(self, count: int) -> None:
        """So many instances may be attached at once from now on."""
        self.mailbox.bound = max(self.mailbox.bound, _MESSAGES_EACH * count + 1)

    def attach(self, instance: InstanceId, address: InstanceAddress) -> None:
        """A new instance may get batches, once it says that it is idle.

        Raises:
            InvalidArgumentError: there is not enough of what it needs in order to execute.
        """
        if self._permits is not None:
            granted = partial(self.mailbox.put_nowait, InstanceGranted(instance))
            self._permits.attach(instance, address.limit, address.device, granted)
        if address.gpu is not None:
            self._statistics.add_device(address.gpu)
        self._addresses[instance] = address
        self.prompt = self.prompt or address.prompt

    def detach(self, instance: InstanceId) -> None:
        """This instance takes no more batches."""
        self._addresses.pop(instance, None)
        if self._permits is not None:
            self._permits.detach(instance)
        self._core.instance_gone(instance)
        self._leave_word()

    def is_bound(self, instance: InstanceId) -> bool:
        """Whether an instance has sequences; from now on it gets no new ones."""
        return not self._core.release(instance)

    async def released(self, instance: InstanceId) -> None:
        """Give an instance nothing that would bind it for longer than its next batch, and wait until nothing does."""
        while not self._core.release(instance):
            await self._next_step()

    async def drained(self) -> None:
        """Wait until every accepted job has its final answer, and sequences are over that are to be finished."""
        while self.inflight or (self._finishes_sequences and self._core.active):
            await self._next_step()

    async def _next_step(self) -> None:
        self._watched = True
        await self._idle.park()

    def continues(self, correlation_id: int | str) -> bool:
        """Whether it has a sequence of this id that a request may continue."""
        return self._core.continues(correlation_id)

    # The task.

    async def run(self) -> None:
        """Dispatch until cancelled."""
        news = True
        while True:
            with trio.CancelScope() as limit:  # for many waits, until it expires: to make one is dearer than to wait
                while not limit.cancel_called:
                    wait = self._act(news)
                    wakes_s = wait.when_s if isinstance(wait, WaitUntil) else math.inf
                    if not news:
                        wakes_s = min(wakes_s, self._wakes_s)  # what instances that had their turn are waiting for
                    self._wakes_s = wakes_s
                    if limit.deadline != wakes_s:
                        limit.deadline = wakes_s
                    news = False
                    news = self._hear(await self.mailbox.get_all())
            news = news or limit.cancelled_caught

    def _hear(self, messages: list[SchedulerMessage]) -> bool:
        """Take in what has happened. False if there were only grants: those are answers, and nothing new."""
        news = False
        for message in messages:
            match message:
                case InstanceIdle(instance):
                    news = True
                    if instance in self._addresses:
                        if self._permits is None:
                            self._core.instance_idle(instance)
                        else:
                            self._core.instance_idle(instance)  # so that the core knows it,
                            self._core.instance_paused(instance)  # and gives it nothing before it is granted
                            self._permits.idle(instance, self._core)
                case InstanceGranted(instance):
                    if self._permits is not None and self._permits.grant(instance):
                        self._core.instance_idle(instance)
                case _:
                    news = True
                    self._word_left = False
        return news

    def _act(self, news: bool = True) -> object:
        """Do what the core says until it has nothing more to say; the last word is how long to wait.

        Args:
            news: something has happened since instances last asked the rate limiter. Who was granted in vain must not
                ask again before.
        """
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
        if self._watched:
            self._watched = False
            self._idle.unpark_all()
        return action

    def _dispatch(self, action: Dispatch) -> None:
        address = self._addresses[action.instance]
        if self._permits is not None:
            self._permits.use(action.instance)
        if self._ordering is not None:
            self._ordering.dispatched(action.instance, action.jobs)
        stream = self._stream if self._decoupled else None
        batch = ExecutionBatch(
            action.jobs, address.name, self._clock, action.reason, stream, self._iterative, address.gpu
        )
        if request_lines.logger.isEnabledFor(logging.DEBUG):
            request_lines.tell_executing(batch)
        for job in batch.jobs:
            if not job.is_null:
                self._statistics.pending -= 1
        if not self._decoupled and address.execute_now(batch):
            if self._core.queued or self._permits is not None:
                # Not idle at once, but by a message: between two batches everybody else has a turn.
                self.mailbox.put_nowait(InstanceIdle(action.instance))
            else:
                self._core.instance_idle(action.instance)
        elif address.begin_now is None or not address.begin_now(batch):
            address.mailbox.put_nowait(BatchSealed(batch))

    def _reject(self, job: Job, error: TriremeError) -> None:
        self._statistics.pending -= 1
        job.answered = True
        self._statistics.record_failure(job.received_ns, self._clock.now_ns(), error.reason)
        self._release(job, error, True)

    def _leave_word(self) -> None:
        if not self._word_left:
            self._word_left = True
            self.mailbox.put_nowait(QUEUE_CHANGED)

    # The way out.

    def settle(self, batch: ExecutionBatch, idle: InstanceId | None = None) -> None:
        """A batch is over: count it, and let its answers go.

        Args:
            idle: an instance that can take another one now. If one waits it is begun before the answers go, so that
                the instance works while they are sent.
        """
        clock = self._clock
        statistics = self._statistics
        marks = batch.marks
        self._core.settle(batch.jobs, clock.now_s(), batch.rescheduled)
        statistics.record_execution(batch.rows, marks, clock.wall_ms(), batch.sealed, batch.gpu)
        if batch.reported is not None:
            statistics.record_responses(batch.take_reported())
        succeeded = [
            (job.received_ns, job.enqueued_ns, job.rows)
            for job, outcome, final in batch.answers
            if final and not isinstance(outcome, TriremeError) and not job.is_null
        ]
        succeeded += [(job.received_ns, job.enqueued_ns, job.rows) for job in batch.rescheduled]
        if succeeded:
            statistics.record_successes(succeeded, marks, clock.now_ns(), batch.gpu)
        for job in batch.rescheduled:
            job.batch = None
            job.enqueued_ns = clock.now_ns()
            statistics.pending += 1
        try:
            if idle is not None and self._core.queued:
                self.idle(idle)
                idle = None
        finally:  # whatever becomes of the next batch
            for job, outcome, final in batch.answers:
                if job.is_null:
                    job.batch = None
                    continue
                if isinstance(outcome, TriremeError):
                    statistics.record_failure(job.received_ns, clock.now_ns(), outcome.reason, batch.gpu)
                self._release(job, outcome, final)
        if idle is not None:
            self.idle(idle)

    def _stream(self, job: Job, outcome: Outcome, final: bool) -> None:
        """An answer of a decoupled model, from any thread."""
        self._token.run_sync_soon(self._streamed, job, outcome, final)

    def _streamed(self, job: Job, outcome: Outcome, final: bool) -> None:
        if job.is_null:
            return  # nobody asked, so nothing is counted
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
            self.inflight -= 1
            if not self.inflight and self._idle:
                self._idle.unpark_all()

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(self._core.queued, self.inflight, len(self._addresses), self.mailbox.statistics())

    def __repr__(self) -> str:
        return f"<Scheduler of {self.name}: {self._core.queued} queued, {self.inflight} in flight>"
