"""Giving some models of a drawn plan a latency objective.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from .plan import ModelPlan, Plan

SHARE = 0.2
"""Of the runs in which schedulers do not hold requests back."""

LEAST, MOST = 3.0, 40.0
"""Objectives, in times of a full batch."""

HOPELESS = 0.1
"""So many are shorter than a batch takes."""


def with_objectives(plan: Plan) -> Plan:
    """The plan, in which some models with dynamic batching have an objective; not decoupled ones."""
    chance = Random(f"objectives {plan.seed}")
    if chance.random() >= SHARE or any(plan.held):
        return plan
    models = tuple(
        _with_objective(model, chance) if model.dynamic and not model.decoupled and chance.random() < 0.7 else model
        for model in plan.models
    )
    return replace(plan, models=models)


def _with_objective(model: ModelPlan, chance: Random) -> ModelPlan:
    """The model without what cannot be combined with an objective."""
    times = math.exp(chance.uniform(math.log(LEAST), math.log(MOST)))
    if chance.random() < HOPELESS:
        times = chance.uniform(0.2, 1.0)
    batch_ns = model.fixed_ns + model.per_row_ns * max(1, model.max_batch_size)
    return replace(
        model,
        objective_ms=round(batch_ns * times / 1e6, 3),
        delay_us=0,
        preserve_ordering=False,
        policies=tuple(replace(policy, delay=False) for policy in model.policies),
    )
