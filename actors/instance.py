"""The instance actor: one executable copy of a model, and the executor it lives on.

It makes its copy, says that it is idle, executes the batch that its scheduler then sends, hands it back, and says so
again. States: STARTING -> IDLE <-> BUSY -> STOPPED, and from any of them DEAD, when something other than the backend's
own handling of a batch goes wrong, or a batch outlives the execution limit. A dead instance is never revived: its
supervisor buries it (`bury` answers what it held) and starts another.

An instance has credits: so many batches it may hold at once. While it has some left it says that it is idle as soon as
it has been given a batch, so that it stands behind the other instances again; each batch is handed back when it is over
itself. One task watches how long the oldest batch takes (`engine.execution_limit`), so that no batch needs a timer of
its own. Leave to execute (the rate limiter's) is for one batch, so where it is needed an instance has one credit.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from ..engine import request_lines
from ..engine.backends.interface import InstanceSpec, LoadedModel, ModelInstance, ProcessInstance
from ..engine.config.rate_limiter import UNLIMITED, RateLimit
from ..engine.errors import FailureReason, InternalError, TriremeError
from ..engine.execution import ExecutionBatch, Phase
from ..engine.execution_limit import ExecutionLimit, Verdict
from ..engine.job import Job
from ..engine.scheduling.core import InstanceId
from .exception_groups import first_error
from .executors import Executor
from .mailbox import Mailbox, MailboxStatistics
from .messages import BatchSealed, InstanceIdle, InstanceMessage, StopInstance
from .readiness import ReadinessCheck
from .scheduler import InstanceAddress, Scheduler
from .warmup import WarmUp

logger = logging.getLogger("trireme.model")

_MAILBOX_BOUND = 2
"""A batch, for an instance says once that it is idle before it gets one; and the word to stop."""


_KILLED_TWICE = (
    " The request was executed again, alone, after an instance had died with the batch that it was in. This instance "
    "died of it, too; the request is not executed again."
)


class InstanceState(enum.Enum):
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPED = "stopped"
    DEAD = "dead"


class InstanceHungError(Exception):
    """A batch took longer than the execution limit."""


@dataclass(frozen=True, slots=True)
class InstanceStatistics:
    name: str
    state: InstanceState
    executed: int
    mailbox: MailboxStatistics


class Instance:
    """One instance.

    Args:
        identity: unique among the scheduler's instances, over restarts too.
        limit_s: most seconds that a batch may take; 0 for no limit.
        limit: what it needs in order to execute, where that is limited.
        warm_up: what it does before it takes batches; None for nothing.
        suspects: requests that may have killed the instance before it: it executes each alone before it takes batches.

    Attributes:
        own_check: the model's own, once the instance has started; None if it has none.
        stuck: it has executed one batch for longer than it should.
    """

    def __init__(
        self,
        identity: InstanceId,
        spec: InstanceSpec,
        model: LoadedModel,
        executor: Executor,
        scheduler: Scheduler,
        limit_s: float = 0.0,
        limit: RateLimit = UNLIMITED,
        warm_up: WarmUp | None = None,
        suspects: Sequence[Job] = (),
    ) -> None:
        self.identity = identity
        self.spec = spec
        self.state = InstanceState.STARTING
        self.mailbox: Mailbox[InstanceMessage] = Mailbox(f"instance {spec.name}", _MAILBOX_BOUND)
        self.executed = 0
        self.stopped = trio.Event()
        self.own_check: ReadinessCheck | None = None
        self._model = model
        self._executor = executor
        self._scheduler = scheduler
        self.stuck = False
        self._suspects = list(suspects)
        self._in_question = False  # it executes one of them
        self._execution = ExecutionLimit(limit_s)
        self._limit = limit
        self._warm_up = warm_up
        self._credits = 1
        self._held: dict[ExecutionBatch, None] = {}
        self._said_idle = False
        self._idle_word = InstanceIdle(identity)
        self._told_to_stop = False
        self._leaving = False
        self._settled = trio.lowlevel.ParkingLot()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until told to stop.

        Raises:
            TriremeError: the copy could not be made, or warmed up.
            InstanceHungError: a batch outlived the execution limit.
            Exception: whatever else this instance dies of.
        """
        try:
            await self._executor.around(partial(self._live, task_status))
            return
        except BaseExceptionGroup as group:
            error = first_error(group)
        error.__context__ = None  # it may be kept with a log record, and is not to hold on to the data of a batch
        raise error.with_traceback(None)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        place, name, device = self.spec.kind.removeprefix("KIND_"), self.spec.name, self.spec.device_id
        logger.info("TRITONBACKEND_ModelInstanceInitialize: %s (%s device %d)", name, place, device)
        logger.debug("Creating instance %s on %s", name, place)
        copy = await self._executor.run(self._make)
        text = "TRITONBACKEND_ModelInstanceInitialize: instance initialization successful %s (device %d)"
        logger.debug(text, name, device)
        if isinstance(copy, ProcessInstance) and copy.checks_itself:
            self.own_check = ReadinessCheck(self.spec.name, copy)
        if self._warm_up is not None:
            await self._make_warm(copy, self._warm_up)
        await self._try_suspects(copy)
        scheduler = self._scheduler
        execute_now = partial(self._execute_now, copy)
        spec = self.spec
        begin_now = None
        if self._executor.begins:
            begin_now = partial(self._begin_now, copy)
        prompt = begin_now is not None and self._executor.prompt
        address = InstanceAddress(
            spec.name, self.mailbox, execute_now, self._limit, spec.device_id, spec.gpu, begin_now, prompt
        )
        logger.debug("Starting backend thread for %s at nice 0 on device %d...", name, device)
        scheduler.attach(self.identity, address)
        task_status.started()
        if not scheduler.limited:
            self._credits = copy.credits
        async with trio.open_nursery() as beside:
            beside.start_soon(self._watch)
            await self._serve(copy, None if self._credits == 1 else beside)
            beside.cancel_scope.cancel()
        scheduler.detach(self.identity)
        logger.debug("Stopping backend thread for %s...", name)
        await self._executor.end(copy)
        logger.info("TRITONBACKEND_ModelInstanceFinalize: delete instance state")
        self._executor.close()
        self.state = InstanceState.STOPPED
        self.stopped.set()

    def _make(self) -> ModelInstance:
        copy = self._model.create_instance(self.spec)
        if self.state is InstanceState.DEAD:  # it took so long that nobody waits any more
            copy.close()
        return copy

    async def _serve(self, copy: ModelInstance, beside: trio.Nursery | None) -> None:
        """Execute batches until told to stop, and no batch is held any more.

        Args:
            beside: where batches are executed side by side; None for one at a time.
        """
        self.state = InstanceState.IDLE
        self._say_idle()
        while True:
            message = await self._next_message()
            if isinstance(message, StopInstance):
                break
            self._take(message.batch)
            if beside is None:
                await self._execute_sealed(copy, message.batch)
            else:
                beside.start_soon(self._execute_sealed, copy, message.batch)
                self._say_idle()
            del message  # whoever waits for the next one does not hold on to the data of the last one
        self._leaving = True
        if self._said_idle:
            self._scheduler.detach(self.identity)  # so that nothing more comes while the last ones are executed
        while self._held:
            await self._settled.park()

    def _take(self, batch: ExecutionBatch) -> None:
        self._said_idle = False
        if self.state is not InstanceState.BUSY:
            self._execution.restart(trio.current_time())
        self._held[batch] = None
        self.state = InstanceState.BUSY

    def _hand_back(self, batch: ExecutionBatch, *, prompt: bool = False) -> None:
        """Give a batch back that is over.

        Args:
            prompt: it was begun in place, and so may the next one be.
        """
        was_oldest = next(iter(self._held)) is batch
        del self._held[batch]
        if not self._held:
            self.state = InstanceState.IDLE
        elif was_oldest:
            self._execution.restart(trio.current_time())
        self._execution.ended((batch.marks[Phase.COMPUTE_END] - batch.marks[Phase.COMPUTE_START]) / 1e9)
        if self.stuck:
            self._recover()
        was_idle = self._said_idle
        idle = self.identity if prompt and self._has_news() else None
        self.executed += 1
        self._scheduler.settle(batch, idle)
        if request_lines.logger.isEnabledFor(logging.DEBUG):
            request_lines.tell_executed(batch)
        if was_idle:  # nothing else tells the scheduler that what waited for this very batch may go now
            self._scheduler.reconsider()
        if self._settled:  # asking is cheaper than waking nobody
            self._settled.unpark_all()

    def _say_idle(self) -> None:
        if self._has_news():
            self._scheduler.mailbox.put_nowait(self._idle_word)

    def _has_news(self) -> bool:
        """Whether it is idle and has not said so; it is about to."""
        if self._said_idle or self._leaving or len(self._held) >= self._credits:
            return False
        self._said_idle = True
        return True

    async def _execute_sealed(self, copy: ModelInstance, batch: ExecutionBatch) -> None:
        await self._executor.execute(copy, batch)
        self._hand_back(batch)
        self._say_idle()

    def stop(self) -> None:
        """Close once the batches in hand are done; `stopped` tells when."""
        if not self._told_to_stop and not self.stopped.is_set():
            self._told_to_stop = True
            self.mailbox.put_nowait(StopInstance())

    async def _make_warm(self, copy: ModelInstance, warm_up: WarmUp) -> None:
        try:
            await warm_up.run(self.spec, partial(self._execute, copy))
        except TriremeError:
            await self._executor.end(copy)
            raise

    async def _try_suspects(self, copy: ModelInstance) -> None:
        while self._suspects:
            batch = self._scheduler.recall(self._suspects.pop(0), self.spec.name, self.spec.gpu)
            if batch is not None:
                self._in_question = True
                self._take(batch)
                await self._execute(copy, batch)
                self._hand_back(batch)
                self._in_question = False

    async def _execute(self, copy: ModelInstance, batch: ExecutionBatch) -> None:
        """Before it serves, from when on it is watched."""
        with trio.move_on_after(self._execution.limit_s) as limit:
            await self._executor.execute(copy, batch)
        if limit.cancelled_caught:
            raise self._hung()

    async def _watch(self) -> None:
        """Give up a batch that takes too long."""
        execution = self._execution
        while True:
            await trio.sleep_until(execution.next_look_s(trio.current_time(), bool(self._held)))
            batch = next(iter(self._held), None)
            if batch is None:
                continue
            if _shows_life(batch):
                execution.restart(trio.current_time())
                if self.stuck:
                    self._recover()
                continue
            verdict = execution.look(trio.current_time())
            if verdict is Verdict.OVER:
                raise self._hung()
            if verdict is Verdict.STUCK and not self.stuck:
                self.stuck = True
                text = "instance '%s' has been executing one batch for %g s, and counts as stuck%s"
                rest = "" if execution.limit_s == math.inf else f"; after {execution.limit_s:g} s it is given up"
                logger.warning(text, self.spec.name, execution.mark_s, rest)

    def _hung(self) -> InstanceHungError:
        return InstanceHungError(
            f"instance '{self.spec.name}' gave no answer within {self._execution.limit_s:g} s and was given up"
        )

    def _recover(self) -> None:
        self.stuck = False
        logger.info("instance '%s' goes on, and no longer counts as stuck", self.spec.name)

    def _execute_now(self, copy: ModelInstance, batch: ExecutionBatch) -> bool:
        """In the scheduler's task: execute a batch that is so short that waking this one would cost more."""
        if not self._executor.execute_now(copy, batch):
            return False
        self.executed += 1
        self._scheduler.settle(batch)
        if request_lines.logger.isEnabledFor(logging.DEBUG):
            request_lines.tell_executed(batch)
        return True

    def _begin_now(self, copy: ModelInstance, batch: ExecutionBatch) -> bool:
        """In the scheduler's task: begin a batch. This actor's own task goes on waiting for messages meanwhile."""
        self._held[batch] = None  # already, for `bury`, in case that it cannot even be begun
        if not self._executor.begin_now(copy, batch, self._over):
            del self._held[batch]
            return False
        self._take(batch)
        if self._has_news():
            self._scheduler.has_room(self.identity)
        return True

    def _over(self, batch: ExecutionBatch) -> None:
        """A batch that was begun in place is over."""
        self._hand_back(batch, prompt=True)

    async def _next_message(self) -> BatchSealed | StopInstance:
        """The next thing to do. A batch goes before a stop: what was sealed is executed."""
        messages = await self.mailbox.get_all()
        if len(messages) == 1:
            return messages[0]
        first, *later = sorted(messages, key=lambda message: isinstance(message, StopInstance))
        for message in later:
            self.mailbox.put_nowait(message)
        return first

    def bury(self, error: TriremeError, *, isolates: bool = False) -> list[Job]:
        """Answer what a dead instance held with `error`, tell the scheduler, give up the executor.

        Args:
            isolates: the requests of its only batch are not answered if there are several: any of them may have killed
                the instance.

        Returns:
            The requests that the next instance is to execute, each alone.
        """
        self.state = InstanceState.DEAD
        batches = list(self._held)
        self._held.clear()
        batches += [message.batch for message in self.mailbox.drain() if isinstance(message, BatchSealed)]
        suspects: list[Job] = []
        if isolates and len(batches) == 1 and len(batches[0].jobs) > 1:
            suspects = [job for job in batches[0].jobs if not job.answered]
        elif self._in_question:
            error = InternalError(f"{error.message}{_KILLED_TWICE}", reason=FailureReason.BACKEND)
        for batch in batches:
            batch.finish(error, keep_open=bool(suspects))
            self._scheduler.settle(batch)
        for job in suspects:
            self._scheduler.suspect(job)
        self._scheduler.detach(self.identity)
        self._executor.close()
        self.stopped.set()
        return suspects + self._suspects

    def statistics(self) -> InstanceStatistics:
        return InstanceStatistics(self.spec.name, self.state, self.executed, self.mailbox.statistics())

    def __repr__(self) -> str:
        return f"<Instance {self.spec.name} {self.state.value}, {self.executed} batches>"


def _shows_life(batch: ExecutionBatch) -> bool:
    """Whether a batch has been answered in part since this was last asked, or is held back by a client."""
    heard, batch.heard = batch.heard, False
    return heard or any(job.window is not None and job.window.crowded for job in batch.jobs)


def obituary(spec: InstanceSpec, cause: Exception) -> TriremeError:
    """The answer to the requests that a dead instance held."""
    if isinstance(cause, TriremeError | InstanceHungError):
        text = str(cause)
    else:
        text = f"instance '{spec.name}' died: {type(cause).__name__}: {cause}"
    return InternalError(text, reason=FailureReason.BACKEND)
