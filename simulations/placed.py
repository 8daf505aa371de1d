"""Where the models of a drawn plan execute: which of their batches in place, and how the ends of others are known.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .models import Ends
from .plan import ModelPlan, Plan

SHARE = 0.35
"""Of the runs."""


def placed(plan: Plan) -> Plan:
    """The plan, some of whose models execute some batches in place; not those that are on GPUs, decoupled, or
    ensembles."""
    chance = Random(f"in place {plan.seed}")
    if chance.random() >= SHARE:
        return plan

    def drawn(model: ModelPlan) -> ModelPlan:
        able = not (model.steps or model.gpus or model.decoupled)
        return replace(model, in_place=chance.choice((2, 3, 5, 50))) if able and chance.random() < 0.7 else model

    return replace(plan, models=tuple([drawn(model) for model in plan.models]))


def with_ends(plan: Plan) -> Plan:
    """The plan, some of whose models learn of ends as from threads or processes; not those on GPUs, or ensembles."""
    chance = Random(f"ends {plan.seed}")
    if chance.random() >= SHARE:
        return plan

    def drawn(model: ModelPlan) -> ModelPlan:
        return model if model.steps or model.gpus else replace(model, ends=chance.choice(tuple(Ends)))

    return replace(plan, models=tuple([drawn(model) for model in plan.models]))
