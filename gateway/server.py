"""The gateway, as front ends know it (`actors.facade.Facade`): what `api/` asks for is done by replicas.

Rules:
 1. A request is described by what replicas have reported, takes its share of the gateway's own budget, and is placed by
    the router (`engine.fleet.router`). It waits for a replica if the router says so; what waits holds its share of the
    budget, so nothing is unbounded. Its tensors are sent as they came.
 2. What a replica answers goes to the client as it is, errors too, unless the router sends the request to another
    replica: it surely was not executed then.
 3. A client that gives up takes its request with it: at the replica, too.
 4. Of a model that answers many times, answers come as fast as the client takes them (`FleetCredit`).
 5. Everything that is told by links is told in turns, and so is what the router has to say when time has passed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import trio

from ..actors.access_gate import LocalAccess
from ..actors.actor import Actor, Turn
from ..actors.budget import InflightBudget, Lease
from ..actors.offload import Offload
from ..actors.reply import HeldPlace, Reply
from ..actors.socket_readiness import Readiness
from ..engine.admission.budget import BudgetStatistics
from ..engine.admission.client_bytes import ClientAccounts
from ..engine.admission.shares import ModelShare, part_of_bodies
from ..engine.clock import Clock
from ..engine.description import ModelDescription
from ..engine.errors import RefusalReason, TriremeError, UnavailableError, UnsupportedError, request_prefix
from ..engine.fleet.router import FleetRouter
from ..engine.fleet.types import AttemptEnd, FleetDecision, Refuse, SendTo
from ..engine.memory.regions import Regions, RegionSlice
from ..engine.metrics.refusals import RefusalCounts, reason_to_count
from ..engine.options import ServerOptions
from ..engine.request import LATEST, InferenceRequest
from ..engine.tracing import Tracer
from ..engine.tracing.tracer import TracedReply
from ..engine.validation import RequestValidator
from .in_flight import FleetCall
from .management import NO_REGIONS, FleetManagement
from .models import FleetModels
from .replicas import Replica, StartLink

logger = logging.getLogger("trireme.gateway")

SEQUENCES_LIMIT_S = 60.0
"""How long sequences may go on at a replica that leaves the fleet."""

IN_FLIGHT_LIMIT_S = 60.0
"""How long then what is in flight there may take."""

_NEVER_S = math.inf


class FleetRegions(Regions):
    """No shared memory."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def slice(self, name: str, offset: int, byte_size: int) -> RegionSlice:
        raise UnsupportedError(NO_REGIONS, refusal=RefusalReason.INVALID)


class RouterTimer(Actor[None]):
    """Takes a turn when the router has something to say."""

    def __init__(self, turn: Turn, due: Callable[[], None]) -> None:
        super().__init__("the router of the fleet", turn)
        self._due = due

    def receive(self, message: None) -> None:
        """It has no mail."""

    def act(self) -> None:
        self.deadline_s = math.inf
        self._due()


class FleetServer:
    """See `Facade`. All but `management` is for the event loop's thread.

    Args:
        options: `server_id`, `max_inflight_requests`, `max_inflight_bytes`, `address_share` and `tensor_limits` count.
        start_link: makes the link to a replica, which tells a `Replica`.
        access: decides who may make which call; None if anyone may.

    Attributes:
        replicas: those of the fleet, by name, and those that have left it and have something in flight.
        draining: it says that it is not ready, and serves what comes.
    """

    passes_on = True

    def __init__(
        self,
        router: FleetRouter,
        turn: Turn,
        readiness: Readiness,
        offload: Offload,
        options: ServerOptions,
        tracer: Tracer,
        clock: Clock,
        start_link: StartLink,
        access: LocalAccess | None = None,
    ) -> None:
        self.router = router
        self.turn = turn
        self.readiness = readiness
        self.offload = offload
        self.options = options
        self.tracer = tracer
        self.clock = clock
        self.access = access
        self.exiting = self.draining = False
        self.models = FleetModels()
        self.shared_memory: Regions = FleetRegions()
        self.refusals = RefusalCounts()
        give_up = partial(self.refusals.count, RefusalReason.CLIENT_BYTES)
        self.client_accounts = ClientAccounts.of(options.max_inflight_bytes, options.address_share, give_up)
        self.replicas: dict[str, Replica] = {}
        self.management = FleetManagement(self)
        self._changed = trio.Event()
        self._budget = InflightBudget(
            options.max_inflight_requests, options.max_inflight_bytes, part_of_bodies(options.address_share)
        )
        self._shares: dict[str, ModelShare] = {}
        self._start_link = start_link
        self._waiting: dict[FleetCall, None] = {}
        self._in_flight = 0  # requests, those that wait included
        self._idle = trio.lowlevel.ParkingLot()
        self._timer = RouterTimer(turn, self._tick)
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the links, and serve, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.management.late.run)
            task_status.started()
            await self._timer.run()

    # What `api/` asks: see `Facade`.

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        return self.models.found.get((name, version)) or self.models.describe(name, version)

    def with_adapter(self, adapter: str) -> list[ModelDescription]:
        return self.models.with_adapter(adapter)

    def lease(self, name: str = "", version: int = LATEST, client: str = "") -> Lease:
        return self._budget.lease(self._share(name) if name in self.models else None, client)

    def note_refusal(self, why: TriremeError | RefusalReason, name: str = "", version: int | None = LATEST) -> None:
        reason = reason_to_count(why)
        if reason is not None:
            self.refusals.count(reason)

    def check_room(self, name: str, version: int = LATEST) -> None:
        if not self.exiting:
            self.models.describe(name, version)
            share = self._share(name)
            if self._budget.full(share):
                raise share.refusal()

    def admit_nowait(
        self, request: InferenceRequest, *, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply | None:
        try:
            received_ns = 0 if request.trace is None else self.clock.now_ns()
            if model is None or self.exiting or request.raw_input is not None:
                model = self._find(request, model)
            share = self._shares.get(request.model_name) or self._share(request.model_name)
            nbytes = _nbytes(request)
            budget = self._budget
            if not (budget.take_nowait(share, nbytes) if lease is None else budget.admit_nowait(lease, share, nbytes)):
                return None
            return self._hand_in(request, model, share if lease is None else lease, nbytes, received_ns)
        except TriremeError:
            if lease is not None:
                lease.close()
            raise

    async def admit(
        self, request: InferenceRequest, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply:
        received_ns = self.clock.now_ns()
        with ExitStack() as undo:
            if lease is not None:
                undo.callback(lease.close)
            found = self._find(request, model)
            share = self._share(request.model_name)
            nbytes = _nbytes(request)

            def hand_in(_waited: bool) -> Reply:
                with ExitStack() as release:
                    holder = share if lease is None else lease
                    release.callback(holder.release, nbytes)
                    now = self._find(request, found)
                    release.pop_all()
                return self._hand_in(request, now, holder, nbytes, received_ns)

            budget = self._budget
            taking = budget.admit(lease, share, nbytes, hand_in) if lease else budget.take(share, nbytes, hand_in)
            reply = await taking
            undo.pop_all()
        return reply

    def _find(self, request: InferenceRequest, model: ModelDescription | None) -> ModelDescription:
        if self.exiting and not (request.correlation_id and not request.sequence_start):
            raise UnavailableError(
                f"{request_prefix(request.id)}Server is stopping, scheduler for model has stopped accepting new "
                "inference requests",
                refusal=RefusalReason.STOPPING,
            )
        model = model or self.models.describe(request.model_name, request.model_version)
        if request.raw_input is not None:  # gRPC has no such requests
            request.inputs = [RequestValidator(model.config).deduce(request, request.raw_input)]
            request.raw_input = None
        return model

    def _share(self, name: str) -> ModelShare:
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = self._budget.share(name)
        return share

    def _hand_in(
        self,
        request: InferenceRequest,
        model: ModelDescription,
        holder: ModelShare | Lease,
        nbytes: int,
        received_ns: int,
    ) -> Reply:
        """Place a request that has its share of the budget."""
        place: HeldPlace = holder
        if request.caller is not None and self.access is not None:
            place = self.access.admit(request.caller, nbytes, holder)
        now_s = self.clock.now_s()
        deadline_s = now_s + request.timeout_us / 1e6 if request.timeout_us else _NEVER_S
        call = FleetCall(self, request, model, received_ns, deadline_s, place, nbytes)
        if request.trace is not None:
            TracedReply(request.trace, cast(Any, call), self.clock)
        self._in_flight += 1
        self.follow(self.router.place(call, now_s), call)
        return call

    # Requests on their way.

    def follow(self, decision: FleetDecision, call: FleetCall) -> None:
        """Do what the router has decided."""
        if isinstance(decision, SendTo):
            replica = self.replicas.get(decision.replica)
            assert replica is not None, "the router knows replicas of the fleet only"
            call.send(decision, replica)
            if not replica.link.has_room():
                self.router.room(decision.replica, False, self.clock.now_s())
        elif isinstance(decision, Refuse):
            call.refuse(decision.error)
        else:
            self._waiting[call] = None
        if self.router.due_s < _NEVER_S:
            self.look_ahead()

    def settle(self, sent: SendTo, end: AttemptEnd) -> FleetDecision | None:
        """Tell the router how it ended; see `FleetRouter.settle`."""
        decision = self.router.settle(sent, end, self.clock.now_s())
        if self.router.due_s < _NEVER_S:
            self.look_ahead()
        return decision

    def cancel_waiting(self, call: FleetCall) -> None:
        """A request is given up that waits."""
        self._waiting.pop(call, None)
        self.router.cancel(call, self.clock.now_s())
        self.look_ahead()

    def forget(self, call: FleetCall) -> None:
        """A request is over; told once of each."""
        self._in_flight -= 1
        if self.exiting and not self._in_flight:
            self._idle.unpark_all()

    def look_ahead(self) -> None:
        """Something has changed for the router."""
        due_s = self.router.due_s
        if due_s == _NEVER_S:
            return
        if due_s < self._timer.deadline_s:
            self._timer.deadline_s = due_s
        if due_s <= self.clock.now_s():
            self.turn.post(self._timer)

    def _tick(self) -> None:
        now_s = self.clock.now_s()
        while self.router.due_s <= now_s:
            decisions = self.router.tick(now_s)
            for decision in decisions:
                call = decision.request
                if isinstance(call, FleetCall) and call in self._waiting:
                    del self._waiting[call]
                    self.follow(decision, call)
            if not decisions:
                break
        self._timer.deadline_s = self.router.due_s

    # The fleet.

    async def join(self, name: str, address: str, weight: float) -> None:
        """A replica is part of the fleet, or has another weight or address."""
        replica = self.replicas.get(name)
        if replica is not None and replica.address != address:
            self._retire(replica, IN_FLIGHT_LIMIT_S)
            replica = None
        with self.turn:
            self.router.join(name, self.clock.now_s(), weight)
        if replica is None:
            replica = self.replicas[name] = Replica(self, name, address)
            await self._nursery.start(replica.run, self._start_link)
        with self.turn:
            if replica.leaving:
                replica.leaving = False
                replica.tell_router()
            self.look_ahead()

    def leave(self, name: str, limit_s: float = SEQUENCES_LIMIT_S) -> None:
        """A replica leaves the fleet: it gets nothing new, and what it has goes on.

        Args:
            limit_s: how long sequences may go on there; if it leaves already, no longer than that.
        """
        replica = self.replicas[name]
        by_s = trio.current_time() + limit_s
        if replica.leaving:
            replica.sequences_scope.deadline = min(replica.sequences_scope.deadline, by_s)
            return
        with self.turn:
            replica.leaving = True
            replica.tell_router()
        replica.sequences_scope = trio.CancelScope(deadline=by_s)
        self._nursery.start_soon(self._leave, replica, replica.sequences_scope)

    async def _leave(self, replica: Replica, scope: trio.CancelScope) -> None:
        def has_changed() -> bool:
            """It is gone, or has joined again, and may have left again since."""
            return replica.gone or not replica.leaving or replica.sequences_scope is not scope

        with scope:
            await self.until(lambda: has_changed() or self._is_idle(replica))
        if not has_changed():
            self._retire(replica, IN_FLIGHT_LIMIT_S)

    def _is_idle(self, replica: Replica) -> bool:
        return not (replica.sent or self.router.sequences_at(replica.name))

    def _retire(self, replica: Replica, limit_s: float) -> None:
        """Nothing goes to a replica any more; in time what is in flight there is over."""
        with self.turn:
            replica.gone = replica.leaving = True
            self.router.leave(replica.name, self.clock.now_s())
            self.models.forget(replica.name)
            del self.replicas[replica.name]
            self.tell_change()
            self.look_ahead()
        self._nursery.start_soon(self._close, replica, limit_s)

    async def _close(self, replica: Replica, limit_s: float) -> None:
        with trio.move_on_after(limit_s):
            await self.until(lambda: not replica.sent)
        replica.close()

    def heard_anew(self) -> None:
        """A replica reports for the first time since it was connected, or began anew."""
        self.management.late.look()

    def tell_change(self) -> None:
        """What is known of the models, or of the replicas, may have changed."""
        event, self._changed = self._changed, trio.Event()
        event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true of the models or replicas."""
        while not condition():
            await self._changed.wait()

    @property
    def members(self) -> Mapping[str, Replica]:
        """The replicas that belong to the fleet."""
        return {name: replica for name, replica in self.replicas.items() if not replica.leaving}

    def ready(self) -> bool:
        """Whether some replica serves."""
        return not (self.draining or self.exiting) and any(each.serves for each in self.members.values())

    def begin_drain(self) -> None:
        """See `InferenceServer.begin_drain`."""
        self.draining = True

    async def stop(self, timeout_s: float) -> bool:
        """Stop accepting, and wait until what is in flight is answered; whether that was in time."""
        self.exiting = True
        with trio.move_on_after(max(0.0, timeout_s)):
            while self._in_flight:
                await self._idle.park()
        return not self._in_flight

    @property
    def waiting(self) -> int:
        """Requests that wait for a replica."""
        return len(self._waiting)

    def budget_statistics(self) -> BudgetStatistics:
        return self._budget.statistics()

    def __repr__(self) -> str:
        state = "exiting" if self.exiting else "serving"
        return f"<FleetServer {state}: {len(self.replicas)} replicas, {self._in_flight} requests>"


def _nbytes(request: InferenceRequest) -> int:
    inputs = request.inputs
    return inputs[0].nbytes if len(inputs) == 1 else sum([tensor.nbytes for tensor in inputs])
