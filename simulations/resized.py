"""Changes of the number of instances that the models of a drawn plan have, while they serve.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .plan import Change, ChangePlan, Plan

SHARE = 0.15
"""Of the runs."""

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
