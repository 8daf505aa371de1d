"""What a decision of a gateway's router costs, by the size of the fleet: `python benchmarks/fleet.py`.

In a closed loop with as many requests in flight as there are replicas: requests without a key, with sticky keys (a
tenth of them new), and of sequences of ten.
"""

from __future__ import annotations

import time
from collections import deque
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


def measure(replicas: int, make: Callable[[int], FleetRequest]) -> float:
    """µs of a request: to place it, and to settle it."""
    router = make_router(replicas)
    requests = [make(number) for number in range(REQUESTS)]
    in_flight: deque[SendTo] = deque()
    begun_s = time.perf_counter()
    for request in requests:
        decision = router.place(request, 1.0)
        if isinstance(decision, SendTo):
            in_flight.append(decision)
        if len(in_flight) >= replicas:
            router.settle(in_flight.popleft(), AttemptEnd.ANSWERED, 1.0)
    return (time.perf_counter() - begun_s) / REQUESTS * 1e6


def main() -> None:
    kinds: dict[str, Callable[[int], FleetRequest]] = {
        "no key": lambda _number: FleetRequest("m"),
        "sticky keys": lambda number: FleetRequest("m", sticky=b"%d" % (number % (REQUESTS // 10))),
        "sequences": lambda number: FleetRequest(
            "m", sequence=1 + number % (REQUESTS // 10), start=number < REQUESTS // 10, end=number >= REQUESTS * 9 // 10
        ),
    }
    print(f"{'replicas':>12}" + "".join(f"{size:>10}" for size in SIZES))
    for title, make in kinds.items():
        print(f"{title:>12}" + "".join(f"{measure(size, make):>7.2f} µs" for size in SIZES))


if __name__ == "__main__":
    main()
