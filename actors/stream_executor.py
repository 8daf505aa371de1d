"""Where GPU instances live: the stream actor.

A batch is launched on the instance's own thread, which enqueues what the device is to do and goes on to the next one.
When the device has done it, a thread of the driver's says so, and the batch is collected on the event loop. No thread
ever waits for the device. What becomes of a batch is decided by `engine.gpu.flights`; this task hears of launches and
landings through its mailbox, and asks after what does not land.

What a batch raises is its requests' answer, be it on the thread or when it is collected. A sick device, and whatever
else goes wrong, is raised to the instance actor, which dies of it, answers what is in flight, and is replaced by its
supervisor. What the driver says afterwards, even after the event loop has ended, only gives memory back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import outcome
import trio

from ..engine.backends.interface import ModelInstance, StreamInstance
from ..engine.errors import TriremeError, backend_failure
from ..engine.execution import ExecutionBatch, Phase
from ..engine.gpu.device import OutOfDeviceMemoryError, SickDeviceError
from ..engine.gpu.flights import Flights, FlightStatistics, Ticket
from .exception_groups import first_error
from .mailbox import Mailbox
from .work_thread import ExecutorDiedError, Worker, run_on

T = TypeVar("T")

_MESSAGES_EACH = 2
"""What a batch leaves in the mailbox: that it was launched, and that it has landed."""


@dataclass(frozen=True, slots=True)
class BatchLaunched:
    """To a stream: the thread has launched a batch, or failed to."""

    ticket: Ticket
    result: outcome.Outcome[object]


@dataclass(frozen=True, slots=True)
class BatchLanded:
    """To a stream: the device has done everything of a batch."""

    ticket: Ticket


class StreamExecutor:
    """One GPU instance's executor. Has as many batches in flight as the instance has credits.

    Args:
        worker: the instance's thread.
    """

    begins = True
    prompt = False  # a GPU takes as long for one request as for many

    def __init__(self, name: str, worker: Worker) -> None:
        self._name = name
        self._worker = worker
        self._flights = Flights()
        self._mailbox: Mailbox[BatchLaunched | BatchLanded] = Mailbox(f"stream of {name}", _MESSAGES_EACH)
        self._heard: list[BatchLaunched | BatchLanded] = []  # and not done yet
        self._token = trio.lowlevel.current_trio_token()
        self._alive = True

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        error: BaseException
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve)
                await life()
                nursery.cancel_scope.cancel()
            return
        except BaseExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, SickDeviceError):
                self._flights.sick()
        finally:
            self._alive = False
            for message in (*self._heard, *self._mailbox.drain()):
                self._give_back(message)
        error.__context__ = None  # neither it nor its traceback, which may be kept with a log record,
        raise error.with_traceback(None)  # is to hold on to the data of the last batch

    async def run(self, work: Callable[[], T]) -> T:
        result = await run_on(self._worker, work)
        if isinstance(result, StreamInstance):
            self._mailbox.bound = _MESSAGES_EACH * result.credits
        return result

    async def execute(self, instance: ModelInstance, batch: ExecutionBatch) -> None:
        over = trio.Event()
        self.begin(instance, batch, lambda _batch: over.set())
        await over.wait()

    def execute_now(self, instance: ModelInstance, batch: ExecutionBatch) -> bool:
        return False  # it is never over in place

    def begin_now(
        self, instance: ModelInstance, batch: ExecutionBatch, on_over: Callable[[ExecutionBatch], None]
    ) -> bool:
        self.begin(instance, batch, on_over)
        return True

    async def end(self, instance: ModelInstance) -> None:
        await self.run(instance.close)

    def close(self) -> None:
        self._worker.close()

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, on_over: Callable[[ExecutionBatch], None]) -> None:
        """Begin a batch, which is over when `on_over` is called, later."""
        assert isinstance(instance, StreamInstance), "this executor has made it"
        batch.mark(Phase.COMPUTE_START)
        ticket = Ticket(instance, batch, on_over)
        self._flights.begin(ticket)
        self._worker.put(_Launch(ticket, partial(self._tell_landed, ticket), self._hear))

    def _tell_landed(self, ticket: Ticket) -> None:
        """On any thread."""
        with contextlib.suppress(trio.RunFinishedError):  # nobody is there any more who waits for it
            self._token.run_sync_soon(self._hear, BatchLanded(ticket))

    def _hear(self, message: BatchLaunched | BatchLanded) -> None:
        if self._alive:
            self._mailbox.put_nowait(message)
        else:
            self._give_back(message)

    def _give_back(self, message: BatchLaunched | BatchLanded) -> None:
        """The instance is lost, and its batches are answered; flights, rule 4."""
        ticket = message.ticket
        if isinstance(message, BatchLanded):
            done = self._flights.landed(ticket)
        elif isinstance(message.result, outcome.Error):
            self._flights.failed(ticket)
            done = False
        else:
            done = self._flights.launched(ticket, math.inf)
        if done:
            self._flights.over(ticket, failed=True)

    # The task.

    async def _serve(self) -> None:
        """Collect what lands, until cancelled.

        Raises:
            SickDeviceError, ExecutorDiedError: the instance cannot go on.
        """
        flights = self._flights
        while True:
            with trio.move_on_at(flights.next_look_s()):
                self._heard = await self._mailbox.get_all()
            while self._heard:
                match self._heard.pop(0):
                    case BatchLaunched(ticket, outcome.Error(error)):
                        flights.failed(ticket)
                        self._fail(ticket, error)
                    case BatchLaunched(ticket):
                        if flights.launched(ticket, trio.current_time()):
                            self._collect(ticket)
                    case BatchLanded(ticket):
                        if flights.landed(ticket):
                            self._collect(ticket)
            overdue = flights.overdue(trio.current_time())
            if overdue is not None and overdue.instance is not None:
                overdue.instance.healthy(overdue.launched)

    def _collect(self, ticket: Ticket) -> None:
        batch, instance = ticket.batch, ticket.instance
        assert instance is not None, "it is needed until now"
        failure: BaseException | None = None
        try:
            instance.collect(batch, ticket.launched)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary to foreign code, as in `executors`
            failure = error.with_traceback(None)  # whose frames hold what the batch had of the device
        self._flights.over(ticket, failed=failure is not None)
        if failure is not None:  # not amid the handling: an answer that is raised at a client would refer to it
            self._fail(ticket, failure)
            return
        batch.finish()
        ticket.on_over(batch)

    def _fail(self, ticket: Ticket, error: BaseException) -> None:
        """Answer a batch with what it, or its launch, has raised.

        Raises:
            SickDeviceError, ExecutorDiedError: it costs the instance.
        """
        if isinstance(error, SickDeviceError | ExecutorDiedError):
            raise error
        failure = backend_failure(error)
        if isinstance(failure, OutOfDeviceMemoryError):
            failure = advised(failure, ticket.batch)
        ticket.batch.finish(failure)
        ticket.on_over(ticket.batch)

    def statistics(self) -> FlightStatistics:
        return self._flights.statistics()

    def __repr__(self) -> str:
        now = self._flights.statistics()
        state = "" if self._alive else "ended, "
        return f"<StreamExecutor {self._name}: {state}{now.launching} launching, {now.flying} in flight>"


class _Launch:
    """A batch to be launched by the instance's thread."""

    __slots__ = ("_hear", "_on_landed", "_ticket")

    def __init__(
        self, ticket: Ticket, on_landed: Callable[[], None], hear: Callable[[BatchLaunched | BatchLanded], None]
    ) -> None:
        self._ticket = ticket
        self._on_landed = on_landed
        self._hear = hear

    def work(self) -> None:
        ticket = self._ticket
        instance = ticket.instance
        if instance is not None:  # it may have been lost meanwhile
            ticket.launched = instance.launch(ticket.batch, self._on_landed)

    def done(self, result: outcome.Outcome[object]) -> None:
        self._hear(BatchLaunched(self._ticket, result))


def advised(error: OutOfDeviceMemoryError, batch: ExecutionBatch) -> TriremeError:
    """What went out of memory, and what to do about it."""
    return OutOfDeviceMemoryError(
        f"{error.message}; it was a batch of {batch.rows} on instance '{batch.instance_name}': lower max_batch_size or "
        "the number of instances on this GPU, or raise the limits that --cuda-memory-pool-byte-size and "
        "--pinned-memory-pool-byte-size set"
    )
