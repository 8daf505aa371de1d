"""Requests, and loads and unloads, that come from models while they serve (`actors.model_calls`), and not from front
ends.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .plan import Plan, RequestPlan
from .workloads import WayIn

SHARE = 0.3
"""Of the runs in which the server-wide budget is not used up, for which such requests do not wait."""

NOT_READY = "Failed for execute the inference request. Model"
"""What a model is told of one that is not there."""


def changed_inside(plan: Plan) -> Plan:
    """The plan, some of whose changes are asked for by models."""
    chance = Random(f"changes inside {plan.seed}")
    rate = chance.choice((0.0, 0.3, 1.0))
    return replace(plan, changes=tuple(replace(each, inside=chance.random() < rate) for each in plan.changes))


def asked_inside(plan: Plan) -> Plan:
    """The plan, some of whose requests are asked by models."""
    chance = Random(f"inner {plan.seed}")
    if chance.random() >= SHARE or len(plan.requests) > plan.max_inflight_requests or plan.max_inflight_bytes:
        return plan
    rate = chance.uniform(0.1, 0.9)

    def drawn(request: RequestPlan) -> RequestPlan:
        if chance.random() >= rate or request.entry is not WayIn.WHOLE or request.region:
            return request
        return replace(request, entry=WayIn.INNER)

    return replace(plan, requests=tuple([drawn(request) for request in plan.requests]))
