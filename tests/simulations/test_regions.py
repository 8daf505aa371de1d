"""Inputs in shared memory, in swarm runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trireme.engine.datatypes import FP32
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.simulations.events import RegionRead, RequestAnswered, RequestQueued
from trireme.simulations.invariants.serving import STOPPING
from trireme.simulations.plan import Change, ChangePlan, ModelPlan, Plan, RequestPlan
from trireme.simulations.play import RunOutcome, play
from trireme.simulations.regions import CUT, LARGE, LATE, LOST, in_region, shared, spoil
from trireme.simulations.shapes import Shapes
from trireme.simulations.swarm import draw_plan

MS = 1_000_000
TENSOR = Tensor("INPUT0", FP32, (4,), array=np.ones(4, np.float32))
MODEL = ModelPlan("m", fixed_ns=5 * MS, shapes=Shapes.VARIABLE)


def played(*requests: RequestPlan, changes: tuple[ChangePlan, ...] = (), load_ns: int = 0) -> RunOutcome:
    plan = Plan(1, (MODEL,), requests, calm_ns=1_000 * MS, offload_ns=3 * MS, changes=changes, load_ns=load_ns)
    outcome = play(plan)
    assert outcome.violation is None
    return outcome


def test_only_what_is_large_is_read_by_a_thread() -> None:
    requests = RequestPlan(1, "m", 0, region=True), RequestPlan(2, "m", 0, region=True, width=LARGE)
    history = played(*requests).history
    assert [(event.request, event.at_ns) for event in history.of(RequestQueued)] == [(1, 0), (2, 3 * MS)]
    assert [answer.error for answer in history.of(RequestAnswered)] == ["", ""]


def test_what_is_read_when_the_server_stops_gives_back_what_it_holds() -> None:
    request = RequestPlan(1, "m", 0, region=True, width=LARGE)
    outcome = play(Plan(1, (MODEL,), (request,), calm_ns=0, offload_ns=30 * MS, stop_ns=7 * MS))
    assert outcome.violation is None
    (answer,) = outcome.history.of(RequestAnswered)
    assert (answer.at_ns, STOPPING in answer.error) == (30 * MS, True)


def test_a_client_for_whom_a_thread_reads_may_leave_answers_for_longer() -> None:
    request = RequestPlan(1, "m", 0, region=True, width=LARGE, answers=5, pause_ns=8 * MS)
    model = ModelPlan("m", decoupled=True, shapes=Shapes.VARIABLE)
    assert play(Plan(1, (model,), (request,), calm_ns=1_000 * MS, offload_ns=MS, window=3)).violation is None


def test_a_region_that_was_cut_short_costs_its_request() -> None:
    (answer,) = played(RequestPlan(CUT, "m", 0, region=True)).history.of(RequestAnswered)
    assert LOST in answer.error


def test_a_request_whose_model_is_replaced_while_it_is_read_is_for_the_new_one() -> None:
    requests = (RequestPlan(1, "m", 10 * MS, region=True, width=LARGE),)
    change = ChangePlan(12 * MS, "m", Change.RELOAD)
    history = played(*requests, changes=(change,)).history
    assert [event.model for event in history.of(RequestQueued)] == ["m~2"]


def test_what_is_left_to_the_instance_is_not_read_before() -> None:
    requests = RequestPlan(9, "m", 0, region=True, width=LARGE), RequestPlan(10, "m", 0, region=True)
    plan = Plan(1, (replace(MODEL, reads_regions=True),), requests, calm_ns=1_000 * MS, offload_ns=3 * MS)
    history = play(plan).history
    assert [(event.request, event.at_ns) for event in history.of(RequestQueued)] == [(9, 0), (10, 0)]
    assert history.of(RegionRead) == [RegionRead(5 * MS, 9, False)], "a small one is read at once"
    assert [answer.error for answer in history.of(RequestAnswered)] == ["", ""]


@pytest.mark.parametrize("number", [LATE, LATE + 1])
def test_a_region_that_is_lost_when_its_instance_reads_it_costs_its_request_alone(number: int) -> None:
    """Before it is read, and while it is."""
    requests = RequestPlan(number, "m", 0, region=True, width=LARGE), RequestPlan(2, "m", 0, region=True, width=LARGE)
    model = replace(MODEL, reads_regions=True, dynamic=True, delay_us=1_000)
    outcome = play(Plan(1, (model,), requests, calm_ns=1_000 * MS))
    assert outcome.violation is None
    assert {event.request: event.lost for event in outcome.history.of(RegionRead)} == {number: True, 2: False}
    errors = {answer.request: answer.error for answer in outcome.history.of(RequestAnswered)}
    assert LOST in errors[number]
    assert not errors[2]


def test_what_clients_write_when_their_request_is_in_changes_no_answer() -> None:
    request = InferenceRequest("m", inputs=in_region(RequestPlan(1, "m", 0, region=True), [TENSOR]), in_regions=True)
    (before,) = [tensor.array.copy() for tensor in request.inputs]
    late = in_region(RequestPlan(1, "m", 0, region=True), [TENSOR])
    spoil(replace(request, inputs=late))
    assert (before.tobytes(), late[0].array.tobytes()) == (TENSOR.array.tobytes(), b"\x7f" * TENSOR.nbytes)


def test_everything_else_in_a_plan_stays_what_it_was() -> None:
    plans = [draw_plan(seed) for seed in range(1, 60)]
    drawn = [plan for plan in plans if plan.offload_ns]
    assert any(request.region for plan in drawn for request in plan.requests)
    assert any(model.reads_regions for plan in plans for model in plan.models)
    for plan in plans:
        if not any(request.width == LARGE for request in plan.requests):
            if plan not in drawn:
                assert not any(request.region for request in plan.requests)
                assert shared(plan) == plan
            else:
                requests = tuple(replace(each, region=False) for each in plan.requests)
                assert shared(replace(plan, offload_ns=0, requests=requests)) == plan
            assert not any(model.reads_regions for model in plan.models)
