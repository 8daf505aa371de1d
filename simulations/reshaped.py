"""Letting the requests of a drawn plan differ in shape: of which models, in what, and how often.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .plan import ModelPlan, Plan, RequestPlan
from .shapes import WIDTH, Shapes

SHARE = 0.4
"""Of the runs in which that is possible."""


def reshaped(plan: Plan) -> Plan:
    """The plan, with requests that differ to some of its models; not to those that are stateful, in ensembles, or on
    GPUs."""
    chance = Random(f"shapes of {plan.seed}")
    able = [model for model in plan.models if model.sequences is None and not model.gpus]
    if chance.random() >= SHARE or not able or any(model.steps for model in plan.models):
        return plan
    drawn = {model.name: chance.choice(_kinds(model)) for model in able if chance.random() < 0.8}
    models = tuple(replace(model, shapes=drawn.get(model.name, Shapes.FIXED)) for model in plan.models)
    return replace(plan, models=models, requests=_differing(chance, plan.requests, drawn))


def _kinds(model: ModelPlan) -> list[Shapes]:
    kinds = [Shapes.VARIABLE, Shapes.OPTIONAL, Shapes.SHAPE_TENSOR]
    return [*kinds, Shapes.RAGGED] if model.max_batch_size else kinds


def _differing(chance: Random, requests: tuple[RequestPlan, ...], drawn: dict[str, Shapes]) -> tuple[RequestPlan, ...]:
    """The requests to such a model; often several in a row are alike, or none would share a batch."""
    changes = chance.choice((0.1, 0.3, 0.7))
    sizes, extras = dict.fromkeys(drawn, WIDTH), dict.fromkeys(drawn, 1)
    made: list[RequestPlan] = []
    for request in requests:
        shapes = drawn.get(request.model)
        if shapes is not None:
            if chance.random() < changes:
                sizes[request.model], extras[request.model] = chance.randint(1, 5), chance.randint(0, 2)
            if shapes.is_sized:
                request = replace(request, width=sizes[request.model])
            else:
                request = replace(request, extra=extras[request.model])
        made.append(request)
    return tuple(made)
