"""Changes of the models of a drawn plan, while they serve: of their number of instances; loads that fail, and unloads
of ensembles with their members; and schedulers that hold requests back.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .graphs import Graphs
from .plan import Change, ChangePlan, Fault, Plan

SHARE = 0.15
"""Of the runs."""

SHARE_OF_REMOVALS = 0.1
"""Of the runs without resources."""

SOON_NS = 200_000_000
"""Processes start again after 0.1 s and more."""

SHARE_OF_HOLDING = 0.12
"""Of the runs without ensembles."""

MOST = 4
"""Instances."""


def resized(plan: Plan) -> Plan:
    """The plan, in which some models get more instances or fewer; not ensembles, nor those on GPUs."""
    chance = Random(f"resizes {plan.seed}")
    able = [model.name for model in plan.models if not (model.steps or model.gpus)]
    if chance.random() >= SHARE or not able:
        return plan
    end_ns = max(request.at_ns for request in plan.requests)
    changes = [
        ChangePlan(chance.randint(0, end_ns), chance.choice(able), Change.RESIZE, chance.randint(1, MOST))
        for _ in range(chance.randint(1, 5))
    ]
    return replace(plan, changes=(*plan.changes, *changes))


def removed(plan: Plan) -> Plan:
    """The plan, in which processes end amid batches, and instances are removed soon afterwards: what they were to
    execute again is left to others. Not under the rate limiter, where nothing is executed again."""
    chance = Random(f"removals {plan.seed}")
    if chance.random() >= SHARE_OF_REMOVALS or plan.resources:
        return plan
    graphs = Graphs(plan)
    able = {
        model.name
        for model in plan.models
        if model.dynamic and not (model.gpus or model.steps or graphs.is_stateful(model))
        if not graphs.is_decoupled(model.name)
    }
    theirs = [request for request in plan.requests if request.model in able and request.fault is Fault.NONE]
    killers = chance.sample(theirs, min(len(theirs), chance.randint(2, 12)))
    changes = [
        ChangePlan(killer.at_ns + chance.randint(0, SOON_NS), killer.model, Change.RESIZE, chance.randint(1, MOST))
        for killer in (*killers, *killers)
    ]
    numbers = {killer.number for killer in killers}
    requests = [replace(each, fault=Fault.KILL) if each.number in numbers else each for each in plan.requests]
    return replace(plan, requests=tuple(requests), changes=(*plan.changes, *changes))


def broken(plan: Plan) -> Plan:
    """The plan, in which some models cannot be loaded for a while, and some are unloaded with their members."""
    chance = Random(f"broken {plan.seed}")
    if chance.random() >= SHARE:
        return plan
    end_ns = max(request.at_ns for request in plan.requests)
    changes: list[ChangePlan] = []
    for _ in range(chance.randint(1, 3)):
        model, at_ns = chance.choice(plan.models), chance.randint(0, end_ns)
        kind = chance.choice((Change.BREAK, Change.UNLOAD_ALL if model.steps else Change.UNLOAD))
        later_ns = at_ns + round(chance.random() ** 2 * end_ns)
        changes.append(ChangePlan(at_ns, model.name, kind))
        if chance.random() < 0.3:
            changes.append(ChangePlan((at_ns + later_ns) // 2, model.name, Change.LOAD))
        changes.append(ChangePlan(later_ns, model.name, Change.RELOAD))
    return replace(plan, changes=(*plan.changes, *changes), load_retries=chance.choice((0, 0, 1, 2)))


def holding(plan: Plan) -> Plan:
    """The plan, whose schedulers hold requests back until there are enough; not with ensembles, whose steps would wait
    for each other."""
    chance = Random(f"holding {plan.seed}")
    if chance.random() >= SHARE_OF_HOLDING or any(model.steps for model in plan.models):
        return plan
    end_ns = max(request.at_ns for request in plan.requests)
    held = chance.randint(1, 8), chance.choice((0, 0, 1, 2))
    return replace(plan, held=held, stop_ns=plan.stop_ns or max(1, round(end_ns * chance.uniform(0.3, 1.1))))
