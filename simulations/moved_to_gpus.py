"""Moving models of a drawn plan to GPUs: which ones, to how many, and what goes wrong there.

The plan stays what it was in everything else, and what is drawn here is drawn from a source of its own: so runs without
GPUs are what they were before there were any.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from ..engine.config.sequence import ControlKind
from .plan import GPU_FAULTS, Fault, GpuPlan, ModelPlan, Plan, RequestPlan

SHARE = 0.35
"""Of the runs that have GPUs."""

BLOCK_BYTES = 4096
"""What each input and output takes of the pool of pinned memory, so few are the rows (`engine.gpu.pinned_pool`)."""


def moved_to_gpus(plan: Plan) -> Plan:
    """The plan, some of whose models may be on GPUs: any but ensembles, and models that answer several times."""
    chance = Random(f"GPUs of {plan.seed}")
    able = [model for model in plan.models if not model.steps and not model.decoupled]
    if chance.random() >= SHARE or not able:
        return plan
    longest_ns = max(model.fixed_ns for model in able)
    gpus = tuple(_gpu(chance, longest_ns) for _ in range(chance.choice((1, 1, 2))))
    moved = {model.name: _model(chance, model, len(gpus)) for model in able if chance.random() < 0.75}
    models = tuple(moved.get(model.name, model) for model in plan.models)
    flights = sum(model.instances * len(model.gpus) * model.credits for model in moved.values())
    copies_s = max((_copies_ns(model, gpus) for model in moved.values()), default=0) / 1e9
    rates = {fault: _rate(chance, 0.002, 0.1) for fault in GPU_FAULTS if chance.random() < 0.5}
    return replace(
        plan,
        models=models,
        requests=tuple(_struck(chance, request, rates) for request in plan.requests),
        gpus=gpus,
        pinned_bytes=BLOCK_BYTES * chance.randint(2, 2 + 2 * flights) if chance.random() < 0.3 else 0,
        # what is in flight waits for what is before it on the same GPU, and that is no hang; nor are copies
        hang_limit_s=max(plan.hang_limit_s * (1 + flights), 1.1 * (plan.hang_limit_s + copies_s))
        if plan.hang_limit_s
        else 0.0,
    )


def _copies_ns(model: ModelPlan, gpus: tuple[GpuPlan, ...]) -> int:
    """What the copies of the largest batch take, those of control inputs and states included."""
    added = 0 if model.sequences is None else len(ControlKind) + model.sequences.sums
    rows = max(1, model.max_batch_size)
    return rows * max((model.inputs + added) * gpu.row_in_ns + (1 + added) * gpu.row_out_ns for gpu in gpus)


def _gpu(chance: Random, longest_ns: int) -> GpuPlan:
    row_in_ns, row_out_ns = (round(longest_ns * _rate(chance, 0.01, 1.0)) for _ in range(2))
    return GpuPlan(
        units=chance.choice((1, 1, 2, 4)),
        row_in_ns=row_in_ns,
        row_out_ns=row_out_ns,
        memory_bytes=round(_rate(chance, 64, 4096)) if chance.random() < 0.3 else 0,
        ill_ns=round(_rate(chance, 1e6, 5e9)),
    )


def _model(chance: Random, model: ModelPlan, gpus: int) -> ModelPlan:
    """The first instances must start, or there is nothing to see."""
    numbers = tuple(range(gpus)) if chance.random() < 0.6 else (chance.randrange(gpus),)
    first = model.instances * len(numbers)
    return replace(
        model,
        gpus=numbers,
        credits=chance.choice((1, 2, 2, 2, 3)),
        failing_starts=tuple(number for number in model.failing_starts if number > first),
    )


def _struck(chance: Random, request: RequestPlan, rates: dict[Fault, float]) -> RequestPlan:
    for fault, rate in rates.items():
        if request.fault is Fault.NONE and chance.random() < rate:
            request = replace(request, fault=fault)
    return request


def _rate(chance: Random, least: float, most: float) -> float:
    return math.exp(chance.uniform(math.log(least), math.log(most)))
