"""The instances of one model version, and the supervisor of them.

An instance that dies is buried and started again after a growing delay (`engine.instances.restart`). While it goes on
dying, and no other instance is alive, what is queued is refused. Requests that were executed together when a process
died are executed again, each alone (`engine.instances.restart`).

What is wanted may change while the model serves (`resize`): instances that are wanted as before stay and keep their
names, new ones are made first, and those that are not wanted any more leave when their work is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import trio

from ..engine.backends.interface import LoadedModel, ProcessLostError
from ..engine.errors import InternalError, TriremeError, UnavailableError
from ..engine.instances.orders import InstanceOrder, match
from ..engine.instances.restart import RestartPolicy
from .door import stopping_error
from .instance import Instance, InstanceHungError, InstanceState, obituary
from .loading import ServerContext
from .messages import FailHeld, SeatLost
from .readiness import ReadinessCheck
from .scheduler import Scheduler
from .warmup import WarmUp

logger = logging.getLogger("trireme.model")

_ALIVE = (InstanceState.IDLE, InstanceState.BUSY)


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    """`alive` of `expected` instances, `stuck` of those that are alive; `restarts` counts all rebirths, `abandoned`
    those whose thread was given up because a batch hung."""

    alive: int = 0
    expected: int = 0
    restarts: int = 0
    abandoned: int = 0
    stuck: int = 0


class Instances:
    """Keeps a model's instances alive.

    Args:
        title: of the model version, for people.
        model: makes the copies.
        nursery: the instances' owner.
        warm_up: what each does before it takes batches; None for nothing.
        limit_s: most seconds that a batch may take; 0 for no limit.
        isolates: requests may be executed again when a process is lost.
    """

    def __init__(
        self,
        title: str,
        model: LoadedModel,
        scheduler: Scheduler,
        context: ServerContext,
        nursery: trio.Nursery,
        warm_up: WarmUp | None = None,
        limit_s: float = 0.0,
        *,
        isolates: bool = False,
    ) -> None:
        self._restarts = 0
        self._abandoned = 0
        self._title = title
        self._model = model
        self._scheduler = scheduler
        self._context = context
        self._nursery = nursery
        self._warm_up = warm_up
        self._limit_s = limit_s
        self._isolates = isolates and context.limiter is None
        self._seats: list[_Seat] = []
        self._identities = 0
        self._numbers = 0
        self._closing = False

    def counts(self) -> InstanceCounts:
        """How many there are; those that are not wanted any more do not count."""
        seats = [seat for seat in self._seats if not seat.leaving]
        alive = sum(seat.alive for seat in seats)
        stuck = sum(seat.alive and seat.instance is not None and seat.instance.stuck for seat in seats)
        return InstanceCounts(alive, len(seats), self._restarts, self._abandoned, stuck)

    def trouble(self) -> str:
        """Why the instances cannot take requests as they should; empty if they can."""
        counts = self.counts()
        if counts.alive < counts.expected:
            dead = [seat for seat in self._seats if not (seat.alive or seat.leaving)]
            last = next((f"; last: {seat.death}" for seat in dead if seat.death), "")
            return f"{len(dead)} of {counts.expected} instances have died and are being restarted{last}"
        if counts.stuck and counts.stuck == counts.alive:
            return f"all {counts.alive} instances have been executing one batch for too long"
        return ""

    def own_checks(self) -> list[ReadinessCheck]:
        """Those of the instances that are wanted and alive."""
        instances = [seat.instance for seat in self._seats if seat.alive and not seat.leaving]
        return [each.own_check for each in instances if each is not None and each.own_check is not None]

    async def start(self, orders: Iterable[InstanceOrder]) -> TriremeError | None:
        """Make instances side by side.

        Returns:
            Why one of them could not be made; None if all of them are there.
        """
        return await self._start([self._seat(order) for order in orders])

    async def resize(self, orders: Sequence[InstanceOrder]) -> TriremeError | None:
        """Have these instances from now on, and no others. What is there is used again where it is of the same kind.

        Returns:
            Why a new one could not be made, and everything is as before; None if all of them are there, and those that
            are too many have gone. Only one that has sequences may stay until they are over.
        """
        if self._closing:
            return stopping_error()
        staying = [seat for seat in self._seats if not seat.leaving]
        kept, missing = match([seat.order for seat in staying], orders)
        added = [self._seat(order) for order in missing]
        error = await self._start(added)
        if self._closing:
            return error or stopping_error()
        unwanted = added if error is not None else [seat for at, seat in enumerate(staying) if at not in kept]
        for seat in unwanted:
            seat.leaving = True
            self._nursery.start_soon(self._see_off, seat)
        for seat in unwanted:
            if seat.instance is not None:
                await seat.instance.close_answered.wait()
            if seat.instance is None or not seat.instance.bound:
                await seat.gone.wait()
        return error

    def end_start(self) -> None:
        """Give up instances that are wanted for the first time and still start."""
        for seat in self._seats:
            if not seat.was_up:
                seat.give_up()

    async def close(self) -> None:
        """Stop all of them, each when the batch in its hands is done; one that still starts, at once."""
        self._closing = True
        for seat in self._seats:
            if seat.instance is not None:
                seat.instance.close()
                seat.give_up()
        for seat in list(self._seats):
            if seat.instance is not None:
                await seat.instance.stopped.wait()

    def _seat(self, order: InstanceOrder) -> _Seat:
        self._numbers += 1
        return _Seat(self._numbers, order)

    async def _start(self, seats: Sequence[_Seat]) -> TriremeError | None:
        self._seats += seats
        async with trio.open_nursery() as starting:
            for seat in seats:
                starting.start_soon(self._nursery.start, self._keep, seat)
        return next((seat.error for seat in seats if seat.error is not None), None)

    async def _see_off(self, seat: _Seat) -> None:
        """An instance that is not wanted any more gets no new work, ends what it has begun, and goes."""
        try:
            if seat.instance is not None and not seat.instance.stopped.is_set():
                seat.instance.close(sequences_first=True)
                await seat.instance.stopped.wait()
        finally:
            self._seats.remove(seat)
            seat.gone.set()

    async def _keep(self, seat: _Seat, *, task_status: trio.TaskStatus[None]) -> None:
        """Run an instance; bury it when it dies; start the next one."""
        options = self._context.options
        now_s = self._context.clock.now_s
        policy = RestartPolicy(options.restart_limit, options.restart_window_s)

        def on_started() -> None:
            seat.was_up = True
            policy.started(now_s())

        started = Once(task_status, on_started)
        last_words = stopping_error()
        while True:
            instance = seat.instance = self._make(seat)
            seat.life = trio.CancelScope()
            death: Exception | None = None
            try:
                with seat.life:
                    await instance.run(task_status=started)
                    return
                seat.error = last_words = stopping_error()
                break
            except Exception as error:  # noqa: BLE001 - supervision: a child's crash is handled here, by policy
                death = error.with_traceback(None)  # whose frames hold all that the instance had
            finally:
                if death is None and instance.state is not InstanceState.STOPPED:
                    instance.bury(stopping_error())
            # Not amid the handling: what is raised because of this, and kept, would refer to it.
            assert death is not None, "whatever else it is goes on to its supervisor"
            stays = started.done and not (seat.leaving or self._closing)
            isolates = stays and self._isolates and isinstance(death, ProcessLostError)
            last_words = obituary(seat.order.spec, death)
            instance.bury(last_words, isolates=isolates)
            delay_s = self._next_step(seat, death, policy, started.done)
            if delay_s is None:
                break
            await trio.sleep(delay_s)
            if seat.leaving or self._closing:
                break
            self._restarts += 1
        started.started()
        self._scheduler.mailbox.send_nowait(SeatLost(seat.number, last_words))

    def _next_step(self, seat: _Seat, error: Exception, policy: RestartPolicy, was_up: bool) -> float | None:
        """What to do about a death: seconds until the restart, or None when there is none."""
        seat.death = str(error) or type(error).__name__
        if isinstance(error, InstanceHungError):
            self._abandoned += 1
        if not was_up:
            known = isinstance(error, TriremeError)
            seat.error = error if known else InternalError(f"{type(error).__name__}: {error}")
            return None
        if seat.leaving:
            return None
        name = seat.order.spec.name
        delay_s = policy.died(self._context.clock.now_s())
        if self._closing:
            return None
        logger.error("instance '%s' died: %s; restarting in %g s", name, error, delay_s)
        if policy.failing and not any(other.alive for other in self._seats):
            text = f"instance '{name}' died {policy.deaths} times in a row; it is started again in {delay_s:g} s"
            logger.error("%s has no instance, and refuses what is queued: %s", self._title, text)
            self._scheduler.mailbox.send_nowait(FailHeld(UnavailableError(f"{text}; last: {seat.death}")))
        return delay_s

    def _make(self, seat: _Seat) -> Instance:
        self._identities += 1
        order = seat.order
        kind = self._model.instance_class(order.spec)
        turn = self._context.turn
        executor = self._context.executors.instance_executor(order.spec.name, kind, turn)
        return Instance(
            self._identities,
            seat.number,
            order.spec,
            self._model,
            executor,
            self._scheduler,
            turn,
            self._limit_s,
            order.limit,
            self._warm_up,
        )

    def __repr__(self) -> str:
        return f"<Instances of {self._title}: {self.counts()}>"


class _Seat:
    """One instance that is wanted, over its restarts.

    Attributes:
        number: unique in its model.
        error: why it could not be made at all.
        death: what its instance died of last; empty if none has.
        life: ends with its instance.
        was_up: it has had an instance that could execute batches.
        leaving: it is not wanted any more.
        gone: and it has left.
    """

    def __init__(self, number: int, order: InstanceOrder) -> None:
        self.number = number
        self.order = order
        self.instance: Instance | None = None
        self.error: TriremeError | None = None
        self.death = ""
        self.life = trio.CancelScope()
        self.was_up = False
        self.leaving = False
        self.gone = trio.Event()

    def give_up(self) -> None:
        """End an instance that still starts."""
        if self.instance is not None and self.instance.state is InstanceState.STARTING:
            self.life.cancel()

    @property
    def alive(self) -> bool:
        return self.instance is not None and self.instance.state in _ALIVE


class Once(trio.TaskStatus[None]):
    """Passes the first `started` on; a restarted instance starts, too, but is not waited for any more.

    Args:
        on_started: called each time.
    """

    def __init__(self, task_status: trio.TaskStatus[None], on_started: Callable[[], None] = lambda: None) -> None:
        self._task_status = task_status
        self._on_started = on_started
        self.done = False

    def started(self, value: None = None) -> None:
        self._on_started()
        if not self.done:
            self.done = True
            self._task_status.started(value)
