"""Models on demand in virtual time: 1,000 models, room for 50, beside what ideal caches do on the same trace.

    python benchmarks/residency.py [--requests 40000] [--seeds 2] [--stays 0 0.5 1 2]

The server's own core decides (`Residency`); loads take their time, at most `--threads` of them at once, services too.
Each workload is a trace: when which model is asked for. Beside the hit rate stand that of LRU on the same trace, if
loads took no time (the best that LRU can do), and Belady's, which knows the future. A request is a hit if its model is
in memory when it comes. *Loading* is the part of the time of all places that goes into loads. `--stays` tries other
values for rule 3: how long a model stays after a load, in times that the load took. It exits with 1 if the hit rate is
more than 5 % below LRU's in a workload whose loads fit into the time.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from trireme.engine.errors import UnavailableError
from trireme.engine.repository.residency import Residency
from trireme.engine.repository.residents import Leaves, Loads

MODELS = 1_000
ROOM = 50
UNLOAD_S = 0.01
ALLOWED_LOSS = 0.05

Trace = list[tuple[float, int]]
"""When which model is asked for."""


@dataclass(frozen=True)
class Workload:
    """What is asked for, how often, and what loads take.

    Attributes:
        load_s: shortest and longest; each model has its own, evenly drawn.
        fits: whether the loads that LRU needs fit into the time, with a good margin.
        room: for so many models.
    """

    name: str
    draw: Callable[[random.Random], Iterator[int]]
    rate: float
    load_s: tuple[float, float]
    fits: bool = True
    room: int = ROOM


@dataclass
class Played:
    """What came of a trace."""

    hits: int = 0
    refused: int = 0
    loads: int = 0
    loading_s: float = 0.0
    lasted_s: float = 0.0
    waits: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.hits + self.refused + len(self.waits)

    def wait_s(self, quantile: float) -> float:
        """Of those that waited."""
        ranked = sorted(self.waits)
        return ranked[min(len(ranked) - 1, int(quantile * len(ranked)))] if ranked else 0.0


def zipf(exponent: float) -> Callable[[random.Random], Iterator[int]]:
    """1,000 models, of which the k-th is asked for in proportion to k to the power of `-exponent`."""
    weights = [(rank + 1) ** -exponent for rank in range(MODELS)]

    def draw(chance: random.Random) -> Iterator[int]:
        while True:
            yield from chance.choices(range(MODELS), weights, k=1_000)

    return draw


def cyclic(models: int) -> Callable[[random.Random], Iterator[int]]:
    """One after the other, which is the worst for LRU."""

    def draw(chance: random.Random) -> Iterator[int]:
        del chance
        for number in count():
            yield number % models

    return draw


def even(models: int) -> Callable[[random.Random], Iterator[int]]:
    """Each of so many as often as any other."""

    def draw(chance: random.Random) -> Iterator[int]:
        while True:
            yield chance.randrange(models)

    return draw


WORKLOADS = (
    Workload("Zipf 0.8, loads of 0.1-0.5 s", zipf(0.8), 8.0, (0.1, 0.5)),
    Workload("Zipf 1.0, loads of 0.1-0.5 s", zipf(1.0), 12.0, (0.1, 0.5)),
    Workload("Zipf 1.2, loads of 0.1-0.5 s", zipf(1.2), 20.0, (0.1, 0.5)),
    Workload("Zipf 1.2, loads of 0.5-2 s", zipf(1.2), 5.0, (0.5, 2.0)),
    Workload("Zipf 1.0, loads of 10-30 ms", zipf(1.0), 200.0, (0.01, 0.03)),
    Workload("55 models, evenly", even(55), 60.0, (0.1, 0.5)),
    Workload("Zipf 1.0, 90 % of what can be loaded", zipf(1.0), 22.0, (0.1, 0.5), fits=False),
    Workload("Zipf 1.0, 3 times too many", zipf(1.0), 70.0, (0.1, 0.5), fits=False),
    Workload("Zipf 1.2, 20 times too many", zipf(1.2), 800.0, (0.1, 0.5), fits=False),
    Workload("55 models, evenly, 8 times too many", even(55), 1_000.0, (0.1, 0.5), fits=False),
    Workload("51 models, one after the other", cyclic(51), 20.0, (0.1, 0.5), fits=False),
    Workload("60 models, one after the other", cyclic(60), 1_000.0, (0.1, 0.5), fits=False),
    Workload("2 models in the room of 1", even(2), 200.0, (0.5, 2.0), fits=False, room=1),
    Workload("6 models in the room of 4", even(6), 200.0, (0.5, 2.0), fits=False, room=4),
)


def trace_of(workload: Workload, requests: int, seed: int) -> Trace:
    """Poisson arrivals."""
    chance = random.Random(f"{workload.name} {seed}")
    names, now_s = workload.draw(chance), 0.0
    trace: Trace = []
    for _ in range(requests):
        now_s += chance.expovariate(workload.rate)
        trace.append((now_s, next(names)))
    return trace


def lru_hits(trace: Trace, room: int) -> int:
    """If loads took no time."""
    memory: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for _, model in trace:
        if model in memory:
            hits += 1
            memory.move_to_end(model)
        else:
            memory[model] = None
            if len(memory) > room:
                memory.popitem(last=False)
    return hits


def belady_hits(trace: Trace, room: int) -> int:
    """If loads took no time, and what is asked for last were known to leave first."""
    later: defaultdict[int, deque[int]] = defaultdict(deque)
    for at, (_, model) in enumerate(trace):
        later[model].append(at)
    memory: dict[int, int] = {}
    hits = 0
    for _, model in trace:
        later[model].popleft()
        hits += model in memory
        memory[model] = later[model][0] if later[model] else len(trace)
        if len(memory) > room:
            del memory[max(memory, key=memory.__getitem__)]
    return hits


class Play:
    """A trace, played to its end.

    Args:
        stay: how long a model stays at least after a load, in times that the load took.
    """

    def __init__(self, workload: Workload, trace: Trace, seed: int, *, threads: int, stay: float) -> None:
        self.played = Played()
        self._core = Residency(workload.room, most_loads=threads)
        self._chance = random.Random(f"service {seed}")
        self._load_s = [random.Random(f"load {model}").uniform(*workload.load_s) for model in range(MODELS)]
        self._trace = trace
        self._free = threads
        self._stay = stay
        self._queued: deque[str] = deque()
        self._waiting: defaultdict[str, list[float]] = defaultdict(list)
        self._events: list[tuple[float, int, Callable[..., None], tuple[str, ...]]] = []
        self._numbers = count()
        self._woken_s = -1.0
        self._now_s = 0.0
        for model in range(MODELS):
            self._core.know(str(model), 1)

    def run(self) -> Played:
        """What comes of it."""
        for at_s, model in self._trace:
            self._until(at_s)
            self._now_s = at_s
            self._arrive(str(model))
        self._until(None)
        self.played.lasted_s = self._now_s
        return self.played

    def _until(self, at_s: float | None) -> None:
        self._act()
        while self._events and (at_s is None or self._events[0][0] <= at_s):
            self._now_s, _, happens, about = heapq.heappop(self._events)
            happens(*about)
            self._act()

    def _later(self, after_s: float, happens: Callable[..., None], *about: str) -> None:
        heapq.heappush(self._events, (self._now_s + after_s, next(self._numbers), happens, about))

    def _act(self) -> None:
        for action in self._core.actions(self._now_s):
            if isinstance(action, Loads):
                self._queued.append(action.name)
            elif isinstance(action, Leaves):
                self._later(UNLOAD_S, self._core.unloaded, action.name)
        while self._free and self._queued:
            self._free -= 1
            name = self._queued.popleft()
            self._later(self._load_s[int(name)], self._loaded, name)
        due_s = self._core.next_s(self._now_s)
        if due_s is not None and due_s != self._woken_s:
            self._woken_s = due_s
            self._later(due_s - self._now_s, _nothing)

    def _arrive(self, name: str) -> None:
        try:
            if self._core.arrive(name, self._now_s):
                self.played.hits += 1
                self._serve(name)
            else:
                self._waiting[name].append(self._now_s)
        except UnavailableError:
            self.played.refused += 1

    def _serve(self, name: str) -> None:
        self._later(self._chance.uniform(0.001, 0.010), self._depart, name)

    def _depart(self, name: str) -> None:
        self._core.depart(name, self._now_s)

    def _loaded(self, name: str) -> None:
        self._free += 1
        took_s = self._load_s[int(name)]
        self.played.loads += 1
        self.played.loading_s += took_s
        released = self._core.loaded(name, 1, took_s * self._stay, self._now_s)
        waited = self._waiting.pop(name, [])
        assert released == len(waited), f"{released} requests are released, {len(waited)} waited"
        for since_s in waited:
            self.played.waits.append(self._now_s - since_s)
            self._serve(name)


def _nothing() -> None:
    pass


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--stays", type=float, nargs="+", default=[1.0])
    options = parser.parse_args()
    print("| Workload | stay | hits | LRU | Belady | of LRU | loads, of LRU's | loading | wait p50, p99 | refused |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    bad = [row for workload in WORKLOADS for row in rows(workload, options)]
    sys.exit(1 if any(bad) else 0)


def rows(workload: Workload, options: argparse.Namespace) -> Sequence[bool]:
    """One for each stay: printed, and whether it is too bad."""
    traces = [trace_of(workload, options.requests, seed) for seed in range(options.seeds)]
    lru = sum(lru_hits(trace, workload.room) for trace in traces) / options.requests / options.seeds
    best = sum(belady_hits(trace, workload.room) for trace in traces) / options.requests / options.seeds
    bad: list[bool] = []
    for stay in options.stays:
        plays = [
            Play(workload, trace, seed, threads=options.threads, stay=stay).run() for seed, trace in enumerate(traces)
        ]
        asked = sum(each.requests for each in plays)
        assert asked == options.requests * options.seeds, "a request was lost"
        hits = sum(each.hits for each in plays) / asked
        loads = sum(each.loads for each in plays) / max(1.0, asked * (1 - lru))
        loading = sum(each.loading_s for each in plays) / workload.room / sum(each.lasted_s for each in plays)
        waits = [wait_s for each in plays for wait_s in each.waits]
        wait = Played(waits=waits)
        refused = sum(each.refused for each in plays) / asked
        share = f"{hits / lru:.3f}" if lru else "-"
        print(
            f"| {workload.name} | {stay:g} | {hits:.3f} | {lru:.3f} | {best:.3f} | {share} | {loads:.2f} "
            f"| {loading:.1%} | {wait.wait_s(0.5):.2f}, {wait.wait_s(0.99):.2f} s | {refused:.1%} |",
            flush=True,
        )
        bad.append(workload.fits and stay == 1.0 and hits < lru * (1 - ALLOWED_LOSS))
    return bad


if __name__ == "__main__":
    main()
