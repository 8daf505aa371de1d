"""Where GPU instances live: an executor that is an actor.

A batch is launched on the instance's own thread, which enqueues what the device is to do and goes on to the next one.
When the device has done it, a thread of the driver's says so, and the batch is collected on the event loop. No thread
ever waits for the device. What happens to a batch is decided by `engine.gpu.flights`; the executor is told of launches
and landings through its mailbox, and asks after what does not land.

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
from ..engine.gpu.device import OutOfDeviceMemoryError, SickDeviceError
from ..engine.gpu.flights import Flights, FlightState, FlightStatistics, Ticket
from ..engine.job import COMPUTE_START, ExecutionBatch
from .actor import Actor, Turn
from .offload import Done, ExecutorDiedError, Worker, first_error, run_on

T = TypeVar("T")

_MESSAGES_EACH = 2
"""What a batch leaves in the mailbox: that it was launched, and that it has landed."""


@dataclass(frozen=True, slots=True)
class BatchMoved:
    """To a stream executor: its thread has launched a batch, or failed to (`launch`); or, without that, the device has
    done everything of the batch."""

    ticket: Ticket
    launch: outcome.Outcome[object] | None = None


class StreamExecutor(Actor[BatchMoved]):
    """One GPU instance's executor. Has as many batches in flight as the instance has credits.

    Args:
        worker: the instance's thread.
        turn: in which batches are collected.
    """

    def __init__(self, name: str, worker: Worker, turn: Turn) -> None:
        super().__init__(f"stream of {name}", turn, _MESSAGES_EACH)
        self._name = name
        self._flights = Flights()
        self._worker = worker

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        error: BaseException
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.run)
                await life()
                nursery.cancel_scope.cancel()
            return
        except BaseExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, SickDeviceError):
                self._flights.sick()
        finally:
            self.end()
            self.return_mail()
        error.__context__ = None  # neither it nor its traceback, which may be kept with a log record,
        raise error.with_traceback(None)  # is to hold on to the data of the last batch

    async def call(self, work: Callable[[], T]) -> T:
        result = await run_on(self._worker, work)
        if isinstance(result, StreamInstance):
            self.mailbox.bound = _MESSAGES_EACH * result.credits
        return result

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        assert isinstance(instance, StreamInstance), "this executor has made it"
        batch.mark(COMPUTE_START)
        ticket = Ticket(instance, batch, done)
        self._flights.begin(ticket)
        self._worker.put(partial(self._launch, ticket), partial(self._launched, ticket))

    async def end_instance(self, instance: ModelInstance) -> None:
        await self.call(instance.close)

    def close(self) -> None:
        self._worker.close()

    # On the instance's thread, and of it.

    def _launch(self, ticket: Ticket) -> None:
        instance = ticket.instance
        if instance is None or not self.alive:
            raise ExecutorDiedError("the instance was lost before this batch was launched")
        ticket.launched = instance.launch(ticket.batch, partial(self._landed, ticket))

    def _launched(self, ticket: Ticket, result: outcome.Outcome[object]) -> None:
        self.mailbox.send_nowait(BatchMoved(ticket, result))

    def _landed(self, ticket: Ticket) -> None:
        """On any thread."""
        with contextlib.suppress(trio.RunFinishedError):  # the loop has ended, and nothing waits for it
            self._turn.call_from_thread(self.mailbox.send_nowait, BatchMoved(ticket))

    # In turns.

    def receive(self, message: BatchMoved) -> None:
        """Take in that a batch was launched, or has landed.

        Raises:
            SickDeviceError, ExecutorDiedError: the instance cannot go on.
        """
        if self._moves(message, trio.current_time()):
            self._collect(message.ticket)
        elif isinstance(message.launch, outcome.Error):
            self._fail(message.ticket, message.launch.error)

    def _moves(self, message: BatchMoved, now_s: float) -> bool:
        """Whether the batch can be collected now."""
        if message.launch is None:
            return self._flights.landed(message.ticket)
        if isinstance(message.launch, outcome.Value):
            return self._flights.launched(message.ticket, now_s)
        self._flights.failed(message.ticket)
        return False

    def act(self) -> None:
        """Ask after what does not land.

        Raises:
            SickDeviceError: it never will.
        """
        overdue = self._flights.overdue(trio.current_time())
        if overdue is not None and overdue.instance is not None:
            overdue.instance.healthy(overdue.launched)
        self.deadline_s = self._flights.next_look_s()

    def return_mail(self) -> None:
        """The instance is lost, and its batches are answered; flights, rule 4."""
        for message in self.undelivered():
            died_of_it = message.ticket.state is FlightState.OVER
            if not died_of_it and self._moves(message, math.inf):
                self._flights.over(message.ticket, failed=True)

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
        return f"<StreamExecutor of {self._name}: {now.launching} launching, {now.flying} in flight>"


def advised(error: OutOfDeviceMemoryError, batch: ExecutionBatch) -> TriremeError:
    """What went out of memory, and what to do about it."""
    return OutOfDeviceMemoryError(
        f"{error.message}; it was a batch of {batch.rows} on instance '{batch.instance_name}': lower max_batch_size or "
        "the number of instances on this GPU, or raise the limits that --cuda-memory-pool-byte-size and "
        "--pinned-memory-pool-byte-size set"
    )
