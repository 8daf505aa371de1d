"""Drawing plans: from a seed comes everything that a swarm run will do.

Each run has some features and lacks others (*swarm testing*): if all were in all runs, those that hide each other's
bugs would always do so, a queue limit that keeps queues from growing long, for one. Rates are drawn too,
log-uniformly: a fault that strikes one request in three and one that strikes one in a thousand find different things.
"""

from __future__ import annotations

import enum
import math
from dataclasses import replace
from random import Random
from typing import Any

from .drawn_after import DRAWN_AFTER
from .graphs import MOST_ANSWERS as MOST_NUMBERED
from .graphs import Graphs
from .plan import (
    DEATHS,
    GPU_FAULTS,
    MANY_REQUESTS,
    PLENTY_BYTES,
    UNKNOWN_MODEL,
    Change,
    ChangePlan,
    Fault,
    Manner,
    ModelPlan,
    Plan,
    PolicyPlan,
    RequestPlan,
    ResourcePlan,
    SequencesPlan,
    StepPlan,
)
from .workloads import Arrival, bursty, closed_loop, poisson, sequences

MS = 1_000_000


class Feature(enum.Enum):
    """What a run may have; it has each with probability one half, unless `RARE` says otherwise."""

    __hash__ = object.__hash__  # asked for several times a request, and nothing depends on its value

    SEVERAL_MODELS = "several models"
    SEVERAL_INSTANCES = "several instances"
    SEQUENCES = "stateful models"
    STATES = "implicit states"
    ITERATIVE = "requests that are executed again"
    DECOUPLED = "models that answer any number of times"
    SLOW_READERS = "clients that read slowly"
    CHANGES = "models that are loaded and unloaded meanwhile"
    RESOURCES = "instances that share resources"
    ENSEMBLES = "ensembles"
    UNBATCHED = "models without batching"
    PREFERRED = "preferred sizes"
    DELAY = "queue delays"
    PRIORITIES = "priorities"
    TIMEOUTS = "queue timeouts"
    QUEUE_LIMITS = "queue limits"
    ORDERING = "answers in order"
    BIG_REQUESTS = "requests of several rows"
    BAD_REQUESTS = "requests that must be refused"
    UNEVEN_WORK = "work that varies"
    GIVING_UP = "clients that give up"
    WAITING = "clients that wait in tasks"
    VANISHING = "clients that vanish"
    SMALL_BUDGET = "a small server-wide budget"
    FAILING_STARTS = "instances that fail to start again"
    STOP_EARLY = "a server that is stopped amid work"
    CACHE = "a response cache"
    ATTENDING = "a front end that has schedulers decide at once"
    OVERLOAD = "more work than can be done"


RARE = {
    Feature.WAITING: 0.3,
    Feature.SMALL_BUDGET: 0.15,
    Feature.BAD_REQUESTS: 0.25,
    Feature.STOP_EARLY: 0.15,
    Feature.CACHE: 0.3,
    Feature.RESOURCES: 0.3,
    Feature.ENSEMBLES: 0.35,
    Feature.ITERATIVE: 0.3,
    Feature.DECOUPLED: 0.35,
    Feature.CHANGES: 0.25,
}
"""Features that make runs slow, or most of their requests void."""

MOST_LEVELS = 2
"""Most decoupled members whose answers an ensemble answers again and again: executions multiply."""

MOST_ANSWERS = {1: 8, 2: 6}
"""By levels, most answers that such a member gives at each execution."""

CONTENTS = 12
"""So many different things are asked for again and again, where there is a response cache."""

ENTRY_BYTES = 600
"""More than a response of one row takes there."""

EXECUTIONS_OF_MANY = 8
"""A request to such an ensemble is so many times the work of another one, about."""

FAULTS = tuple(fault for fault in Fault if fault not in (Fault.NONE, *GPU_FAULTS, *DEATHS))

DEADLY = (Fault.CRASH, Fault.EXIT, Fault.HANG)
"""They cost an instance; while none is up, which may be for seconds, a model answers nothing. A few are enough."""


def draw_plan(seed: int) -> Plan:
    """The plan of this seed."""
    plan = _Draw(seed).plan()
    for change in DRAWN_AFTER:
        plan = change(plan)
    return plan


class _Draw:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = Random(f"swarm {seed}")
        self.features = {feature for feature in Feature if chance.random() < RARE.get(feature, 0.5)}
        self.rates = {
            fault: self.rate(0.002, 0.02 if fault in DEADLY else 0.1) for fault in FAULTS if chance.random() < 0.35
        }
        self.levels: dict[str, int] = {}  # by model, how many decoupled ones follow each other in it
        self.bound: set[str] = set()  # models that execute sequences
        self.give_up_rate = self.rate(0.02, 0.25) if self.has(Feature.GIVING_UP) else 0.0

    def has(self, feature: Feature) -> bool:
        return feature in self.features

    def rate(self, least: float, most: float) -> float:
        return math.exp(self.chance.uniform(math.log(least), math.log(most)))

    def plan(self) -> Plan:
        chance = self.chance
        count = chance.choice((1, 2, 3, 4)) if self.has(Feature.SEVERAL_MODELS) else 1
        resources = self.resources()
        models = tuple(self.sharing(self.model(f"m{index}"), resources) for index in range(count))
        if self.has(Feature.ENSEMBLES):
            models = self.with_ensembles(models)
        plan = Plan(self.seed, models, (), calm_ns=0)
        graphs = self.graphs = Graphs(plan)
        requests: list[RequestPlan] = []
        for model in models:
            count = chance.randint(10, 480 // len(models))
            if model.steps and graphs.is_decoupled(model.name):
                count = max(5, count // EXECUTIONS_OF_MANY)
            requests += self.dressed(
                model, self.arrivals(model, count, stateful=graphs.is_stateful(model)), len(requests)
            )
        end_ns = max(request.at_ns for request in requests)
        hangs = Fault.HANG in self.rates
        asked: dict[str, list[RequestPlan]] = {model.name: [] for model in models}  # in the end, for an ensemble
        for request in requests:
            for name in graphs.executors(request):
                asked.setdefault(name, []).append(request)
        longest_ns = max(_longest_batch_ns(model, asked[model.name]) for model in models)
        return replace(
            plan,
            requests=tuple(requests),
            changes=self.changes(models, end_ns),
            load_ns=round(self.rate(0.1, 20) * MS) if chance.random() < 0.6 else 0,
            calm_ns=round(end_ns * chance.uniform(0.5, 1.1)),
            stop_ns=round(end_ns * chance.uniform(0.3, 1.0)) if self.has(Feature.STOP_EARLY) else 0,
            max_inflight_requests=round(self.rate(2, 60)) if self.has(Feature.SMALL_BUDGET) else MANY_REQUESTS,
            cache_bytes=self.cache_bytes(models),
            hang_limit_s=longest_ns / 1e9 * chance.uniform(1.1, 8.0) if hangs or chance.random() < 0.2 else 0.0,
            restart_limit=chance.choice((0, 1, 2, 5, 5, 1000)),
            restart_window_s=chance.choice((0.5, 60.0)),
            exit_timeout_s=chance.choice((0.0, chance.uniform(0.001, 0.2), 30.0, 30.0)),
            window=chance.choice((3, 3, 5, 64)),
            attending=self.has(Feature.ATTENDING),
            resources=resources,
        )

    def cache_bytes(self, models: tuple[ModelPlan, ...]) -> int:
        """Mostly enough for all answers; else for a few, which go when others come."""
        if not any(model.cached for model in models):
            return 0
        return PLENTY_BYTES if self.chance.random() < 0.7 else self.chance.randint(1, 8) * ENTRY_BYTES

    def changes(self, models: tuple[ModelPlan, ...], end_ns: int) -> tuple[ChangePlan, ...]:
        """Loads and unloads; in half of the runs that have some, models are only loaded again. Most models that are
        unloaded are wanted again soon."""
        if not self.has(Feature.CHANGES):
            return ()
        chance = self.chance
        kinds = chance.choice(((Change.RELOAD,), (Change.RELOAD, Change.LOAD, Change.UNLOAD)))
        changes: list[ChangePlan] = []
        for _ in range(chance.randint(1, 6)):
            model, at_ns = chance.choice(models).name, chance.randint(0, end_ns)
            several = [ChangePlan(at_ns, model, chance.choice(kinds)) for _ in range(chance.choice((1, 1, 2)))]
            changes += several
            if any(each.change is Change.UNLOAD for each in several) and chance.random() < 0.8:
                changes.append(ChangePlan(at_ns + round(self.rate(0.001, 0.2) * end_ns), model, Change.LOAD))
        return tuple(changes)

    def resources(self) -> tuple[ResourcePlan, ...]:
        if not self.has(Feature.RESOURCES):
            return ()
        return tuple(
            ResourcePlan(name, self.chance.randint(1, 6)) for name in ("R1", "R2")[: self.chance.randint(1, 2)]
        )

    def sharing(self, plan: ModelPlan, resources: tuple[ResourcePlan, ...]) -> ModelPlan:
        """The model, needing some of what there is."""
        chance = self.chance
        demands = tuple(
            ResourcePlan(each.name, chance.randint(1, each.count)) for each in resources if chance.random() < 0.7
        )
        return replace(plan, demands=demands, priority=chance.randint(0, 3)) if resources else plan

    def model(self, name: str) -> ModelPlan:
        chance = self.chance
        unbatched = self.has(Feature.UNBATCHED) and chance.random() < 0.5
        max_batch_size = chance.choice((0, 1, 2, 4, 8, 8, 16))
        plan = ModelPlan(
            name,
            instances=chance.randint(1, 4) if self.has(Feature.SEVERAL_INSTANCES) else 1,
            max_batch_size=max_batch_size,
            fixed_ns=round(self.rate(0.5, 30) * MS),
            per_row_ns=chance.choice((0, round(self.rate(0.01, 3) * MS))),
            failing_starts=self.failing_starts(),
            inputs=2 if self.has(Feature.ENSEMBLES) and chance.random() < 0.4 else 1,
        )
        if self.has(Feature.DECOUPLED) and chance.random() < 0.6:
            plan = replace(plan, decoupled=True, heeds=chance.random() < 0.5)
        if self.has(Feature.SEQUENCES) and chance.random() < 0.6:
            return self.stateful(plan)
        if not plan.decoupled and self.has(Feature.CACHE):
            plan = replace(plan, cached=chance.random() < 0.7)
        return plan if unbatched else self.batched(plan)

    def failing_starts(self) -> tuple[int, ...]:
        """Never the first ones: a model that cannot be loaded is no test of scheduling."""
        if not self.has(Feature.FAILING_STARTS):
            return ()
        return tuple(number for number in range(5, 20) if self.chance.random() < 0.5)

    def batched(self, plan: ModelPlan) -> ModelPlan:
        chance = self.chance
        most = plan.max_batch_size
        preferred: tuple[int, ...] = ()
        if self.has(Feature.PREFERRED) and most:
            preferred = tuple(sorted(chance.sample(range(1, most + 1), chance.randint(1, min(3, most)))))
        levels = chance.randint(2, 5) if self.has(Feature.PRIORITIES) else 0
        batch_us = _batch_ns(plan) / 1_000
        policies = [self.policy(0, batch_us)]
        policies += [self.policy(level, batch_us) for level in range(1, levels + 1) if chance.random() < 0.5]
        return replace(
            plan,
            dynamic=True,
            preferred=preferred,
            delay_us=round(batch_us * self.rate(0.02, 5.0)) if self.has(Feature.DELAY) else 0,
            preserve_ordering=self.has(Feature.ORDERING) and chance.random() < 0.7,
            levels=levels,
            default_level=chance.randint(1, levels) if levels else 0,
            policies=tuple(policies),
        )

    def with_ensembles(self, models: tuple[ModelPlan, ...]) -> tuple[ModelPlan, ...]:
        """These models, and ensembles of them."""
        chance, levels = self.chance, self.levels
        levels.update({model.name: int(model.decoupled) for model in models})
        self.bound.update(model.name for model in models if model.sequences is not None)
        for index in range(chance.randint(1, 3)):
            members = models
            if any(levels.values()) and chance.random() < 0.25:
                members = tuple(each for each in models if not levels[each.name])
            if members:
                ensemble = self.ensemble(f"e{index}", members)
                levels[ensemble.name] = sum(levels[step.model] for step in ensemble.steps)
                models += (ensemble,)
        return models

    def ensemble(self, name: str, models: tuple[ModelPlan, ...]) -> ModelPlan:
        """A graph over these models, earlier ensembles among them. Its time is what its steps take one by one."""
        chance, levels = self.chance, self.levels
        members: list[ModelPlan] = []
        room = MOST_LEVELS
        for _ in range(chance.choice((1, 2, 2, 3, 3, 4, 5))):
            member = chance.choice(models)
            if levels[member.name] <= room:
                room -= levels[member.name]
                members.append(member)
        shape = chance.choice(("chain", "fan", "any"))
        many = [number for number, member in enumerate(members, start=1) if levels[member.name]]
        last = many[-1] if many else 0  # what follows from the answers of others cannot meet in a step
        steps: list[StepPlan] = []
        for number, member in enumerate(members, start=1):
            earliest = number - 1 if number <= last or shape == "chain" else last
            latest = min(last + 1, number - 1) if shape == "fan" and last < number < len(members) else number - 1
            takes = tuple(chance.randint(earliest, latest) for _ in range(member.inputs))
            steps.append(StepPlan(member.name, takes))
        if any(member.name in self.bound for member in members):
            self.bound.add(name)
        cacheable = self.has(Feature.CACHE) and not many and name not in self.bound
        return ModelPlan(
            name,
            cached=cacheable and chance.random() < 0.5,
            max_batch_size=min(member.max_batch_size for member in members),
            fixed_ns=sum(member.fixed_ns for member in members),
            steps=tuple(steps),
            max_inflight=chance.choice((0, chance.randint(1, 2) if many else 0, chance.randint(1, 4))),
        )

    def stateful(self, plan: ModelPlan) -> ModelPlan:
        chance = self.chance
        most = plan.max_batch_size
        preferred = (chance.randint(1, most),) if self.has(Feature.PREFERRED) and most else ()
        batch_us = _batch_ns(plan) / 1_000
        sequences = SequencesPlan(
            oldest=chance.random() < 0.5,
            candidates=chance.choice((0, 0, 1, 3, 20)),
            utilization=chance.choice((0.0, 0.5, 1.0)),
            idle_us=round(batch_us * self.rate(8, 1000)),
            sums=self.has(Feature.STATES) and chance.random() < 0.7 and not plan.decoupled,
            same_buffer=chance.random() < 0.5,
            iterative=self.has(Feature.ITERATIVE) and chance.random() < 0.7,
        )
        delay_us = round(batch_us * self.rate(0.02, 3.0)) if self.has(Feature.DELAY) else 0
        ordered = self.has(Feature.ORDERING) and Random(f"order of {plan.name} {self.seed}").random() < 0.7
        plan = replace(plan, preserve_ordering=ordered and sequences.oldest)
        return replace(plan, preferred=preferred, delay_us=delay_us, sequences=sequences)

    def policy(self, level: int, batch_us: float) -> PolicyPlan:
        """The policy of a level of a model whose batches take about `batch_us`."""
        chance = self.chance
        times_out = self.has(Feature.TIMEOUTS) and chance.random() < 0.7
        return PolicyPlan(
            level,
            delay=chance.random() < 0.5,
            timeout_us=round(batch_us * self.rate(0.5, 100)) if times_out else 0,
            override=chance.random() < 0.5,
            max_queue_size=round(self.rate(2, 120)) if self.has(Feature.QUEUE_LIMITS) and chance.random() < 0.7 else 0,
        )

    def arrivals(self, model: ModelPlan, count: int, *, stateful: bool) -> list[Arrival]:
        """A workload that keeps the model's instances busy for some part of the time, or for more than that."""
        chance = self.chance
        rows = max(1, model.max_batch_size) if model.dynamic else 1
        batch_s = (model.fixed_ns + model.per_row_ns * rows) / 1e9
        load = chance.uniform(1.0, 2.5) if self.has(Feature.OVERLOAD) else chance.uniform(0.1, 1.0)
        rate_hz = load * model.instances * max(1, rows / 2) / batch_s
        if stateful and not (model.iterative and chance.random() < 0.5):
            return self.sequences(model, count, batch_s, load)
        match chance.randrange(3):
            case 0:
                return poisson(chance, count, rate_hz)
            case 1:
                return bursty(chance, count, rate_hz, chance.randint(2, 24))
            case _:
                return closed_loop(chance, count, chance.randint(1, 24), batch_s * self.rate(0.05, 5.0))

    def sequences(self, model: ModelPlan, count: int, batch_s: float, load: float) -> list[Arrival]:
        """Sequences whose clients think; in some runs they forget to end them, or take an id that is in use."""
        chance = self.chance
        longest = chance.randint(1, 12)
        think_s = batch_s * self.rate(0.05, 2.0)
        rate_hz = load * model.instances * max(1, model.max_batch_size / 2) / ((batch_s + think_s) * longest)
        arrivals = sequences(chance, count, rate_hz, longest, think_s, pipelined=chance.random() < 0.4)
        ids = chance.choice((10_000, 10_000, 10_000, 10_000, 3))
        forgetful = chance.choice((0.0, 0.0, 0.3))
        return [
            replace(
                arrival,
                sequence=1 + int(arrival.sequence) % ids,
                end=arrival.end and chance.random() >= forgetful,
            )
            for arrival in arrivals
        ]

    def dressed(self, model: ModelPlan, arrivals: list[Arrival], before: int) -> list[RequestPlan]:
        """Requests of these arrivals, numbered on from `before`."""
        return [
            self.request(
                model,
                before + 1 + index,
                arrival,
                before + 1 + arrival.after if arrival.after >= 0 else 0,
            )
            for index, arrival in enumerate(arrivals)
        ]

    def request(self, model: ModelPlan, number: int, arrival: Arrival, after: int) -> RequestPlan:
        chance, has = self.chance, self.features.__contains__  # asked for several times a request
        most = max(1, model.max_batch_size)
        big = has(Feature.BIG_REQUESTS) and not self.graphs.is_stateful(model)
        rows = chance.randint(1, min(most, 4)) if big else 1
        name = model.name
        if has(Feature.BAD_REQUESTS) and chance.random() < 0.03:
            if chance.random() < 0.5:
                rows = most + 1
            else:
                name = UNKNOWN_MODEL
        gives_up = chance.random() < self.give_up_rate
        turns = chance.choice((1, 2, 2, 3, 5)) if has(Feature.ITERATIVE) else 1
        manner, fault = self.manner(), self.fault()
        many = self.graphs.is_decoupled(model.name)
        stream = self.stream(model) if many else {}
        if many and model.steps:
            levels = self.levels[model.name]
            stream["answers"], turns = min(stream["answers"], MOST_ANSWERS[levels]), min(turns, 2)
            turns = turns if (stream["answers"] * turns) ** levels < MOST_NUMBERED else 1
        told = stream.get("answers", 0) * turns if many else turns - 1
        patience_ns = self.rate(0.05, 10.0 if many else 5.0) * model.fixed_ns
        return RequestPlan(
            number,
            name,
            arrival.at_ns,
            after,
            rows,
            priority=chance.randint(0, model.levels + 1) if has(Feature.PRIORITIES) else 0,
            timeout_us=self.patience_us(model) if has(Feature.TIMEOUTS) and chance.random() < 0.4 else 0,
            give_up_ns=round(patience_ns) if gives_up else 0,
            manner=manner,
            fault=fault,
            fault_after=chance.randint(0, told) if told and fault is not Fault.NONE else 0,
            turns=turns,
            fault_step=chance.randrange(5) if model.steps else 0,
            extra_ns=round(chance.expovariate(1.0) * model.fixed_ns) if has(Feature.UNEVEN_WORK) else 0,
            sequence=arrival.sequence,
            start=arrival.start,
            end=arrival.end,
            content=chance.randint(1, CONTENTS) if has(Feature.CACHE) and chance.random() < 0.4 else 0,
            **stream,
        )

    def patience_us(self, model: ModelPlan) -> int:
        """How long a request may say that it waits in queues."""
        return max(1, round(_batch_ns(model) / 1_000 * self.rate(0.5, 60)))

    def stream(self, model: ModelPlan) -> dict[str, Any]:
        """How a decoupled model answers a request, and how its client reads."""
        chance = self.chance
        slow = self.has(Feature.SLOW_READERS) and chance.random() < 0.4
        return {
            "answers": chance.choice((0, 1, 1, 2, 3, chance.randint(2, 12))),
            "answer_ns": round(self.rate(0.01, 1.0) * model.fixed_ns) if chance.random() < 0.6 else 0,
            "apart": chance.random() < 0.3,
            "pause_ns": round(self.rate(0.05, 2.0) * model.fixed_ns) if slow else 0,
        }

    def manner(self) -> Manner:
        draw = self.chance.random()
        if self.has(Feature.VANISHING) and draw < 0.05:
            return Manner.VANISHES
        return Manner.WAITS if self.has(Feature.WAITING) and draw < 0.25 else Manner.LISTENS

    def fault(self) -> Fault:
        for fault, rate in self.rates.items():
            if self.chance.random() < rate:
                return fault
        return Fault.NONE


def _batch_ns(model: ModelPlan) -> int:
    """About what a batch of the model takes."""
    return model.fixed_ns + model.per_row_ns * max(1, model.max_batch_size)


def _longest_batch_ns(model: ModelPlan, asked: list[RequestPlan]) -> int:
    """What no batch of the model takes longer than, unless a fault strikes.

    Args:
        asked: what it will have to do with.
    """
    rows = max(1, model.max_batch_size)
    if model.decoupled:
        extras = sorted(each.extra_ns + (each.answers + 1) * (each.answer_ns + each.pause_ns) for each in asked)
    else:
        extras = sorted(request.extra_ns for request in asked)
    return model.fixed_ns + model.per_row_ns * rows + sum(extras[-rows:])
