"""The instances of one model version, and the supervisor of them.

An instance that dies is buried and started again after a growing delay (`engine.instances.restart`). While it goes on
dying, and no other instance is alive, what is queued is refused. Requests that were executed together when a process
died are executed again, each alone (`engine.instances.restart`); if their instance is removed, by one that stays.

What is wanted may change while the model serves (`resize`): instances that are wanted as before stay and keep their
names, new ones are made first, and those that are not wanted any more leave when their work is done.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import trio

from ..engine.backends.interface import ProcessLostError
from ..engine.description import ActorNode
from ..engine.errors import InternalError, RefusalReason, TriremeError, UnavailableError
from ..engine.instances.orders import InstanceOrder, match
from ..engine.instances.restart import RestartPolicy
from ..engine.job import Job
from ..engine.repository.loading import LoadedInstances
from .door import stopping_error
from .instance import Instance, InstanceHungError, InstanceState, ReadinessCheck, obituary
from .loading import ServerContext
from .messages import FailHeld, SeatLost
from .scheduler import Scheduler

logger = logging.getLogger("trireme.model")


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
    """Keeps the instances of a loaded model alive, in its nursery. `title` is that of the model version, for people."""

    def __init__(
        self,
        title: str,
        loaded: LoadedInstances,
        version: int,
        scheduler: Scheduler,
        context: ServerContext,
        nursery: trio.Nursery,
    ) -> None:
        self._restarts = 0
        self._abandoned = 0
        self._title = title
        self._loaded = loaded
        self._version = version
        self._scheduler = scheduler
        self._context = context
        self._nursery = nursery
        self._isolates = loaded.isolates and context.limiter is None
        self._seats: list[_Seat] = []
        self._identities = itertools.count(1)
        self._numbers = itertools.count(1)
        self._closing = False

    def counts(self) -> InstanceCounts:
        """How many there are; those that are not wanted any more do not count."""
        seats = [seat for seat in self._seats if not seat.leaving]
        alive = sum(seat.alive for seat in seats)
        stuck = sum(seat.alive and seat.instance is not None and seat.instance.stuck for seat in seats)
        return InstanceCounts(alive, len(seats), self._restarts, self._abandoned, stuck)

    def _works(self) -> list[_Seat]:
        """Those whose instances are alive and get work, as far as they are wanted."""
        return [seat for seat in self._seats if seat.alive and not (seat.leaving or seat.order.passive)]

    def _heirs(self, lost: _Seat) -> list[int]:
        """The seats whose instances may execute what this one was to execute alone; none when all are closed."""
        if self._closing:
            return []
        able = [seat for seat in self._seats if seat.was_up and not (seat.leaving or seat.order.passive)]
        return [seat.number for seat in able if seat is not lost]

    def trouble(self) -> str:
        """Why the instances cannot take requests as they should; empty if they can."""
        counts = self.counts()
        if counts.alive < counts.expected:
            dead = [seat for seat in self._seats if not (seat.alive or seat.leaving)]
            last = next((f"; last: {seat.death}" for seat in dead if seat.death), "")
            return f"{len(dead)} of {counts.expected} instances have died and are being restarted{last}"
        if counts.stuck and counts.stuck == len(self._works()):
            return f"all {counts.stuck} instances have been executing one batch for too long"
        return ""

    def own_checks(self) -> list[ReadinessCheck]:
        """Those of the instances that are wanted and alive."""
        instances = [seat.instance for seat in self._seats if seat.alive and not seat.leaving]
        return [each.own_check for each in instances if each is not None and each.own_check is not None]

    def nodes(self, most: int) -> list[ActorNode]:
        """The first `most` instances that are wanted, for people to look at."""
        return [seat.node() for seat in self._seats[:most] if not seat.leaving]

    def open_jobs(self) -> Iterator[Job]:
        """What its instances have begun to answer."""
        for seat in self._seats:
            if seat.instance is not None:
                yield from seat.instance.open_jobs()

    async def start(self, orders: Iterable[InstanceOrder]) -> TriremeError | None:
        """Make instances side by side.

        Returns:
            Why one of them could not be made; None if all of them are there.
        """
        return _first_error(await self._start(orders))

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
        added = await self._start(missing)
        error = _first_error(added)
        if self._closing:
            return error or stopping_error()
        unwanted = added if error is not None else [seat for at, seat in enumerate(staying) if at not in kept]
        for seat in unwanted:
            seat.unwanted.set()
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

    async def _start(self, orders: Iterable[InstanceOrder]) -> list[_Seat]:
        """New seats, when each has an instance or will have none."""
        seats = [_Seat(next(self._numbers), order) for order in orders]
        self._seats += seats
        for seat in seats:
            self._nursery.start_soon(self._keep, seat)
        for seat in seats:
            await seat.settled.wait()
        return seats

    async def _see_off(self, seat: _Seat) -> None:
        """An instance that is not wanted any more gets no new work, ends what it has begun, and goes."""
        try:
            if seat.instance is not None and not seat.instance.stopped.is_set():
                seat.instance.close(sequences_first=True)
                await seat.instance.stopped.wait()
        finally:
            self._seats.remove(seat)
            seat.gone.set()

    async def _keep(self, seat: _Seat) -> None:
        """Run an instance; bury it when it dies; start the next one."""
        options, clock = self._context.options, self._context.clock
        policy = RestartPolicy(options.restart_limit, options.restart_window_s)

        def on_started() -> None:
            seat.was_up = True
            seat.settled.set()
            policy.started(clock.now_s())

        last_words = stopping_error()
        while True:
            about = next(self._identities), seat.number, seat.order, self._loaded, self._version
            instance = seat.instance = Instance(*about, self._scheduler, self._context)
            seat.life = trio.CancelScope()
            death: Exception | None = None
            try:
                with seat.life:
                    await instance.run(on_started)
                    return
                seat.error = last_words = stopping_error()
                break
            except Exception as error:  # noqa: BLE001 - supervision: a child's crash is handled here, by policy
                death = error.with_traceback(None)  # whose frames hold all that the instance had
            finally:
                if death is None and instance.state is not InstanceState.STOPPED:
                    instance.bury(stopping_error(), died=False)
            # Not amid the handling: what is raised because of this, and kept, would refer to it.
            assert death is not None, "whatever else it is goes on to its supervisor"
            stays = seat.was_up and not (seat.leaving or self._closing)
            again = stays or bool(self._heirs(seat))
            isolates = again and self._isolates and isinstance(death, ProcessLostError)
            last_words = obituary(seat.order.spec, death)
            instance.bury(last_words, isolates=isolates)
            delay_s = self._next_step(seat, death, policy)
            if delay_s is None:
                break
            with trio.move_on_after(delay_s):
                await seat.unwanted.wait()
            if seat.leaving or self._closing:
                break
            self._restarts += 1
            seat.restarts += 1
        seat.settled.set()
        self._scheduler.mailbox.send_nowait(SeatLost(seat.number, last_words, self._heirs(seat)))

    def _next_step(self, seat: _Seat, error: Exception, policy: RestartPolicy) -> float | None:
        """What to do about a death: seconds until the restart, or None when there is none."""
        seat.death = str(error) or type(error).__name__
        if isinstance(error, InstanceHungError):
            self._abandoned += 1
        if not seat.was_up:
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
        if policy.failing and not any(other.alive and not other.order.passive for other in self._seats):
            text = f"instance '{name}' died {policy.deaths} times in a row; it is started again in {delay_s:g} s"
            logger.error("%s has no instance, and refuses what is queued: %s", self._title, text)
            error = UnavailableError(f"{text}; last: {seat.death}", refusal=RefusalReason.NO_INSTANCE)
            self._scheduler.mailbox.send_nowait(FailHeld(error))
        return delay_s


@dataclass(slots=True, eq=False)
class _Seat:
    """One instance that is wanted, over its restarts.

    Attributes:
        error: why it could not be made at all.
        death: what its instance died of last; empty if none has.
        settled: it has had its first instance, or gets none.
        was_up: it has had an instance that could execute batches.
        unwanted, gone: it is not wanted any more, and has left.
        restarts: how often it got another instance after the first.
    """

    number: int
    order: InstanceOrder
    instance: Instance | None = None
    error: TriremeError | None = None
    death: str = ""
    life: trio.CancelScope = field(default_factory=trio.CancelScope)
    settled: trio.Event = field(default_factory=trio.Event)
    was_up: bool = False
    restarts: int = 0
    unwanted: trio.Event = field(default_factory=trio.Event)
    gone: trio.Event = field(default_factory=trio.Event)

    def node(self) -> ActorNode:
        """What its instance looks like to people."""
        name, instance = self.order.spec.name, self.instance
        if instance is None:
            return ActorNode("instance", name, "starting")
        if instance.stuck:
            detail = "has been executing one batch for too long"
        elif instance.state is InstanceState.DEAD:
            detail = self.death
        else:
            detail = instance.work
        mail = instance.mailbox.statistics()
        state, box = instance.state.value, (mail.current_buffer_used, mail.max_buffer_size)
        return ActorNode("instance", name, state, detail, self.restarts, *box)

    def give_up(self) -> None:
        """End an instance that still starts."""
        if self.instance is not None and self.instance.state is InstanceState.STARTING:
            self.life.cancel()

    @property
    def leaving(self) -> bool:
        return self.unwanted.is_set()

    @property
    def alive(self) -> bool:
        return self.instance is not None and self.instance.state is InstanceState.SERVING


def _first_error(seats: Iterable[_Seat]) -> TriremeError | None:
    return next((seat.error for seat in seats if seat.error is not None), None)
