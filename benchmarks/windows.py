"""One server under one load, with something switched on and off meanwhile: what a server does with it, and without.

Two processes of one server differ by more than many a feature costs. So windows of one server stand side by side, in
the order `0110 0110`: each window with the feature has one without next to it.
"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.loop import Load, put_load
from servers import Server

ORDER = (False, True, True, False, False, True, True, False)
"""Whether it is on, window by window."""
SETTLE_S = 0.1
"""Before a window, after it was switched."""


@dataclass(frozen=True)
class Window:
    """What a server did for a while.

    Attributes:
        throughput: requests a second.
        cpu_ms: a second.
        request_us: CPU time a request.
    """

    on: bool
    throughput: float
    cpu_ms: float

    @property
    def request_us(self) -> float:
        return 1e3 * self.cpu_ms / self.throughput


def round_of_windows(
    server: Server, model: str, seconds: float, switched: Callable[[bool], AbstractContextManager[object]]
) -> list[Window]:
    """The windows of `ORDER`, under whatever load there is.

    Args:
        model: whose requests are counted.
        switched: has it on, or off, inside of its block.
    """
    windows = []
    for on in ORDER:
        with switched(on):
            time.sleep(SETTLE_S)
            windows.append(_look(server, model, on, seconds))
    return windows


def report(rounds: Sequence[Sequence[Window]], on: str, off: str, what: Sequence[str]) -> None:
    """Print means of `what` (fields of `Window`), and ratios of neighbours with the intervals that hold 95 of 100 means
    of samples drawn from them; the same of neighbours that were alike says how much of that is the machine's noise."""
    everything = [window for windows in rounds for window in windows]
    for is_on, name in ((False, off), (True, on)):
        values = [statistics.median(getattr(each, one) for each in everything if each.on is is_on) for one in what]
        print(f"{name:16} " + ", ".join(f"{one} {value:8.1f}" for one, value in zip(what, values, strict=True)))
    neighbours = [pair for windows in rounds for pair in itertools.pairwise(windows)]
    different = [(one, two) if one.on else (two, one) for one, two in neighbours if one.on is not two.on]
    alike = [pair for pair in neighbours if pair[0].on is pair[1].on]
    for one in what:
        for name, pairs in ((f"{on} to {off}", different), ("alike", alike)):
            ratios = [getattr(first, one) / getattr(second, one) for first, second in pairs]
            low, high = interval(ratios)
            print(f"{one}, {name}: {middle_mean(ratios):.4f} (95 %: {low:.4f} to {high:.4f}; {len(ratios)} pairs)")


def middle_mean(ratios: Sequence[float]) -> float:
    """Of the middle three fifths: a pair that was disturbed says nothing."""
    cut = len(ratios) // 5
    return statistics.fmean(sorted(ratios)[cut : len(ratios) - cut])


def interval(ratios: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """That holds 95 of 100 such means of samples drawn from the ratios."""
    chance = random.Random(1)
    means = sorted(middle_mean(chance.choices(ratios, k=len(ratios))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def _look(server: Server, model: str, on: bool, seconds: float) -> Window:
    count, cpu_s, began_s = _answered(server, model), _run_s(server), time.perf_counter()
    time.sleep(seconds)
    more, used_s, took_s = _answered(server, model) - count, _run_s(server) - cpu_s, time.perf_counter() - began_s
    return Window(on, more / took_s, 1e3 * used_s / took_s)


def _run_s(server: Server) -> float:
    """For how long the server's threads have run; finer than `Server.cpu_s`."""
    threads = Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


def _answered(server: Server, model: str) -> int:
    return int(server.statistics(model)["inference_count"])


@contextmanager
def closed_loop(
    server: Server, model: str, body: bytes, concurrency: int, seconds: float, transport: str = "http"
) -> Iterator[None]:
    """A closed loop goes on for so long inside the block, and has warmed up when it begins."""
    port = (server.http_port if transport == "http" else server.grpc_port) or 0
    load = Load(port, transport, [body], concurrency, concurrency, concurrency, 0.3, seconds + 2.0)
    loop = threading.Thread(target=put_load, args=(load, server.cpu_s, 60 + seconds))
    before = _answered(server, model)
    loop.start()
    while _answered(server, model) < before + 5000:
        time.sleep(0.05)
    yield
    loop.join()


def round_s(seconds: float) -> float:
    """How long a round of windows of so many seconds takes."""
    return len(ORDER) * (seconds + SETTLE_S)
