"""The scheduler actor: a shell around a `Dispatcher`, which decides (`engine.scheduling`).

It tells the dispatcher what its messages say, asks it once a turn what to do, and does that: batches go to instances,
answers and refusals to clients.

Rules:
 1. Before a job is refused because the queue is full, the jobs before it may go: they may have come in the same turn.
    When one has been refused all the same, what comes next is turned away before it becomes a job, until anything else
    is heard, or a deadline has come: under overload, refusals are to be cheap.
 2. An instance that has executed a batch in place while more is queued rests until the next turn, so that others have
    their turn in between, and the next batch is formed of what has come until then.
 3. Of a batch that is over, first the core is told, then it is asked for the next batches, and then the answers go out:
    an instance that works elsewhere works while they are sent. Answers keep the order of arrival if the model does.

Messages: see `messages`. What it tells others: `Attached`, `TurnedAway`, `Execute`, `Bound` and `Dismissed` to
instances, answers to replies.
"""

from __future__ import annotations

import math
from typing import cast

from ..engine.clock import Clock
from ..engine.config.model import ModelConfig
from ..engine.config.objective import PARAMETER
from ..engine.errors import RefusalReason, TriremeError, UnavailableError
from ..engine.job import ExecutionBatch, Job, Outcome
from ..engine.logs.request_lines import RequestLines, tell_executed, tell_executing
from ..engine.metrics.refusals import count_refusal
from ..engine.metrics.statistics import ModelStatistics
from ..engine.request import InferenceRequest
from ..engine.scheduling.adaptive import AdaptiveBatcher
from ..engine.scheduling.core import WAIT, Dispatch, InstanceId, Reject, SchedulerCore, WaitUntil
from ..engine.scheduling.dispatcher import Accounts, Dispatcher
from ..engine.scheduling.ordering import answer_order
from ..engine.scheduling.permits import Permits
from ..engine.scheduling.refusals import queue_full
from ..engine.scheduling.sequence.batcher import SequenceBatcher
from ..engine.scheduling.sequence.slot_core import SlotReport
from .actor import Turn
from .door import Door
from .messages import (
    Attach,
    Attached,
    Bound,
    CacheHit,
    Cancel,
    Dismissed,
    Execute,
    Executed,
    FailHeld,
    Gone,
    Granted,
    Leaving,
    Registered,
    Responded,
    SchedulerMessage,
    SeatLost,
    Stop,
    TurnedAway,
)
from .rate_limiter import Asking, RateLimiter


class Scheduler(Door[SchedulerMessage]):
    """One model version's scheduler.

    Args:
        name: the model's, for people.
        config: the model's, complete. If it is decoupled, each of its answers goes out at once.
        core: forms batches; a `SequenceBatcher` if the model is stateful.
        limiter: whom instances ask before they execute; None if they need not ask.
        iterative: the model may have a request executed again instead of answering it.

    Attributes:
        instances: that may get batches.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        core: SchedulerCore,
        clock: Clock,
        turn: Turn,
        statistics: ModelStatistics,
        lines: RequestLines,
        iterative: bool = False,
        limiter: RateLimiter | None = None,
    ) -> None:
        super().__init__(name, "scheduler", turn, statistics)
        self._clock = clock
        self._lines = lines
        self._accounts = Accounts(statistics, clock)
        self._asking = None if limiter is None else Asking(limiter, self.mailbox, turn)
        permits = None if self._asking is None else Permits(self._asking.tell)
        self._core = core
        self._order = answer_order(config)
        self._stateful = config.has_sequence_batching
        adaptive = PARAMETER in config.parameters
        if adaptive:
            statistics.learnt = cast(AdaptiveBatcher, core)
        self._may_turn_away = not (self._stateful or adaptive)  # which learns from all that comes
        self._dispatcher = Dispatcher(core, self._stateful, self._order, permits, adaptive)
        self._stream = self._answer_from_thread if config.decoupled else None
        self._iterative = iterative
        self.instances: dict[InstanceId, Attach] = {}
        self._registering: dict[InstanceId, None] = {}  # with the rate limiter
        self._over: list[ExecutionBatch] = []
        self._uncounted: list[tuple[ExecutionBatch, int]] = []  # with the times when they were over, in ns
        self._finishes_sequences = False
        self._news = True
        self._granted = False
        self._turn_s = 0.0  # when its turn began; 0 if the clock was not read yet

    @property
    def full(self) -> bool:
        return self._core.full

    # What comes in.

    def receive(self, message: SchedulerMessage) -> None:
        if isinstance(message, Job):
            try:
                self.admit(message)
            except TriremeError as error:
                self.refuse(message, error)
            self._news = True
            return
        self.turns_away = False
        if isinstance(message, Executed):
            self._executed(message)
        elif isinstance(message, Responded):
            self._answered(message)
        elif isinstance(message, Granted):
            self._granted = True
            self._dispatcher.granted(message.instance)
            return
        elif isinstance(message, Cancel):
            self.cancel(message.job)
        elif isinstance(message, CacheHit):
            self._answer(message)
        elif isinstance(message, SlotReport):
            cast(SequenceBatcher, self._core).hear(message, self._clock.now_s())
        elif isinstance(message, FailHeld):
            self.fail_held(message.error)
        elif isinstance(message, Stop):
            self._finishes_sequences = message.finishes_sequences
            if message.ends_sequences and self._dispatcher.sequences is not None:
                self._dispatcher.sequences.end_sequences()
            self.stop()
        else:
            self._instance_changed(message)
        self._news = True

    def admit(self, job: Job) -> None:
        clock = self._clock
        job.enqueued_ns = job.enqueued_ns or clock.now_ns()
        try:
            self._core.enqueue(job, self._turn_s or self._read_clock())
        except UnavailableError as error:
            if not self._make_room():
                self.turns_away = self._may_turn_away and self._core.full and error.refusal is RefusalReason.QUEUE_FULL
                raise
            self._core.enqueue(job, self._turn_s or self._read_clock())
        self._statistics.pending += 1
        self._inflight += 1
        if self._order is not None:
            self._order.admit(job)
        job.accepted = True
        if job.on_accepted is not None:
            job.accept()

    def turn_away(self, request: InferenceRequest) -> TriremeError | None:
        if self.mailbox.messages or self._clock.now_s() >= self._deadline_s:
            return None
        error = queue_full(request.id)
        count_refusal(self._statistics.refused, error)
        if self._statistics.tap.watched:
            now_ns = self._clock.now_ns()
            self._statistics.tap.note_request(now_ns, now_ns, error)
        return error

    def _read_clock(self) -> float:
        """What comes in one turn comes at one time."""
        self._turn_s = self._clock.now_s()
        return self._turn_s

    def _make_room(self) -> bool:
        """Rule 1. What is granted meanwhile counts. Gives back whether anything may have changed: under overload
        nothing has, and refusals are to be cheap."""
        queued, heard = self._core.queued, False
        self.act()
        if self._asking is not None:
            self._asking.hurry()
        # Grants may also lie behind the jobs that came in the same turn.
        for message in [each for each in self._mail if isinstance(each, Granted)]:
            self._mail.remove(message)
            self.receive(message)
            heard = True
        for message in self.mailbox.receive_all():
            self.receive(message)
            heard = True
        if heard:
            self.act()
        return heard or self._core.queued != queued or self._dispatcher.sequences is not None

    def cancel(self, job: Job) -> None:
        """The job's client gave up."""
        if job.answered:
            return
        job.cancelled = True
        if job.on_cancel is not None:
            job.on_cancel()
        self._dispatcher.cancel(job)

    def stop(self) -> None:
        """Refuse new jobs, drain the queue without waiting for delays."""
        self._core.stop()

    def _answer(self, message: CacheHit) -> None:
        job = message.job
        self._inflight += 1
        if self._order is not None:
            self._order.admit(job)
        job.accept()
        self._release(job, message.response, True)

    def _answered(self, message: Responded) -> None:
        job = message.job
        if not job.is_null:  # no client asked for a null job, so nothing is counted
            self._accounts.answered(job, message.outcome, message.final)
            self._release(job, message.outcome, message.final)

    def _executed(self, message: Executed) -> None:
        """A batch is over. Its answers go out when the next ones have been dispatched (rule 3), and it is counted when
        they have; unless requests of it are executed again, whose marks it has until then."""
        batch, now = message.batch, self._turn_s or self._read_clock()
        self._dispatcher.over(message.instance, batch.jobs, now, batch.rescheduled, message.in_place)
        over_ns = self._accounts.over(batch)
        if batch.rescheduled or self._stream is not None:
            self._accounts.count(batch, over_ns)
        else:
            if not self._uncounted:
                self._turn.afterwards(self, self._count)
            self._uncounted.append((batch, over_ns))
        self._over.append(batch)

    def _count(self) -> None:
        try:
            for batch, over_ns in self._uncounted:
                self._accounts.count(batch, over_ns)
        finally:
            self._uncounted.clear()

    # What goes out.

    def act(self) -> None:
        """Do what there is to do until there is nothing more but to wait."""
        dispatcher = self._dispatcher
        next_action = dispatcher.next_action
        now, wakes_s = self._turn_s or self._clock.now_s(), math.inf
        self._turn_s = 0.0
        while (action := next_action(now)) is not WAIT:
            if isinstance(action, Dispatch):
                self.turns_away = False
                self._dispatch(action)
            elif isinstance(action, Reject):
                self.turns_away = False
                self._reject(action.job, action.error)
            elif isinstance(action, WaitUntil):
                wakes_s = action.when_s
                break
            else:  # `Await`
                self._news = True
                if dispatcher.resting:
                    self._turn.defer(self)
                return
        if self._asking is not None:
            wakes_s = self._ask_for_permits(wakes_s)
        if wakes_s != self._deadline_s:
            self.deadline_s = wakes_s
        if self._over:
            self._send_answers()
        if dispatcher.resting:
            self._turn.defer(self)
        if dispatcher.dismissed:
            self._dismiss()
        if self._watched:
            self._notify_watchers()

    def resume(self) -> None:
        """Rule 2."""
        if self.alive:
            self._dispatcher.end_rest()

    def _ask_for_permits(self, wakes_s: float) -> float:
        """Have instances ask the rate limiter if something is new, and not because others were granted what they had
        asked for: who was granted in vain must not ask again at once. Gives back when to act again."""
        news = self._news or not self._granted
        self._news = self._granted = False
        self._dispatcher.ask_for_permits(news)
        return wakes_s if news else min(wakes_s, self._deadline_s)

    def _dispatch(self, action: Dispatch) -> None:
        instance = self.instances[action.instance]
        jobs, stream, iterative = action.jobs, self._stream, self._iterative
        batch = ExecutionBatch(jobs, instance.name, self._clock, action.reason, stream, iterative, instance.gpu)
        if self._lines.wanted:
            tell_executing(batch)
        nulls = sum(job.is_null for job in jobs) if self._stateful else 0
        self._statistics.pending -= len(jobs) - nulls
        instance.mailbox.send_nowait(Execute(batch, action.isolated))

    def _reject(self, job: Job, error: TriremeError) -> None:
        job.answered = True
        if error.refusal is not None:
            count_refusal(self._statistics.refused, error)
        self._accounts.rejected(job, error)
        self._release(job, error, True)

    def _send_answers(self) -> None:
        """Let the answers go of batches that are over."""
        release = self._deliver if self._order is None else self._release
        for batch in self._over:
            for job, outcome, final in batch.answers:
                if job.is_null:
                    job.batch = None
                    continue
                if isinstance(outcome, TriremeError):
                    self._accounts.failed(job, outcome, batch)
                release(job, outcome, final)
            if self._lines.wanted:
                tell_executed(batch)
        self._over.clear()

    def _answer_from_thread(self, job: Job, outcome: Outcome, final: bool) -> None:
        """An answer of a decoupled model, from any thread."""
        self._turn.call_from_thread(self.mailbox.send_nowait, Responded(job, outcome, final))

    def _release(self, job: Job, outcome: Outcome, final: bool) -> None:
        if self._order is None:
            self._deliver(job, outcome, final)
        else:
            for answer in self._order.settle(job, outcome, final):
                self._deliver(*answer)

    def _deliver(self, job: Job, outcome: Outcome, final: bool) -> None:
        if job.reply.deliver(outcome, final):
            job.batch = None  # the batch holds the job: a cycle left here would be work for the garbage collector
            self._inflight -= 1
            if self._watched and not self._inflight:
                self._notify_watchers()

    # Instances.

    def _instance_changed(self, message: Attach | Registered | Leaving | Gone | SeatLost) -> None:
        if isinstance(message, Attach):
            if self._asking is None:
                self.attach(message)
            else:
                self._registering[message.instance] = None
                self._asking.register(message)
        elif isinstance(message, Registered):
            self._registered(message)
        elif isinstance(message, Leaving):
            if not self._dispatcher.leave(message.instance, message.sequences_first):
                self.instances[message.instance].mailbox.send_nowait(Bound())
        elif isinstance(message, Gone):
            self._gone(message)
        else:
            self._dispatcher.give_up(message.seat, message.error, message.heirs)

    def attach(self, message: Attach) -> None:
        """A new instance may get batches."""
        instance = message.instance
        most = message.credits if self._asking is None else 1  # leave is for one batch
        if message.gpu is not None:
            self._statistics.add_device(message.gpu)
        self.instances[instance] = message
        message.mailbox.send_nowait(Attached())
        self._dispatcher.attach(instance, most, overlaps=message.overlaps, seat=message.seat)

    def _registered(self, message: Registered) -> None:
        if message.error is not None:
            message.attach.mailbox.send_nowait(TurnedAway(message.error))
        elif message.attach.instance in self._registering:  # else it has died meanwhile
            self.attach(message.attach)
        self._registering.pop(message.attach.instance, None)

    def detach(self, instance: InstanceId) -> None:
        """An instance is gone."""
        self.instances.pop(instance, None)
        self._registering.pop(instance, None)
        if self._asking is not None:
            self._asking.unregister(instance)
        self._dispatcher.detach(instance)

    def _gone(self, message: Gone) -> None:
        for batch in message.batches:
            if batch not in self._over:  # else this scheduler has died when it was told so before
                self._dispatcher.settle(batch.jobs, self._clock.now_s(), batch.rescheduled)
                self._accounts.count(batch, self._accounts.over(batch))
                self._over.append(batch)
        self.detach(message.instance)
        for job in message.isolated:
            job.batch = None
            self._statistics.pending += 1
        self._dispatcher.isolate(message.isolated, message.seat)

    def _dismiss(self) -> None:
        dismissed, self._dispatcher.dismissed = self._dispatcher.dismissed, []
        for instance in dismissed:
            mailbox = self.instances[instance].mailbox
            self.detach(instance)
            mailbox.send_nowait(Dismissed())

    # For its supervisor.

    def fail_held(self, error: TriremeError) -> None:
        """Answer everything with `error` that is not being executed."""
        self._send_answers()
        for job in self._dispatcher.drop_all():
            self._reject(job, error)

    def bury(self, error: TriremeError) -> None:
        self._dispatcher.core_failed = self.failure is not None
        super().bury(error)

    def receive_last(self, message: SchedulerMessage) -> None:
        """Batches come to their end, and instances leave; nothing is dispatched any more."""
        if isinstance(message, Executed | Responded | Leaving | Gone):
            self._turn_s = 0.0
            self.receive(message)
            self._dismiss()

    async def drained(self) -> None:
        """Wait until every accepted job has its final answer, and sequences are over that are to be finished."""
        sequences = self._dispatcher.sequences
        while self.mailbox or self._inflight or (self._finishes_sequences and sequences and sequences.active):
            await self.next_step()

    def continues(self, correlation_id: int | str) -> bool:
        """Whether it has a sequence of this id that a request may continue."""
        sequences = self._dispatcher.sequences
        return sequences is not None and sequences.continues(correlation_id)

    @property
    def live_sequences(self) -> int:
        """How many requests may continue."""
        sequences = self._dispatcher.sequences
        return 0 if sequences is None else sequences.active

    def __repr__(self) -> str:
        return f"<Scheduler of {self.name}: {self._core.queued} queued, {self._inflight} in flight>"
