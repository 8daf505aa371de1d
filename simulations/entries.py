"""How requests get into the server: what front ends do beside handing over a request that is there in one piece.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import trio

from ..actors.budget import Lease
from ..actors.facade import Facade
from ..engine.description import ModelDescription
from ..engine.errors import TriremeError, UnavailableError
from .clock import JumpingClock
from .graphs import Graphs
from .plan import Plan, RequestPlan
from .workloads import WayIn

SHARE = 0.4
"""Of the runs."""

CLIENTS = 3
"""Addresses that bodies arrive from."""

VALUE_BYTES = 4

GONE = "the server is gone, and the connection with it"


ARRIVING = (WayIn.NAMED, WayIn.UNNAMED)
WAYS = (WayIn.WHOLE, WayIn.DESCRIBED, WayIn.ASKED, *ARRIVING)
"""Those of front ends."""


def entered(plan: Plan) -> Plan:
    """The plan, some of whose requests get in by other ways. In some of these runs there is little room for bytes. What
    belongs to sequences arrives at once, or it would come in another order."""
    chance = Random(f"entries {plan.seed}")
    if chance.random() >= SHARE:
        return plan
    graphs = Graphs(plan)
    times_ns = {model.name: 0 if graphs.is_stateful(model) else model.fixed_ns for model in plan.models}
    ways = chance.sample(WAYS, chance.randint(1, 3))
    rate = chance.uniform(0.2, 1.0)
    longest = math.exp(chance.uniform(math.log(0.05), math.log(5.0)))

    def drawn(request: RequestPlan) -> RequestPlan:
        if chance.random() >= rate:
            return request
        entry, takes_ns = chance.choice(ways), round(chance.uniform(0.0, longest) * times_ns.get(request.model, 0))
        return replace(request, entry=entry, arrival_ns=takes_ns if entry in ARRIVING else 0)

    nbytes = round(math.exp(chance.uniform(math.log(400), math.log(8_000)))) if chance.random() < 0.3 else 0
    return replace(plan, requests=tuple([drawn(request) for request in plan.requests]), max_inflight_bytes=nbytes)


class Entrance:
    """Takes requests to the server in these ways."""

    def __init__(self, plan: Plan, server: Facade, clock: JumpingClock) -> None:
        self._server = server
        self._clock = clock
        self._inputs = {model.name: model.inputs for model in plan.models}
        self._described: dict[str, ModelDescription] = {}
        self._arriving: list[trio.CancelScope] = []
        self._is_gone = False

    def description(self, request: RequestPlan) -> ModelDescription | None:
        """What the server said of the request's model the last time that it was asked; some requests ask anew."""
        if request.entry is not WayIn.DESCRIBED:
            return None
        if request.model not in self._described or request.number % 8 == 0:
            try:
                self._described[request.model] = self._server.describe(request.model)
            except TriremeError:
                return None
        return self._described[request.model]

    def ask(self, request: RequestPlan) -> None:
        """Ask whether there is room, if the plan wants that.

        Raises:
            TriremeError: there is none, or no such model.
        """
        if request.entry is WayIn.ASKED:
            self._server.check_room(request.model)

    async def arrive(self, request: RequestPlan) -> Lease | None:
        """The lease of a request whose body arrives in parts, once it is there. Some turn out to be larger than was
        said.

        Raises:
            TriremeError: refused, or the server is gone.
        """
        if request.entry not in ARRIVING:
            return None
        if self._is_gone:
            raise UnavailableError(GONE)
        nbytes = request.rows * request.width * VALUE_BYTES * self._inputs.get(request.model, 1)
        said = nbytes // 2 if request.number % 3 == 0 else nbytes
        name = request.model if request.entry is WayIn.NAMED else ""
        lease = self._server.lease(name, client=f"client {request.number % CLIENTS}")
        arrived, scope = False, trio.CancelScope()
        self._arriving.append(scope)
        try:
            with scope:
                await lease.grow(said // 2)
                await self._clock.sleep(request.arrival_ns / 1e9)
                await lease.grow(said - said // 2)
                arrived = True
        finally:
            self._arriving.remove(scope)
            if not arrived:
                lease.close()
        if scope.cancelled_caught:
            raise UnavailableError(GONE)
        lease.arrived()
        return lease

    def hang_up(self) -> None:
        """Give up all bodies that are not complete."""
        self._is_gone = True
        for scope in self._arriving:
            scope.cancel()
