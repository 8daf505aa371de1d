"""How even the load of a simulated fleet is: `python benchmarks/fleet_load.py [--replicas 1000] [--requests 1000000]`.

Gateways with the router of the real kind, replicas with one instance that takes 5 to 15 ms, reports each 100 ms, of
which a tenth is up to 500 ms late; 60 % of what the fleet could do is asked for. With hot keys half of the requests
have the same sticky key. Times are virtual.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from random import Random

from trireme.engine.fleet.router import FleetRouter
from trireme.engine.fleet.types import FleetRequest, FleetSettings
from trireme.simulations.fleet.events import Calendar
from trireme.simulations.fleet.gateways import SimulatedGateway
from trireme.simulations.fleet.replicas import MODEL, ClientAsk, SimulatedReplica

SERVICE_S = 0.01
INTERVAL_S = 0.1
LOAD = 0.6


def complain(text: str) -> None:
    raise AssertionError(text)


def play(replicas: int, gateways: int, requests: int, hot: float) -> Iterator[str]:
    """One run, and what came of it."""
    draw, calendar = Random(1), Calendar()
    servers = [SimulatedReplica(f"r{n}", calendar, draw, SERVICE_S, 1, 10_000) for n in range(replicas)]
    doors = [
        SimulatedGateway(FleetRouter(FleetSettings(slow_start_s=0.0), Random(n)), calendar, draw, complain, INTERVAL_S)
        for n in range(gateways)
    ]
    for door in doors:
        door.late_reports = 0.1
        for server in servers:
            door.join(server)
    latencies: list[float] = []
    rate, left = LOAD * replicas / SERVICE_S, requests

    def answered(ask: ClientAsk) -> None:
        assert ask.answer == "ok", ask.answer
        latencies.append(calendar.now_s - ask.submitted_s)

    def arrive() -> None:
        nonlocal left
        left -= 1
        if left:
            calendar.after(draw.expovariate(rate), arrive)
        sticky = b"hot" if draw.random() < hot else None
        draw.choice(doors).submit(ClientAsk(FleetRequest(MODEL, sticky=sticky), then=answered))

    calendar.at(1.0, arrive)
    calendar.run(math.inf, lambda: len(latencies) < requests)
    counts, mean = [server.executed for server in servers], requests / replicas
    latencies.sort()
    yield f"{replicas:>8} {gateways:>8} {hot:>5.0%} {min(counts) / mean:>9.2f} {max(counts) / mean:>9.2f}"
    yield "".join(f"{latencies[int(part * len(latencies))] * 1e3:>9.1f}" for part in (0.5, 0.99, 0.999))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--hot", type=float, nargs="+", default=[0.0, 0.5])
    options = parser.parse_args()
    print("replicas gateways   hot least/mean most/mean   p50 ms   p99 ms p99.9 ms")
    for gateways in options.gateways:
        for hot in options.hot:
            print("".join(play(options.replicas, gateways, options.requests, hot)), flush=True)


if __name__ == "__main__":
    main()
