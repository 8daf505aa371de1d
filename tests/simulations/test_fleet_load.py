"""How even the load of a simulated fleet is."""

from __future__ import annotations

import math
from random import Random

import pytest

from trireme.engine.fleet.router import FleetRouter
from trireme.engine.fleet.types import FleetRequest, FleetSettings
from trireme.simulations.fleet.events import Calendar
from trireme.simulations.fleet.gateways import SimulatedGateway
from trireme.simulations.fleet.replicas import MODEL, ClientAsk, SimulatedReplica

SERVICE_S = 0.01


@pytest.mark.parametrize("gateways", [1, 3])
def test_load_is_within_a_fifth_of_even_while_a_tenth_of_the_reports_is_late(gateways: int) -> None:
    """Also with gateways that know of each other's requests by reports only."""
    replicas, requests = 10, 5_000
    draw, calendar, answers, complaints = Random(1), Calendar(), [], []
    servers = [SimulatedReplica(f"r{number}", calendar, draw, SERVICE_S, 1, 10_000) for number in range(replicas)]
    doors = [
        SimulatedGateway(
            FleetRouter(FleetSettings(slow_start_s=0.0), Random(number)), calendar, draw, complaints.append, 0.1
        )
        for number in range(gateways)
    ]
    for door in doors:
        door.late_reports = 0.1
        for server in servers:
            door.join(server)

    def arrive(left: int) -> None:
        if left:
            calendar.after(draw.expovariate(0.6 * replicas / SERVICE_S), arrive, left - 1)
            draw.choice(doors).submit(ClientAsk(FleetRequest(MODEL), then=answers.append))

    calendar.at(1.0, arrive, requests)
    calendar.run(math.inf, lambda: len(answers) < requests)
    assert {ask.answer for ask in answers} == {"ok"}
    assert not complaints
    even = requests / replicas
    assert 0.8 * even <= min(server.executed for server in servers)
    assert max(server.executed for server in servers) <= 1.2 * even
