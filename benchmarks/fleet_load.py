"""How even the load of a simulated fleet is: `python benchmarks/fleet_load.py [--replicas 1000] [--requests 1000000]`.

Gateways with the router of the real kind, replicas with one instance that takes 5 to 15 ms, reports each 100 ms, of
which a tenth is up to 500 ms late; 60 % of what the fleet could do is asked for. With hot keys half of the requests
have the same sticky key. Times are virtual.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from trireme.simulations.fleet.load import FleetUnderLoad
from trireme.simulations.fleet.replicas import ClientAsk


def play(replicas: int, gateways: int, requests: int, hot: float) -> Iterator[str]:
    """One run, and what came of it."""
    fleet = FleetUnderLoad(replicas, gateways, seed=1, hot=hot)
    latencies: list[float] = []

    def answered(ask: ClientAsk) -> None:
        assert ask.answer == "ok", ask.answer
        latencies.append(fleet.calendar.now_s - ask.submitted_s)

    fleet.play(requests, answered)
    counts, mean = [server.executed for server in fleet.servers], requests / replicas
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
