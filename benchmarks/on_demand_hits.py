"""What do loads cost the requests whose models are in memory? (docs/on_demand.md)

    python benchmarks/on_demand_hits.py [--loads 0 1 5 10 25] [--hits 100] [--seconds 20] [--alternations 3]

Serves the 1,000 models of `on_demand.py` with memory for 50, and beside it, by a second server, 50 of them that stay.
Half of the 50 get `--hits` requests a second, over HTTP and gRPC in turn, by tritonclient. Beside these come requests
for models that are not in memory, so many a second as there are to be loads; the second server gets as many for the
other half of its models. Said are p50, p90 and p99 of hits, for each number of loads a second and each server, which
alternate.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from on_demand import FILE_BYTES, FLAGS, WIDTH, metric, quantile, write_repository
from servers import Server, machine, trireme

HITTERS, LOADERS = 4, 8
PARTS = (0.5, 0.9, 0.99)
LOADS = "trireme_on_demand_loads_total"


class Pace:
    """Requests at a steady rate, by several threads.

    Args:
        names: the models, in order.

    Attributes:
        took_s: how long each took.
        errors: of those that failed.
    """

    def __init__(self, server: Server, names: Iterator[str], rate: float, seconds: float, threads: int) -> None:
        self.took_s: list[float] = []
        self.errors: list[str] = []
        self._numbers = itertools.count()
        self._names = names
        self._rate = rate
        self._count = round(rate * seconds)
        self._begin_s = time.perf_counter() + 0.1
        protocols = [(tritonclient.http, server.url), (tritonclient.grpc, server.grpc_url)]
        self._threads = [threading.Thread(target=self._work, args=protocols[each % 2]) for each in range(threads)]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()

    def _work(self, protocol: Any, url: str) -> None:
        client = protocol.InferenceServerClient(url)
        tensor = protocol.InferInput("INPUT0", [1, WIDTH], "FP32")
        tensor.set_data_from_numpy(np.ones((1, WIDTH), np.float32))
        while (number := next(self._numbers)) < self._count:
            time.sleep(max(0.0, self._begin_s + number / self._rate - time.perf_counter()))
            since_s = time.perf_counter()
            try:
                client.infer(next(self._names), [tensor])
            except (tritonclient.http.InferenceServerException, OSError) as error:
                self.errors.append(str(error))
            self.took_s.append(time.perf_counter() - since_s)
        client.close()


def play(server: Server, hot: Sequence[str], others: Iterator[str], loads: float, options: Any) -> list[float]:
    """How long each hit took, in seconds."""
    hits = Pace(server, itertools.cycle(hot), options.hits, options.seconds, HITTERS)
    beside = Pace(server, others, loads, options.seconds, LOADERS) if loads else None
    for pace in (hits, beside):
        if pace is not None:
            pace.wait()
            if pace.errors:
                sys.exit(f"{len(pace.errors)} requests failed; first: {pace.errors[0]}")
    return hits.took_s


def main() -> None:
    """The measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=1_000)
    parser.add_argument("--room", type=int, default=50)
    parser.add_argument("--loads", type=float, nargs="*", default=[0, 1, 5, 10, 25], help="a second")
    parser.add_argument("--hits", type=float, default=100, help="requests a second for models in memory")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--flags", default="", help="more flags of the server with models on demand")
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)  # else one client's thread waits for another's
    room, half = options.room, options.room // 2
    limit = ("--model-memory-limit", str(room * (FILE_BYTES + 4_096)))
    most = itertools.chain.from_iterable(("--load-model", f"m{number}") for number in range(room))
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        write_repository(models, options.models)
        on_demand = ("--model-control-mode", "on-demand", *limit, *options.flags.split())
        with (
            trireme(models, *on_demand, *FLAGS, grpc=True) as first,
            trireme(models, "--model-control-mode", "explicit", *most, *FLAGS, grpc=True) as second,
        ):
            measure(first, second, [f"m{number}" for number in range(half)], options)


def measure(on_demand: Server, beside: Server, hot: Sequence[str], options: Any) -> None:
    """Print a row for each number of loads a second."""
    cold = itertools.cycle(f"m{number}" for number in range(options.room, options.models))
    warm = itertools.cycle(f"m{number}" for number in range(len(hot), options.room))
    sides: list[tuple[Server, Callable[[float], list[float]]]] = [
        (on_demand, lambda loads: play(on_demand, hot, cold, loads, options)),
        (beside, lambda loads: play(beside, hot, warm, loads, options)),
    ]
    print(machine())
    for _, run in sides:
        run(5.0)
    for loads in options.loads:
        found: list[list[list[float]]] = [[], []]
        before, cpu_s = metric(on_demand, LOADS), [0.0, 0.0]
        for _ in range(options.alternations):
            for at, (server, run) in enumerate(sides):
                since_s = server.cpu_s()
                took_s = run(loads)
                cpu_s[at] += server.cpu_s() - since_s
                found[at].append([quantile(took_s, part) for part in PARTS])
        seconds = options.seconds * options.alternations
        rate = (metric(on_demand, LOADS) - before) / seconds
        texts = [
            " / ".join(f"{statistics.median(each[at] for each in runs):.2f}" for at in range(len(PARTS)))
            for runs in found
        ]
        tails = [", ".join(f"{each[-1]:.2f}" for each in runs) for runs in found]
        print(
            f"{rate:.1f} loads a second: hits {texts[0]} ms, with models that stay {texts[1]} ms; p99 of each run",
            end="",
        )
        print(f" {tails[0]} and {tails[1]}; CPU {cpu_s[0] / seconds:.1%} and {cpu_s[1] / seconds:.1%}")


if __name__ == "__main__":
    main()
