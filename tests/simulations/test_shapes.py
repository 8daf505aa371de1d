"""Requests that differ in shape: what their models are like, what they hold, and that plans stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trireme.engine.job import SealReason
from trireme.engine.scheduling.formation import Compatibility
from trireme.simulations.events import BatchSealed
from trireme.simulations.plan import ModelPlan, Plan, RequestPlan
from trireme.simulations.play import play
from trireme.simulations.regions import LARGE
from trireme.simulations.reshaped import reshaped
from trireme.simulations.rows import held
from trireme.simulations.shapes import Shapes, extra_input, extra_value
from trireme.simulations.swarm import draw_plan


@pytest.mark.parametrize(("shapes", "differs"), [(each, each not in (Shapes.FIXED, Shapes.RAGGED)) for each in Shapes])
def test_a_model_with_such_requests_looks_at_them_before_they_share_a_batch(shapes: Shapes, differs: bool) -> None:
    config = ModelPlan("m", shapes=shapes).config()
    assert (Compatibility.of(config) is not None) is differs


def test_an_extra_input_says_who_gives_it() -> None:
    rows = held(7, (2, 4))
    assert extra_input(Shapes.OPTIONAL, 0, rows) is None
    optional = extra_input(Shapes.OPTIONAL, 1, rows)
    assert optional is not None
    assert optional.array.tolist() == [[7], [1007]]
    assert np.array_equal(extra_value(Shapes.OPTIONAL, 1, rows), rows[:, :1])
    tensor = extra_input(Shapes.SHAPE_TENSOR, 5, rows)
    assert tensor is not None
    assert tensor.array.tolist() == [2, 5], "its batch size goes before it"
    assert extra_value(Shapes.SHAPE_TENSOR, 5, rows) == 5
    assert extra_input(Shapes.VARIABLE, 5, rows) is None


def executed(shapes: Shapes, *requests: RequestPlan) -> list[tuple[tuple[int, ...], str]]:
    """The batches that requests at one instant are executed in, behind one that keeps the instance busy."""
    model = ModelPlan("m", dynamic=True, shapes=shapes)
    first = RequestPlan(9, "m", 0)
    plan = Plan(1, (model,), (first, *(replace(each, at_ns=1_000) for each in requests)), calm_ns=0)
    outcome = play(plan)
    assert outcome.violation is None
    assert outcome.counts["requests"] == len(plan.requests)
    return [(batch.requests, batch.reason) for batch in outcome.history.of(BatchSealed)][1:]


SIZES = [RequestPlan(number, "m", 0, rows=number, width=width) for number, width in ((1, 4), (2, 4), (3, 5))]
EXTRAS = [RequestPlan(number, "m", 0, rows=number, extra=extra) for number, extra in ((1, 0), (2, 0), (3, 2))]
APART = [((1, 2), SealReason.SHAPE.value), ((3,), SealReason.IDLE.value)]
TOGETHER = [((1, 2, 3), SealReason.IDLE.value)]


@pytest.mark.parametrize(
    ("shapes", "requests", "batches"),
    [
        (Shapes.VARIABLE, SIZES, APART),
        (Shapes.RAGGED, SIZES, TOGETHER),
        (Shapes.OPTIONAL, EXTRAS, APART),
        (Shapes.SHAPE_TENSOR, EXTRAS, APART),
        (Shapes.FIXED, [replace(each, width=4) for each in SIZES], TOGETHER),
    ],
)
def test_requests_that_differ_are_executed_apart_unless_they_may_be_ragged(
    shapes: Shapes, requests: list[RequestPlan], batches: list[tuple[tuple[int, ...], str]]
) -> None:
    assert executed(shapes, *requests) == batches


def test_everything_else_in_a_plan_stays_what_it_was() -> None:
    for seed in range(1, 60):
        plan = draw_plan(seed)
        if any(request.width == LARGE for request in plan.requests):
            continue
        plain = replace(
            plan,
            models=tuple(replace(model, shapes=Shapes.FIXED) for model in plan.models),
            requests=tuple(replace(request, width=4, extra=0) for request in plan.requests),
        )
        assert reshaped(plain) == plan
