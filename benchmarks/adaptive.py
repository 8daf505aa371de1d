"""Adaptive batching against the best of 100 fixed settings, in virtual time; and against a few of them, for real.

    python benchmarks/adaptive.py [--requests 6000] [--seeds 3] [--drawn 20] [--verbose]

In virtual time the schedulers' own cores decide (`Dispatcher`), and batches take what a cost model says. There are five
workloads. Each is played with 100 fixed settings of the dynamic batcher (4 delays, 5 sizes, 5 queue limits), of which
the one with the highest goodput is picked in hindsight, and with the adaptive batcher, which knows the objective alone.
Goodput is what part of the requests is answered within the objective. `--seeds` plays each workload so many times;
settings are compared by the sums. `--drawn` plays so many workloads instead on which nothing was chosen: service times,
how exact they are, arrivals, load, objective and number of instances are drawn, and delays of fixed settings are in
proportion to the objective. It exits with 1 if the adaptive batcher is more than 3 % below the best in any of them.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.errors import TriremeError
from trireme.engine.job import Job, Outcome
from trireme.engine.request import InferenceRequest
from trireme.engine.scheduling.adaptive import AdaptiveBatcher
from trireme.engine.scheduling.core import WAIT, Dispatch, SchedulerCore, WaitUntil
from trireme.engine.scheduling.dispatcher import Dispatcher
from trireme.engine.scheduling.queueing import DynamicBatcher

OBJECTIVE_S = 0.1
MOST_ROWS = 32
ALLOWED_LOSS = 0.03

Cost = Callable[[int, float], float]
"""What a batch takes alone: seconds by rows, and by when it begins."""


def affine(fixed_ms: float, row_ms: float) -> Cost:
    return lambda rows, _now: (fixed_ms + row_ms * rows) / 1_000


def drifting(before: Cost, after: Cost, from_s: float, until_s: float) -> Cost:
    """From one cost to another, evenly in between."""

    def cost(rows: int, now: float) -> float:
        part = min(1.0, max(0.0, (now - from_s) / (until_s - from_s)))
        return (1 - part) * before(rows, now) + part * after(rows, now)

    return cost


@dataclass(frozen=True)
class Workload:
    """Requests of one row each.

    Attributes:
        arrivals: by model, when its requests come.
        costs: of its batches, by model.
        shares_core: batches that are executed at the same time share one core.
        noise: how much batches of one size differ (sigma of a lognormal distribution).
        hangs: what part of the batches takes ten times as long.
    """

    name: str
    arrivals: tuple[Sequence[float], ...]
    costs: tuple[Cost, ...]
    instances: int = 1
    shares_core: bool = False
    objective_s: float = OBJECTIVE_S
    noise: float = 0.05
    hangs: float = 0.0

    @property
    def requests(self) -> int:
        return sum(map(len, self.arrivals))


@dataclass(frozen=True)
class Setting:
    """Of a dynamic batcher; sizes in rows. `delay_s`: for an objective of 100 ms; for others in proportion. `limit`: of
    its queue, 0 for none."""

    delay_s: float
    size: int
    limit: int

    def core(self, objective_s: float) -> SchedulerCore:
        policy = QueuePolicy(max_queue_size=self.limit)
        delay_us = round(self.delay_s * objective_s / OBJECTIVE_S * 1e6)
        batching = DynamicBatching((self.size,), delay_us, default_queue_policy=policy)
        return DynamicBatcher(batching, self.size)

    def __str__(self) -> str:
        return f"{self.delay_s * 1e3:g} ms, {self.size} rows, {self.limit or 'no limit'}"


SETTINGS = tuple(Setting(*each) for each in product((0.0, 0.002, 0.01, 0.03), (2, 4, 8, 16, 32), (0, 8, 24, 64, 192)))


def adaptive(objective_s: float) -> SchedulerCore:
    return AdaptiveBatcher(DynamicBatching((MOST_ROWS,)), MOST_ROWS, objective_s)


def poisson(rate: float, count: int, chance: random.Random, now: float = 0.0) -> list[float]:
    """When requests come, at so many a second."""
    times: list[float] = []
    for _ in range(count):
        now += chance.expovariate(rate)
        times.append(now)
    return times


def bursts(rates: Sequence[tuple[float, float]], count: int, chance: random.Random) -> list[float]:
    """As `poisson`, with these rates by turns, each for so many seconds."""
    times: list[float] = []
    now = 0.0
    while len(times) < count:
        for rate, seconds in rates:
            end = now + seconds
            while (now := now + chance.expovariate(rate)) < end:
                times.append(now)
            now = end
    return times[:count]


def workloads(count: int, seed: int) -> list[Workload]:
    """The five. A batch of the usual cost takes 8 ms and 1 ms a row: up to 800 rows a second in batches of 32."""
    chance = random.Random(seed)
    usual, slow = affine(8, 1), affine(16, 2)
    drift = drifting(usual, slow, count / 3 / 300, count * 2 / 3 / 300)
    return [
        Workload("steady", (poisson(500, count, chance),), (usual,)),
        Workload("bursty", (bursts(((150, 0.8), (1_600, 0.2)), count, chance),), (usual,)),
        Workload(
            "two models on one core",
            (poisson(300, count * 3 // 4, chance), poisson(100, count // 4, chance)),
            (usual, usual),
            shares_core=True,
        ),
        Workload("drifting service time", (poisson(300, count, chance),), (drift,)),
        Workload("3 times overload", (poisson(2_400, count, chance),), (usual,)),
    ]


def curved(fixed_ms: float, row_ms: float, power: float) -> Cost:
    """Rows get cheaper, or dearer, the more there are."""
    return lambda rows, _now: (fixed_ms + row_ms * rows**power) / 1_000


def stepped(fixed_ms: float, tile_ms: float, tile: int) -> Cost:
    """Rows are computed so many at a time."""
    return lambda rows, _now: (fixed_ms + tile_ms * math.ceil(rows / tile)) / 1_000


def drawn_workload(count: int, chance: random.Random) -> Workload:
    """A workload on which nothing was chosen."""
    fixed_ms, row_ms = 10 ** chance.uniform(0, 1.5), 10 ** chance.uniform(-1, 0.6)
    kind = chance.choice(("line", "curve", "steps"))
    cost = affine(fixed_ms, row_ms)
    if kind == "curve":
        cost = curved(fixed_ms, row_ms, chance.uniform(0.6, 1.2))
    elif kind == "steps":
        tile = chance.choice((4, 8, 16))
        cost = stepped(fixed_ms, tile * row_ms, tile)
    instances = chance.choice((1, 1, 2, 3))
    most_s = cost(MOST_ROWS, 0.0)
    capacity = instances * MOST_ROWS / most_s
    objective_s = most_s * chance.uniform(1.2, 8)
    load = 10 ** chance.uniform(-0.7, 0.6)
    rate = load * capacity
    arrival = chance.choice(("steady", "bursts", "waves", "clumps"))
    if arrival == "steady":
        times = poisson(rate, count, chance)
    elif arrival == "bursts":
        share, length_s = chance.uniform(0.05, 0.4), chance.uniform(0.5, 10) * objective_s
        calm = rate * chance.uniform(0.1, 0.6)
        times = bursts(
            ((calm, length_s * (1 - share)), ((rate - calm * (1 - share)) / share, length_s * share)), count, chance
        )
    elif arrival == "waves":
        length_s = chance.uniform(20, 100) * objective_s
        times = bursts(
            [(rate * (1 + 0.8 * math.sin(step / 10 * math.pi)), length_s / 20) for step in range(20)], count, chance
        )
    else:
        size = chance.randint(2, 40)
        times = sorted(at_s for at_s in poisson(rate / size, count // size + 1, chance) for _ in range(size))[:count]
    drifts = chance.random() < 0.3
    if drifts:
        span_s = times[-1] - times[0]
        slower, base = chance.uniform(0.5, 2), cost
        cost = drifting(base, lambda rows, now: slower * base(rows, now), span_s / 3, span_s * 2 / 3)
    noise, hangs = chance.choice((0.02, 0.1, 0.3)), chance.choice((0.0, 0.0, 0.005))
    what = ["drift"] * drifts + [f"noise {noise:.0%}"] + ["hangs"] * bool(hangs)
    name = f"{kind}, {arrival}, load {load:.1f}, {objective_s / most_s:.1f} batches, x{instances}, {', '.join(what)}"
    return Workload(name, (times,), (cost,), instances, objective_s=objective_s, noise=noise, hangs=hangs)


class NoReply:
    """Cores never answer."""

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        raise AssertionError("a scheduler core answered a job")


NO_REPLY = NoReply()


@dataclass
class Result:
    """What became of the requests of a workload: `latencies_s` of those that were executed."""

    objective_s: float
    latencies_s: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def in_time(self) -> int:
        return sum(latency_s <= self.objective_s for latency_s in self.latencies_s)

    @property
    def p99_s(self) -> float:
        return sorted(self.latencies_s)[math.ceil(0.99 * len(self.latencies_s)) - 1] if self.latencies_s else math.nan


@dataclass(eq=False)
class Running:
    """A batch in execution: what is left of it, in seconds alone on a core."""

    model: int
    dispatch: Dispatch
    left_s: float


class World:
    """Plays a workload in virtual time."""

    def __init__(self, workload: Workload, cores: Iterable[SchedulerCore], seed: int) -> None:
        self.workload = workload
        self.dispatchers = [Dispatcher(core, adaptive=isinstance(core, AdaptiveBatcher)) for core in cores]
        for dispatcher in self.dispatchers:
            for instance in range(workload.instances):
                dispatcher.attach(instance)
        self.chance = [random.Random(seed * 100 + model) for model in range(len(self.dispatchers))]
        self.now = 0.0
        self.running: list[Running] = []
        self.wakes_s = [math.inf] * len(self.dispatchers)
        self.result = Result(workload.objective_s)

    def play(self) -> Result:
        arrivals = heapq.merge(
            *[[(at_s, model) for at_s in times] for model, times in enumerate(self.workload.arrivals)]
        )
        for at_s, model in arrivals:
            while self.advance(at_s):
                pass
            self.arrive(model)
        while self.advance(math.inf):
            pass
        return self.result

    def advance(self, until_s: float) -> bool:
        """On to what is next; False if it is not before `until_s`, which it is then."""
        slowness = len(self.running) if self.workload.shares_core else 1
        first = min(self.running, key=lambda each: each.left_s, default=None)
        ends_s = math.inf if first is None else self.now + first.left_s * slowness
        wake_s = min(self.wakes_s)
        next_s = min(ends_s, wake_s, until_s)
        if next_s == math.inf:
            return False
        for each in self.running:
            each.left_s -= (next_s - self.now) / slowness
        self.now = next_s
        if ends_s <= next_s and first is not None:
            self.running.remove(first)
            jobs = first.dispatch.jobs
            self.result.latencies_s += [next_s - job.enqueued_s for job in jobs]
            self.dispatchers[first.model].over(first.dispatch.instance, jobs, next_s, (), False)
            self.act(first.model)
        elif wake_s <= next_s:
            self.act(self.wakes_s.index(wake_s))
        else:
            return False
        return True

    def arrive(self, model: int) -> None:
        job = Job(InferenceRequest("m"), {}, 1, "m", 1, NO_REPLY)
        try:
            self.dispatchers[model].core.enqueue(job, self.now)
        except TriremeError:
            self.result.refused += 1
        self.act(model)

    def act(self, model: int) -> None:
        self.wakes_s[model] = math.inf
        while (action := self.dispatchers[model].next_action(self.now)) is not WAIT:
            if isinstance(action, WaitUntil):
                self.wakes_s[model] = action.when_s
                break
            if isinstance(action, Dispatch):
                chance = self.chance[model]
                noise = chance.lognormvariate(0, self.workload.noise)
                if self.workload.hangs and chance.random() < self.workload.hangs:
                    noise *= 10
                cost_s = self.workload.costs[model](len(action.jobs), self.now) * noise
                self.running.append(Running(model, action, cost_s))
            else:
                self.result.refused += 1


def play(workload: Workload, make: Callable[[float], SchedulerCore], seed: int) -> Result:
    return World(workload, [make(workload.objective_s) for _ in workload.costs], seed).play()


def compare(name: str, played: Sequence[Workload], verbose: bool) -> float:
    """Play all settings, print a row, and give back the adaptive batcher's goodput in parts of the best one's."""
    requests = sum(workload.requests for workload in played)
    sums = {
        setting: sum(play(workload, setting.core, seed).in_time for seed, workload in enumerate(played))
        for setting in SETTINGS
    }
    best = max(sums, key=sums.__getitem__)
    ours = [play(workload, adaptive, seed) for seed, workload in enumerate(played)]
    theirs = [play(workload, best.core, seed) for seed, workload in enumerate(played)]
    mine = sum(result.in_time for result in ours)
    late = sum(len(result.latencies_s) - result.in_time for result in ours)
    their_late = sum(len(result.latencies_s) - result.in_time for result in theirs)
    median = sorted(sums.values())[len(sums) // 2]
    print(
        f"| {name} | {mine / requests:.1%} | {sums[best] / requests:.1%} | {median / requests:.1%} | "
        f"{mine / max(1, sums[best]):.3f} | {late / requests:.1%} | {their_late / requests:.1%} | "
        f"{max(result.p99_s for result in ours) * 1e3:.0f} | {max(result.p99_s for result in theirs) * 1e3:.0f} | "
        f"{best} |",
        flush=True,
    )
    if verbose:
        for setting, in_time in sorted(sums.items(), key=lambda item: -item[1])[:5]:
            print(f"    {setting}: {in_time / requests:.1%}")
    return mine / max(1, sums[best])


def compare_all(requests: int, seeds: int, drawn_count: int, verbose: bool) -> bool:
    """Print the table. Gives back whether the adaptive batcher is nowhere more than `ALLOWED_LOSS` below the best."""
    print(
        "| workload | adaptive | best fixed | median fixed | ratio | late | best's late | p99 ms | best's | the best |"
        "\n|---|---|---|---|---|---|---|---|---|---|"
    )
    played: Iterable[Sequence[Workload]] = zip(*(workloads(requests, seed) for seed in range(seeds)), strict=True)
    if drawn_count:
        played = [[drawn_workload(requests, random.Random(1_000 + number))] for number in range(drawn_count)]
    ratios = [compare(each[0].name, each, verbose) for each in played]
    print(f"\nratios: {min(ratios):.3f} to {max(ratios):.3f}, median {sorted(ratios)[len(ratios) // 2]:.3f}")
    return min(ratios) >= 1 - ALLOWED_LOSS


def main() -> None:
    parser = argparse.ArgumentParser(description="Adaptive batching beside 100 fixed settings.")
    parser.add_argument("--requests", type=int, default=6_000, help="of each workload")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--drawn", type=int, default=0, help="play so many drawn workloads instead")
    parser.add_argument("--verbose", action="store_true", help="print the five best settings, too")
    options = parser.parse_args()
    sys.exit(not compare_all(options.requests, options.seeds, options.drawn, options.verbose))


if __name__ == "__main__":
    main()
