"""A simulated fleet under load, without faults of its own: how even the load is, how long requests take, and what
becomes of them when a replica is lost. Requests come at random, at any of the gateways."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from ...engine.fleet.router import FleetRouter
from ...engine.fleet.types import FleetRequest, FleetSettings
from .events import Calendar
from .gateways import SimulatedGateway
from .replicas import MODEL, ClientAsk, SimulatedReplica

SERVICE_S = 0.01
INTERVAL_S = 0.1
BEGIN_S = 1.0


class FleetUnderLoad:
    """Replicas with one instance that takes 5 to 15 ms. They report each 100 ms, a tenth of it up to 500 ms late.

    Args:
        load: how much is asked for, as a part of what all replicas can do.
        hot: which part of the requests has the same sticky key.
        slow_start_s: see `FleetSettings`.
    """

    def __init__(
        self, replicas: int, gateways: int, seed: int, *, load: float = 0.6, hot: float = 0.0, slow_start_s: float = 0.0
    ) -> None:
        self.calendar = Calendar()
        self._draw = draw = Random(seed)
        self._rate = load * replicas / SERVICE_S
        self._hot = hot
        settings = FleetSettings(slow_start_s=slow_start_s)
        self.servers = [
            SimulatedReplica(f"r{number}", self.calendar, draw, SERVICE_S, 1, 10_000) for number in range(replicas)
        ]
        self.gateways = [
            SimulatedGateway(FleetRouter(settings, Random(number)), self.calendar, draw, _complain, INTERVAL_S)
            for number in range(gateways)
        ]
        for gateway in self.gateways:
            gateway.late_reports = 0.1
            for server in self.servers:
                gateway.join(server)

    def play(self, requests: int, answered: Callable[[ClientAsk], None]) -> None:
        """So many requests, from `BEGIN_S` on, to their answers."""
        self._left = self._open = requests
        self._answered = answered
        self.calendar.at(BEGIN_S, self._arrive)
        self.calendar.run(math.inf, lambda: self._open > 0)

    def _arrive(self) -> None:
        draw = self._draw
        self._left -= 1
        if self._left:
            self.calendar.after(draw.expovariate(self._rate), self._arrive)
        sticky = b"hot" if draw.random() < self._hot else None
        draw.choice(self.gateways).submit(ClientAsk(FleetRequest(MODEL, sticky=sticky), then=self._end))

    def _end(self, ask: ClientAsk) -> None:
        self._open -= 1
        self._answered(ask)

    def lose(self, server: SimulatedReplica, for_s: float) -> None:
        """Its process is killed, and started again after a while."""
        server.kill()
        for gateway in self.gateways:
            self.calendar.after(0.002 * self._draw.random(), gateway.links[server.name].lose)
        self.calendar.after(for_s, server.start)

    def cut(self, server: SimulatedReplica, for_s: float, notice_s: float) -> None:
        """Nothing gets through to it, which all notice after a while."""
        for gateway in self.gateways:
            link = gateway.links[server.name]
            link.cut = True
            self.calendar.after(notice_s, link.lose)
            self.calendar.after(for_s, setattr, link, "cut", False)


def _complain(text: str) -> None:
    raise AssertionError(text)
