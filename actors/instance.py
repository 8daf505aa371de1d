"""The instance actor: one executable copy of a model, and the executor it lives on.

It makes its copy, has itself attached to its scheduler, begins the batches that it is sent, and says when each is over.

Rules:
 1. It holds at most as many batches as it has credits; its scheduler keeps count (`Dispatcher`).
 2. Where and when a batch is executed is for the executor to say. It may be over when `Executor.begin` returns.
 3. The oldest batch that it holds is watched, or the step that they are all in (`engine.instances.executing`): past the
    limit the instance dies of it.
 4. Told to close, it asks its scheduler to be dismissed, and ends when it is. It may be bound by its sequences first.
 5. A passive one is made and warmed up like any other, and never attached: it gets no batch.
 6. A dead instance is never revived: its supervisor buries it (`bury` answers what it held) and starts another.

States:

    STARTING ─ Attached ▶ SERVING
    STARTING ─ TurnedAway ▶ DEAD
    SERVING ─ close ▶ (goes on) ─ Dismissed ▶ STOPPED
    any ─ something other than the backend's own handling of a batch goes wrong, or rule 3 ▶ DEAD

Rules of the models' own readiness checks (docs/reference/python-backend.md#readiness):
 7. An instance is asked once at a time. Who asks meanwhile waits for the same answer.
 8. No caller waits longer than `LIMIT_S`; after that the instance counts as not ready. The question stays open, and who
    asks later waits for its answer.
 9. An instance that dies has answered: it is not ready.
 10. Why an instance is not ready is logged, when that changes.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from ..engine.backends.interface import InstanceSpec, ModelInstance, ProcessInstance, StreamInstance
from ..engine.errors import FailureReason, InternalError, TriremeError
from ..engine.instances.executing import ExecutionLimit, Verdict
from ..engine.instances.orders import InstanceOrder
from ..engine.job import ExecutionBatch, Job
from ..engine.repository.loading import LoadedInstances
from ..engine.scheduling.core import InstanceId
from .actor import Actor
from .loading import ServerContext, warm_up
from .messages import (
    Attach,
    Attached,
    Bound,
    Dismissed,
    Execute,
    Executed,
    Gone,
    InstanceMessage,
    Leaving,
    TurnedAway,
)
from .offload import first_error
from .scheduler import Scheduler
from .step_executor import StepExecutor

logger = logging.getLogger("trireme.model")

_OTHER_MESSAGES = 4
"""In the mailbox beside a batch for each credit: `Attached`, `Dismissed`, and `Bound`, twice."""

LIMIT_S = 5.0
"""Rule 8."""

_KILLED_TWICE = (
    " The request was executed again, alone, after an instance had died with the batch that it was in. This instance "
    "died of it, too; the request is not executed again."
)


class InstanceState(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPED = "stopped"
    DEAD = "dead"


class InstanceHungError(Exception):
    """A batch took longer than the execution limit."""


class ReadinessCheck:
    """One instance's own check.

    Args:
        name: of the instance, for people.
        instance: one that `checks_itself`.
        limit_s: rule 8.
    """

    def __init__(self, name: str, instance: ModelInstance, limit_s: float = LIMIT_S) -> None:
        self._name = name
        self._instance = instance
        self._limit_s = limit_s
        self._question: _Question | None = None
        self._last = ""
        instance.on_ready = self._answered

    async def ask(self) -> TriremeError | None:
        """Why the instance is not ready; None if it is."""
        question = self._question
        if question is None:
            question = self._question = _Question()
            self._instance.ask_ready()
        with trio.move_on_after(self._limit_s) as limit:
            await question.answered.wait()
        error = question.error
        if limit.cancelled_caught:
            error = InternalError("Timed out waiting for user-defined is_ready() response")
        self._log(error)
        return error

    def _answered(self, error: TriremeError | None) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.error = error
            question.answered.set()

    def _log(self, error: TriremeError | None) -> None:
        """Rule 10."""
        text = "" if error is None else error.message
        if text == self._last:
            return
        self._last = text
        if text:
            logger.warning("instance '%s' is not ready: %s", self._name, text)
        else:
            logger.info("instance '%s' is ready again", self._name)


@dataclass(slots=True, eq=False)
class _Question:
    """An open question, and its answer."""

    answered: trio.Event = field(default_factory=trio.Event)
    error: TriremeError | None = None


async def all_pass(checks: Iterable[ReadinessCheck]) -> bool:
    """Ask all of them side by side."""
    passed: list[bool] = []

    async def ask(check: ReadinessCheck) -> None:
        passed.append(await check.ask() is None)

    async with trio.open_nursery() as nursery:
        for check in checks:
            nursery.start_soon(ask, check)
    return all(passed)


class Instance(Actor[InstanceMessage]):
    """One instance.

    Args:
        identity: unique among the scheduler's instances, over restarts too.
        seat: its place, which is that of the instances before it, too.
        loaded: the model of which it is a copy.

    Attributes:
        close_answered: told to close, it is bound, or is closing.
        bound: it has sequences, and closes when they are over.
        own_check: the model's own, once the instance has started; None if it has none.
        stuck: it has executed one batch for longer than it should.
    """

    def __init__(
        self,
        identity: InstanceId,
        seat: int,
        order: InstanceOrder,
        loaded: LoadedInstances,
        version: int,
        scheduler: Scheduler,
        context: ServerContext,
    ) -> None:
        name = order.spec.name
        super().__init__(f"instance {name}", context.turn, 1 + _OTHER_MESSAGES)
        self.identity = identity
        self.seat = seat
        self.spec = order.spec
        self.state = InstanceState.STARTING
        self.stopped = trio.Event()
        self.close_answered = trio.Event()
        self.bound = False
        self.own_check: ReadinessCheck | None = None
        self.stuck = False
        self._loaded = loaded
        self._version = version
        self._clock = context.clock
        self._copy: ModelInstance | None = None  # while it serves
        self._passive = order.passive
        kind = loaded.model.instance_class(order.spec)
        self._has_thread = not issubclass(kind, ProcessInstance)
        self._executor = context.executors.instance_executor(name, kind, context.turn)
        self._stepper = self._executor if isinstance(self._executor, StepExecutor) else None
        self._scheduler = scheduler
        self._isolated = False  # it executes a request that may have ended its predecessor
        self._execution = ExecutionLimit(loaded.limit_s)
        self._steps = 0  # that had been carried out at the last look
        self._limit = order.limit
        self._held: dict[ExecutionBatch, None] = {}
        self._lost: list[ExecutionBatch] = []
        self._beginning: ExecutionBatch | None = None
        self._leaving: Leaving | None = None
        self._on_attached: Callable[[], None] | None = None
        self._obituary: TriremeError | None = None

    @property
    def work(self) -> str:
        """What it executes, for people; empty while it is not there for that."""
        if self.state is not InstanceState.SERVING:
            return ""
        rows = " and ".join(str(batch.rows) for batch in self._held)
        return f"executing {rows} {'row' if rows == '1' else 'rows'}" if rows else "idle"

    def open_jobs(self) -> Iterable[Job]:
        """What it has begun to answer, or is about to, and has not answered finally."""
        held = [job for batch in self._held for job in batch.jobs]
        kept = self._copy.open_jobs() if isinstance(self._copy, ProcessInstance) else ()
        return [job for job in dict.fromkeys([*held, *kept]) if not (job.answered or job.is_null)]

    async def run(self, on_attached: Callable[[], None] = lambda: None) -> None:
        """Live until told to stop.

        Args:
            on_attached: called when it may get batches.

        Raises:
            TriremeError: the copy could not be made, or warmed up.
            InstanceHungError: a batch outlived the execution limit.
            Exception: whatever else this instance dies of.
        """
        try:
            await self._executor.around(partial(self._live, on_attached))
            return
        except BaseExceptionGroup as group:
            error = first_error(group)
        error.__context__ = None  # it may be kept with a log record, and is not to hold on to the data of a batch
        raise error.with_traceback(None)

    async def _live(self, on_attached: Callable[[], None]) -> None:
        place, name, device = self.spec.kind.removeprefix("KIND_"), self.spec.name, self.spec.device_id
        logger.info("TRITONBACKEND_ModelInstanceInitialize: %s (%s device %d)", name, place, device)
        logger.debug("Creating instance %s on %s", name, place)
        copy = await self._executor.call(self._make)
        text = "TRITONBACKEND_ModelInstanceInitialize: instance initialization successful %s (device %d)"
        logger.debug(text, name, device)
        if copy.checks_itself:
            self.own_check = ReadinessCheck(self.spec.name, copy)
        try:
            execute = partial(self._execute, copy)
            await warm_up(self._loaded, self._version, self.spec, self._clock, execute)
        except TriremeError:
            await self._executor.end_instance(copy)
            raise
        await self._serve(copy, on_attached)
        logger.debug("Stopping backend thread for %s...", name)
        await self._executor.end_instance(copy)
        logger.info("TRITONBACKEND_ModelInstanceFinalize: delete instance state")
        self._executor.close()
        self.state = InstanceState.STOPPED
        self.stopped.set()

    def _make(self) -> ModelInstance:
        copy = self._loaded.new_instance(self.spec, on_its_thread=self._has_thread)
        if self.state is InstanceState.DEAD:  # it took so long that it was given up
            copy.close()
        return copy

    async def _serve(self, copy: ModelInstance, on_attached: Callable[[], None]) -> None:
        """Execute batches until dismissed."""
        spec, most = self.spec, copy.credits
        self.mailbox.bound = most + _OTHER_MESSAGES
        logger.debug("Starting backend thread for %s at nice 0 on device %d...", spec.name, spec.device_id)
        self._copy = copy
        self._on_attached = on_attached
        if self._passive:
            self.mailbox.send_nowait(Attached())
        else:
            overlaps = isinstance(copy, StreamInstance)
            about = spec.name, self.mailbox, most, overlaps, self._limit, spec.device_id, spec.gpu
            self._scheduler.mailbox.send_nowait(Attach(self.identity, self.seat, *about))
        await super().run()
        self._copy = None

    # In turns.

    def receive(self, message: InstanceMessage) -> None:
        if isinstance(message, Execute):
            batch, held = message.batch, self._held
            assert self._copy is not None, "only an instance that serves is sent batches"
            self._isolated = message.isolated
            idle = not held and not self._in_step
            held[batch] = None
            self._beginning = batch
            self._executor.begin(self._copy, batch, self._over)
            self._beginning = None
            if batch in held and idle:
                self._execution.restart(trio.current_time())
        elif isinstance(message, Dismissed):
            self.close_answered.set()
            self.finish()
        elif isinstance(message, Bound):
            self.bound = True
            self.close_answered.set()
        elif isinstance(message, TurnedAway):
            raise message.error
        else:
            self.state = InstanceState.SERVING
            if self._on_attached is not None:
                self._on_attached()
            if self._leaving is not None:
                self._ask_to_leave(self._leaving)

    def _ask_to_leave(self, leaving: Leaving) -> None:
        if self._passive:
            self.mailbox.send_nowait(Dismissed())
        else:
            self._scheduler.mailbox.send_nowait(leaving)

    def _over(self, batch: ExecutionBatch, death: Exception | None = None) -> None:
        """A batch is over; or the instance has died of it."""
        held = self._held
        if batch not in held:
            return  # it was given up, and is answered
        if death is not None:
            self.fail(death)
            return
        stepper = self._stepper
        if stepper is None and len(held) > 1 and next(iter(held)) is batch:
            self._execution.restart(trio.current_time())
        del held[batch]
        self._execution.ended(batch.took_ns)
        if self.stuck and (stepper is None or stepper.steps != self._steps):
            self._recover()
        self._scheduler.mailbox.send_nowait(Executed(self.identity, batch, batch is self._beginning))

    def act(self) -> None:
        if not self._held and not self._in_step:
            if self.stuck:  # the step that took so long is over, and so are its batches, whose clients have left
                self._recover()
            if self._deadline_s != math.inf:
                self.deadline_s = math.inf
            return
        now = trio.current_time()
        if now >= self.deadline_s:
            self._look(next(iter(self._held), None), now)
        self.deadline_s = self._execution.next_look_s(now)

    @property
    def _in_step(self) -> bool:
        """Whether it computes a step, be there batches for that or not: their clients may have left."""
        return self._stepper is not None and self._stepper.stepping

    def _look(self, batch: ExecutionBatch | None, now: float) -> None:
        """Give up a batch that takes too long (rule 3)."""
        execution = self._execution
        if self._shows_life(batch):
            execution.restart(now)
            if self.stuck:
                self._recover()
            return
        verdict = execution.look(now)
        if verdict is Verdict.OVER:
            raise self._hung()
        if verdict is Verdict.STUCK and not self.stuck:
            self.stuck = True
            text = "instance '%s' has been executing one batch for %g s, and counts as stuck%s"
            rest = "" if execution.limit_s == math.inf else f"; after {execution.limit_s:g} s it is given up"
            logger.warning(text, self.spec.name, execution.mark_s, rest)

    def _shows_life(self, batch: ExecutionBatch | None) -> bool:
        """Whether a batch has been answered in part since this was last asked, or is held back by a client. One that
        goes by steps shows it by these alone: it waits for no client, and batches may be over because theirs leave."""
        if self._stepper is not None:
            steps, self._steps = self._steps, self._stepper.steps
            return steps != self._steps
        assert batch is not None, "it is looked at while it has one"
        heard, batch.heard = batch.heard, False
        return heard or any(job.window is not None and job.window.crowded for job in batch.jobs)

    def _recover(self) -> None:
        self.stuck = False
        logger.info("instance '%s' goes on, and no longer counts as stuck", self.spec.name)

    def _hung(self) -> InstanceHungError:
        return InstanceHungError(
            f"instance '{self.spec.name}' gave no answer within {self._execution.limit_s:g} s and was given up"
        )

    # Before it serves.

    async def _execute(self, copy: ModelInstance, batch: ExecutionBatch) -> None:
        """Execute a batch while nothing else is executed, and wait for its end."""
        over = trio.Event()
        death: Exception | None = None

        def done(_batch: ExecutionBatch, error: Exception | None = None) -> None:
            nonlocal death
            death = error
            over.set()

        with trio.move_on_after(self._execution.limit_s) as limit:
            with self._turn:
                self._executor.begin(copy, batch, done)
            await over.wait()
        if limit.cancelled_caught:
            raise self._hung()
        if death is not None:
            raise death

    def fail(self, error: Exception) -> None:
        super().fail(error)
        self._lost += self._held  # their ends come too late, though it is not buried yet
        self._held.clear()

    # For its supervisor.

    def close(self, *, sequences_first: bool = False) -> None:
        """Close once the batches in hand are done; `stopped` tells when. To be bound no longer, say so again."""
        before = self._leaving
        if before is None or (before.sequences_first and not sequences_first):
            self._leaving = Leaving(self.identity, sequences_first)
            if self.alive and self.state is InstanceState.SERVING:
                self._ask_to_leave(self._leaving)

    def bury(self, error: TriremeError, *, isolates: bool = False, died: bool = True) -> None:
        """Answer what a dead instance held with `error`, tell the scheduler, give up the executor.

        Args:
            isolates: the requests of its only batch are not answered if there are several: any of them may have ended
                the instance, and the next one of this seat is to execute each alone.
            died: by itself; False: the server has no more time for it.
        """
        self.state = InstanceState.DEAD
        self._obituary = error
        self.end()
        sent = [message.batch for message in self.undelivered() if isinstance(message, Execute)]
        batches = list(dict.fromkeys([*self._lost, *self._held, *sent]))  # one that could not even be begun is in both
        self._held.clear()
        self._lost.clear()
        self._copy = self._beginning = None
        isolated: list[Job] = []
        if isolates and len(batches) == 1 and len(batches[0].jobs) > 1:
            isolated = [job for job in batches[0].jobs if not job.answered]
        elif self._isolated and died:
            error = InternalError(f"{error.message}{_KILLED_TWICE}", reason=FailureReason.BACKEND)
        self._hand_back(batches, error, isolated)
        self._executor.close()
        self.stopped.set()
        self.close_answered.set()

    def return_mail(self) -> None:
        """A batch may have been on its way when the instance was buried."""
        batches = [message.batch for message in self.undelivered() if isinstance(message, Execute)]
        if batches:
            self._hand_back(batches, self._obituary)

    def _hand_back(
        self, batches: list[ExecutionBatch], error: TriremeError | None, isolated: Sequence[Job] = ()
    ) -> None:
        for batch in batches:
            batch.finish(error, keep_open=bool(isolated))
        self._scheduler.mailbox.send_nowait(Gone(self.identity, self.seat, batches, isolated))


def obituary(spec: InstanceSpec, cause: Exception) -> TriremeError:
    """The answer to the requests that a dead instance held."""
    if isinstance(cause, TriremeError | InstanceHungError):
        text = str(cause)
    else:
        text = f"instance '{spec.name}' died: {type(cause).__name__}: {cause}"
    return InternalError(text, reason=FailureReason.BACKEND)
