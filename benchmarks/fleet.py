"""What a decision of a gateway's router costs, by the size of the fleet: `python benchmarks/fleet.py`.

As many requests as there are replicas (ten at least) are placed, then settled, and so on: requests without a key, with
sticky keys (a tenth of them new), and of sequences of ten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from trireme.engine.fleet.router import FleetRouter
from trireme.engine.fleet.types import AttemptEnd, FleetRequest, FleetSettings, ModelLoad, ReplicaReport, SendTo

REQUESTS = 100_000
SIZES = (1, 10, 100, 1_000)


def make_router(replicas: int) -> FleetRouter:
    """All of them have reported, with some load."""
    router = FleetRouter(FleetSettings(stale_s=1e9, silent_s=1e9), Random(1))
    models = {"m": {1: True}}
    for number in range(replicas):
        name = f"replica-{number}"
        router.join(name, -1e6)
        router.connected(name, -1e6)
        router.report(name, ReplicaReport(str(number), models=models, loads={"m": ModelLoad(number % 5, 0.001)}), 0.0)
    router.tick(0.0)
    return router


def measure(replicas: int, make: Callable[[int], FleetRequest]) -> tuple[float, float]:
    """µs of CPU of a request: to place it, and to settle it. The least of three tries, since others are at work."""
    tries = [_try(make_router(replicas), [make(number) for number in range(REQUESTS)], replicas) for _ in range(3)]
    return min(place for place, _ in tries), min(settle for _, settle in tries)


def _try(router: FleetRouter, requests: list[FleetRequest], replicas: int) -> tuple[float, float]:
    place_s = settle_s = 0.0
    clock = time.process_time
    size = max(replicas, 10)
    for first in range(0, REQUESTS, size):
        begun_s = clock()
        decisions = [router.place(request, 1.0) for request in requests[first : first + size]]
        placed_s = clock()
        for decision in decisions:
            assert isinstance(decision, SendTo), "there is room"
            router.settle(decision, AttemptEnd.ANSWERED, 1.0)
        place_s += placed_s - begun_s
        settle_s += clock() - placed_s
    return place_s / REQUESTS * 1e6, settle_s / REQUESTS * 1e6


def main() -> None:
    kinds: dict[str, Callable[[int], FleetRequest]] = {
        "no key": lambda _number: FleetRequest("m"),
        "sticky keys": lambda number: FleetRequest("m", sticky=b"%d" % (number % (REQUESTS // 10))),
        "sequences": lambda number: FleetRequest(
            "m", sequence=1 + number % (REQUESTS // 10), start=number < REQUESTS // 10, end=number >= REQUESTS * 9 // 10
        ),
    }
    print(f"{'replicas':>12}" + "".join(f"{size:>14}" for size in SIZES) + "    µs to place + to settle")
    for title, make in kinds.items():
        costs = [measure(size, make) for size in SIZES]
        print(f"{title:>12}" + "".join(f"{place:>8.2f} +{settle:>4.1f}" for place, settle in costs), flush=True)


if __name__ == "__main__":
    main()
