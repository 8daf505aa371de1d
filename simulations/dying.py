"""What dies in a drawn plan: slots of stateful models, and processes.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from .graphs import Graphs
from .plan import Fault, Plan

SHARE = 0.4
"""Of the runs with stateful models."""

SHARE_OF_KILLERS = 0.25
"""Of the runs."""


def dying(plan: Plan) -> Plan:
    """The plan, some of whose requests kill the slot of their sequence."""
    chance = Random(f"deaths {plan.seed}")
    graphs = Graphs(plan)
    stateful = {model.name for model in plan.models if graphs.is_stateful(model)}
    if chance.random() >= SHARE or not stateful:
        return plan
    rate = math.exp(chance.uniform(math.log(0.003), math.log(0.1)))
    requests = tuple(
        replace(request, fault=Fault.SLOT)
        if request.fault is Fault.NONE and request.model in stateful and chance.random() < rate
        else request
        for request in plan.requests
    )
    return replace(plan, requests=requests)


def killing(plan: Plan) -> Plan:
    """The plan, some of whose requests end the process that executes them; not of models on GPUs, nor of those that
    answer any number of times."""
    chance = Random(f"killers {plan.seed}")
    if chance.random() >= SHARE_OF_KILLERS:
        return plan
    graphs = Graphs(plan)
    on_gpus = {model.name for model in plan.models if model.gpus or model.steps}
    rate = math.exp(chance.uniform(math.log(0.003), math.log(0.04)))
    requests = tuple(
        replace(request, fault=Fault.KILL)
        if request.fault is Fault.NONE
        and request.model not in on_gpus
        and not graphs.is_decoupled(request.model)
        and chance.random() < rate
        else request
        for request in plan.requests
    )
    return replace(plan, requests=requests)
