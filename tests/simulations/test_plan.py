"""Plans: drawn from a seed, written, read, made smaller by hand."""

from __future__ import annotations

import pytest

from trireme.engine.config.model import TimeoutAction
from trireme.engine.errors import InvalidArgumentError
from trireme.simulations.plan import Fault, ModelPlan, Plan, PolicyPlan, RequestPlan
from trireme.simulations.report import describe
from trireme.simulations.swarm import FAULTS, Feature, draw_plan


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """Those of a hundred seeds."""
    return [draw_plan(seed) for seed in range(1, 101)]


def test_a_plan_is_read_as_it_was_written(plans: list[Plan]) -> None:
    for plan in plans[:10]:
        assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected a Plan, not []"),
        ('{"seed": 1}', "missing 3 required positional arguments"),
        ('{"sede": 1}', "Plan has no sede"),
        ('{"seed": "1", "models": [], "requests": [], "calm_ns": 0}', "expected int, not '1'"),
        ('{"seed": 1, "models": [{"name": "m", "dynamic": 1}], "requests": [], "calm_ns": 0}', "expected bool, not 1"),
        (
            '{"seed": 1, "models": [], "requests": [{"number": 1, "model": "m", "at_ns": 0, "fault": "flood"}]}',
            "'flood' is not a valid Fault",
        ),
    ],
)
def test_what_is_no_plan_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Plan.from_json(text)
    assert caught.value.message.startswith("not a plan: ")
    assert reason in caught.value.message


def test_a_seed_has_one_plan_and_seeds_differ(plans: list[Plan]) -> None:
    assert draw_plan(5) == plans[4]
    assert len({plan.to_json() for plan in plans[:30]}) == 30


def test_runs_leave_features_and_faults_out(plans: list[Plan]) -> None:
    """In a hundred plans each fault is missing from some and there in others, and so is each sort of model."""
    for fault in FAULTS:
        having = sum(any(request.fault is fault for request in plan.requests) for plan in plans)
        assert 5 < having < 95, fault
    dynamic = [any(model.dynamic for model in plan.models) for plan in plans]
    assert 5 < sum(dynamic) < 100
    assert len(Feature) > 10
    assert 5 < sum(plan.stop_ns > 0 for plan in plans) < 95
    assert 5 < sum(plan.max_inflight_requests < 100 for plan in plans) < 95


def test_drawn_plans_are_valid(plans: list[Plan]) -> None:
    """Numbers are unique, requests wait for earlier ones of the plan, and preferred sizes can be reached."""
    for plan in plans:
        numbers = [request.number for request in plan.requests]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(request.after < request.number for request in plan.requests)
        for model in plan.models:
            assert all(1 <= size <= model.max_batch_size for size in model.preferred)
            assert model.default_level <= model.levels
            assert min(model.failing_starts, default=99) > model.instances


def test_who_waited_for_a_request_that_is_left_out_waits_for_the_one_before() -> None:
    chain = tuple(RequestPlan(number, "m", 5, after=number - 1) for number in range(1, 6))
    plan = Plan(1, (ModelPlan("m"),), chain, 0).without_requests(frozenset({1, 3, 4}))
    assert [(request.number, request.after) for request in plan.requests] == [(2, 0), (5, 2)]


def test_a_model_plan_becomes_the_configuration_it_describes() -> None:
    policies = (PolicyPlan(0, timeout_us=7), PolicyPlan(2, delay=True, max_queue_size=3, override=True))
    model = ModelPlan(
        "m", 3, 8, dynamic=True, preferred=(2, 4), delay_us=9, levels=2, default_level=1, policies=policies
    )
    batching = model.config().dynamic_batching
    assert batching is not None
    assert (batching.preferred_batch_sizes, batching.max_queue_delay_us) == ((2, 4), 9)
    assert batching.policy(1).default_timeout_us == 7
    assert batching.policy(2).timeout_action is TimeoutAction.DELAY
    assert batching.policy(2).max_queue_size == 3
    assert ModelPlan("m").config().dynamic_batching is None


def test_a_plan_is_described_in_words() -> None:
    model = ModelPlan("m", dynamic=True, preferred=(4,), delay_us=500, policies=(PolicyPlan(timeout_us=1500),))
    request = RequestPlan(3, "m", 2_500_000, rows=2, give_up_ns=1_000_000, fault=Fault.HANG, sequence=9, start=True)
    later = RequestPlan(4, "m", 1_000_000, after=3)
    assert list(describe(Plan(7, (model,), (request, later), 10_000_000, hang_limit_s=0.5))) == [
        "seed 7: 1 models, 2 requests, faults until 10 ms, hang_limit_s 0.5",
        "  model m: 1 instances of 10 ms; max_batch_size 8; preferred 4; delay 0.5 ms; level 0: rejected after 1.5 ms",
        "  request 3 to m at 2.5 ms, 2 rows, sequence 9 start, given up after 1 ms, instance hangs",
        "  request 4 to m 1 ms after the answer to 3",
    ]
