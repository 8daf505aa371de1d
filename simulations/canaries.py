"""Canaries in virtual time: drawn rollouts under drawn traffic, each of which has one right end (`engine.routing`).

A canary is good (it is what the others are), fails 5 % more requests, takes 1.5 times as long, or waits twice as long
in queues. The latter three go back within their first step; the good one goes through all steps. Drawn are the
traffic's rate, the shape of latencies, what part of them is time in queues, how often the others fail, how many they
are, the steps, and what disturbs all that: latencies that swell and sink with the load, stalls in which nothing goes
on, of all targets together or of each by itself.

A request is answered when its latency is over, so what is slow is known late, as in a server; steps are at least a
hundred times as long as most requests take.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from ..engine.routing.comparison import TargetOutcome
from ..engine.routing.rollout import RolloutEvent, RolloutState
from ..engine.routing.route import Canary, ModelRoute, Target
from ..engine.routing.router import ModelRouter
from .drawn_run import DrawnRun

ROUTE = "classifier"
NEW = Target("digits", 9)

MOST_REQUESTS = 3_000_000
"""A rollout that goes on for so long is given up."""

MOST_IN_STEP = 20_000
"""Steps are no longer than this many requests take, by their time alone; so that a run is quick to play."""


class CanaryKind(enum.Enum):
    """What is planted."""

    GOOD = "good"
    FAILING = "fails 5 % more"
    SLOW = "takes 1.5 times as long"
    WAITING = "waits twice as long"


Latencies = Callable[[Random], float]
"""Draws one, of a distribution with a median of about 1."""


def _lognormal(chance: Random) -> Latencies:
    sigma = chance.uniform(0.05, 0.65)
    return lambda draw: draw.lognormvariate(0, sigma)


def _exponential(chance: Random) -> Latencies:
    least = chance.random()
    return lambda draw: least + (1 - least) * draw.expovariate(0.7)


def _gamma(chance: Random) -> Latencies:
    alpha = chance.uniform(1, 20)
    return lambda draw: draw.gammavariate(alpha, 1 / alpha)


def _two_ways(chance: Random) -> Latencies:
    part, slower = chance.uniform(0.05, 0.5), chance.uniform(2, 10)
    return lambda draw: draw.lognormvariate(0, 0.2) * (slower if draw.random() < part else 1)


def _constant(chance: Random) -> Latencies:
    del chance
    return lambda draw: draw.uniform(0.98, 1.02)


def _heavy_lognormal(chance: Random) -> Latencies:
    del chance
    return lambda draw: draw.lognormvariate(0, 1.0)


def _pareto(chance: Random) -> Latencies:
    alpha = chance.uniform(2, 3)
    return lambda draw: draw.paretovariate(alpha)


SHAPES: Mapping[str, Callable[[Random], Latencies]] = {
    "lognormal": _lognormal,
    "exponential": _exponential,
    "gamma": _gamma,
    "two ways": _two_ways,
    "constant": _constant,
    "heavy lognormal": _heavy_lognormal,
    "pareto": _pareto,
}

HEAVY = ("heavy lognormal", "pareto")
"""Of these 1.5 times as long is less than twice as many beyond the mark: they are found, but not surely."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Every so often nothing goes on for a while."""

    every_s: float = 0.0
    lasting_s: float = 0.0
    apart: bool = False

    def wait_s(self, target_number: int, now_s: float) -> float:
        """How long a request waits that arrives now."""
        if not self.every_s:
            return 0.0
        since_s = (now_s + self.apart * target_number * 0.37 * self.every_s) % self.every_s
        return max(0.0, self.lasting_s - since_s)


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """Attributes:
    rate_hz: of requests.
    median_s: of latencies, about.
    queued: which part of a latency is in queues, at most.
    usual_failed: which part of the others' requests fails.
    swell: by how much latencies grow and shrink, as a part of them, within `swell_s`.
    """

    seed: int
    kind: CanaryKind
    route: ModelRoute
    shape: str
    rate_hz: float
    median_s: float
    queued: float
    usual_failed: float
    stalls: Stalls
    swell: float
    swell_s: float


@dataclass(frozen=True, slots=True)
class CanaryEnd:
    """How a rollout ended.

    Attributes:
        step: in which it was then.
        seen: requests of all targets; `new`: of the canary's.
    """

    state: RolloutState
    step: int
    now_s: float
    seen: int
    new: int
    events: tuple[RolloutEvent, ...]

    def right(self, plan: CanaryPlan) -> bool:
        """Whether this is how it should have ended."""
        if plan.kind is CanaryKind.GOOD:
            return self.state is RolloutState.DONE
        return self.state is RolloutState.BACK and self.step == 0


def draw_canary(seed: int, kind: CanaryKind, heavy: bool = False) -> CanaryPlan:
    """The canary of a seed.

    Args:
        heavy: with latencies whose tail is heavy (`HEAVY`).
    """
    chance = Random(f"canary {seed} {kind.value} {heavy}")
    rate_hz = math.exp(chance.uniform(math.log(2), math.log(2_000)))
    step_s = min(chance.choice((1.0, 10.0, 60.0, 300.0)), MOST_IN_STEP / rate_hz)
    steps = chance.choice(((5, 25, 100), (10, 50, 100), (20, 40, 60, 80), (30, 100), (50,), (75, 100), (2, 10, 50)))
    others = chance.choice((1, 1, 2, 3))
    weights = (100,) if others == 1 else (60, 40) if others == 2 else (50, 30, 20)
    targets = tuple((Target("digits", number + 1), weight) for number, weight in enumerate(weights))
    route = ModelRoute(ROUTE, (*targets, (NEW, 0)), canary=Canary(NEW, steps, step_s))
    stalls = chance.choice((Stalls(), _stalls(chance, kind)))
    swell = chance.choice((0.0, chance.uniform(0.0, 0.5)))
    shape = chance.choice([name for name in SHAPES if (name in HEAVY) == heavy])
    median_s = math.exp(chance.uniform(math.log(0.01), math.log(max(0.01, min(1.0, step_s / 100)))))
    queued = chance.uniform(0.2, 0.7)
    usual_failed = chance.choice((0.0, 0.0, 0.001, 0.01, 0.03))
    return CanaryPlan(
        seed, kind, route, shape, rate_hz, median_s, queued, usual_failed, stalls, swell, chance.uniform(300, 3_600)
    )


def _stalls(chance: Random, kind: CanaryKind) -> Stalls:
    """Those of a bad canary are too rare to be all that is beyond the 99th percentile: they hide what is planted."""
    every_s = chance.uniform(5, 60)
    most = 0.05 if kind in (CanaryKind.GOOD, CanaryKind.FAILING) else 0.003
    return Stalls(every_s, every_s * chance.uniform(0, most), chance.random() < 0.5)


def play_canaries(seed: int) -> DrawnRun:
    """One of each kind; a violation is one that ends otherwise than it should."""
    run = DrawnRun()
    for kind in CanaryKind:
        plan = draw_canary(seed, kind)
        end = play_canary(plan)
        run.counts[f"{kind.value}: {end.state.value}"] += 1
        if not end.right(plan):
            run.complain(f"a canary ({kind.value}) is {end.state.value} in step {end.step}: {end.events[-1].reason}")
    return run


def play_canary(plan: CanaryPlan) -> CanaryEnd:
    """Play one to its end."""
    return _Traffic(plan).play()


class _Traffic:
    def __init__(self, plan: CanaryPlan) -> None:
        self.plan = plan
        self.draw = Random(f"traffic {plan.seed}")
        self.latency = SHAPES[plan.shape](Random(f"shape {plan.seed}"))
        self.router = ModelRouter(lambda *_: True)
        self.numbers = {target: number for number, target in enumerate(plan.route.targets)}
        self.events: list[RolloutEvent] = []
        self.under_way: list[tuple[float, int, Target, TargetOutcome]] = []
        self.new = 0
        self.next_s = math.inf

    def play(self) -> CanaryEnd:
        now_s, asked, plan = 0.0, 0, self.plan
        self.events += self.router.replace([plan.route], now_s)
        self._set_timer()
        rollout = self.router.rollout(ROUTE)
        assert rollout is not None
        while rollout.state is RolloutState.STEP and asked < MOST_REQUESTS:
            asked += 1
            now_s += self.draw.expovariate(plan.rate_hz)
            self._answer(now_s)
            choice = self.router.choose(ROUTE, now_s)
            assert choice is not None
            outcome = self._outcome(choice.target, now_s)
            heappush(self.under_way, (now_s + outcome.latency_s, asked, choice.target, outcome))
        return CanaryEnd(rollout.state, rollout.step, now_s, asked, self.new, tuple(self.events))

    def _answer(self, now_s: float) -> None:
        while self.under_way and self.under_way[0][0] <= now_s:
            at_s, _, target, outcome = heappop(self.under_way)
            self._look(at_s)
            self.new += target == NEW
            self.router.observe(ROUTE, target, outcome, at_s)
            self._set_timer()
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        """As an actor's timer does."""
        while self.next_s <= now_s:
            self.events += self.router.advance(self.next_s)
            self._set_timer()

    def _set_timer(self) -> None:
        next_s = self.router.next_s()
        self.next_s = math.inf if next_s is None else next_s

    def _outcome(self, target: Target, now_s: float) -> TargetOutcome:
        plan, draw, bad = self.plan, self.draw, target == NEW
        failed = plan.usual_failed + 0.05 * (bad and plan.kind is CanaryKind.FAILING)
        swollen = 1 + plan.swell * math.sin(now_s * math.tau / plan.swell_s) if plan.swell else 1.0
        served_s = plan.median_s * self.latency(draw) * swollen
        queue_s = served_s * plan.queued * draw.random()
        if bad and plan.kind is CanaryKind.WAITING:
            served_s, queue_s = served_s + queue_s, 2 * queue_s
        elif bad and plan.kind is CanaryKind.SLOW:
            served_s, queue_s = 1.5 * served_s, 1.5 * queue_s
        wait_s = plan.stalls.wait_s(self.numbers[target], now_s)
        return TargetOutcome(draw.random() < failed, served_s + wait_s, queue_s + wait_s)
