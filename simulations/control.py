"""How the server of a drawn plan learns which models to serve: by name when it starts, by load requests, or by looking
into the repository from time to time; and how long it lets loads go on that are not wanted any more
(docs/reference/model-control.md#control-modes).

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

from ..actors.model_control import ALL_MODELS
from ..engine.options import ControlMode
from .plan import Change, Plan

SHARE_OF_NAMED = 0.5
SHARE_OF_POLLED = 0.35
SHARE_OF_IMPATIENT = 0.5
"""Of the runs whose models are loaded and unloaded."""

LOOKS = 60
"""About so many times the repository is looked into while requests come, at most."""


def polled(plan: Plan) -> Plan:
    """The plan, whose server looks for changes by itself; not if starts may fail, of which no client would be told."""
    chance = Random(f"polled {plan.seed}")
    starts_fail = any(model.failing_starts or model.gpus for model in plan.models)
    if chance.random() >= SHARE_OF_POLLED or not plan.changes or starts_fail:
        return plan
    end_ns = max(request.at_ns for request in plan.requests)
    poll_ns = round(end_ns * math.exp(chance.uniform(math.log(1 / LOOKS), math.log(0.3))))
    changes = tuple(
        replace(each, change=Change.UNLOAD) if each.change is Change.UNLOAD_ALL else each for each in plan.changes
    )
    return replace(plan, changes=changes, poll_ns=max(poll_ns, plan.load_ns, 1_000_000))


def named(plan: Plan) -> Plan:
    """The plan, whose server is told by name which models to load when it starts."""
    chance = Random(f"named {plan.seed}")
    return replace(plan, named=True) if _is_explicit(plan) and chance.random() < SHARE_OF_NAMED else plan


def impatient(plan: Plan) -> Plan:
    """The plan, whose server soon ends loads that something replaces; in half of these runs loads are so slow that it
    looks several times while they last."""
    chance = Random(f"impatient {plan.seed}")
    if chance.random() >= SHARE_OF_IMPATIENT or not plan.changes or not plan.load_ns:
        return plan
    load_ns = round(chance.uniform(0.1, 1.5) * 1e9) if chance.random() < 0.5 else plan.load_ns
    patience_s = load_ns / 1e9 * math.exp(chance.uniform(math.log(0.3), math.log(20)))
    return replace(plan, load_ns=load_ns, patience_s=patience_s)


def _is_explicit(plan: Plan) -> bool:
    return bool(plan.changes) and not plan.poll_ns


def control_options(plan: Plan) -> dict[str, Any]:
    """What the server is told about that."""
    options: dict[str, Any] = {"startup_models": _startup_models(plan), "model_load_retry_count": plan.load_retries}
    if plan.poll_ns:
        options |= {"model_control_mode": ControlMode.POLL, "repository_poll_s": plan.poll_ns / 1e9}
    else:
        options["model_control_mode"] = ControlMode.EXPLICIT if plan.changes else ControlMode.NONE
    return options | ({"load_patience_s": plan.patience_s} if plan.patience_s else {})


def models_named(plan: Plan) -> tuple[str, ...]:
    """Those that the server is told to load when it starts, of one that is asked to load and unload models."""
    if not _is_explicit(plan):
        return ()
    named = _startup_models(plan)
    return tuple(model.name for model in plan.models) if named == (ALL_MODELS,) else named


def _startup_models(plan: Plan) -> tuple[str, ...]:
    """All, or those that no ensemble needs."""
    if not plan.named:
        return (ALL_MODELS,)
    members = {step.model for model in plan.models for step in model.steps}
    return tuple(model.name for model in plan.models if model.name not in members)
