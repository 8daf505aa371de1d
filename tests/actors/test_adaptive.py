"""A model with a latency objective, in a server, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import trio
from ensembles import ensemble, step
from google.protobuf import text_format

from trireme.engine.config.model import DynamicBatching, ModelConfigMessage
from trireme.engine.errors import RefusalReason, UnavailableError
from trireme.simulations.models import Profile, SimulatedModel

OBJECTIVE = {"LATENCY_OBJECTIVE_MS": "250"}


def adaptive(simulated, **more):
    batching = DynamicBatching((8,))
    return simulated(Profile(0.1), dynamic_batching=batching, max_batch_size=8, parameters=OBJECTIVE, **more)


async def test_what_would_be_late_is_refused_at_once_and_the_rest_is_in_time(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """Batches take 0.1 s, as the first 9 requests show. Of 40 behind one that has just come, those are in time that
    the next two batches hold."""
    late: list[float] = []
    took: list[float] = []
    texts: set[str] = set()

    async def ask() -> None:
        began = trio.current_time()
        try:
            await server.infer(request_for())
            took.append(trio.current_time() - began)
        except UnavailableError as error:
            texts.add(str(error))
            late.append(trio.current_time() - began)

    async with open_server(adaptive(simulated)) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(ask)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.001)
            for _ in range(40):
                nursery.start_soon(ask)
        (row,) = server.statistics()
    (text,) = texts
    assert text.endswith("Latency objective cannot be met, the request would be answered too late")
    assert late == [0.0] * len(late)
    assert len(late) >= 40 - 16
    assert len(late) + len(took) == 9 + 1 + 40
    assert max(took) <= 0.25
    assert row.statistics.inference_count == len(took)
    assert row.statistics.refused == {RefusalReason.OBJECTIVE: len(late)}


async def test_objective_that_is_no_number_fails_the_load(autojump_clock, open_server, simulated) -> None:
    model = simulated(Profile(1), dynamic_batching=DynamicBatching(), parameters={"LATENCY_OBJECTIVE_MS": "soon"})
    async with open_server(model, exit_on_error=False) as server:
        (row,) = server.repository_index()
    assert "parameter 'LATENCY_OBJECTIVE_MS' of model 'm' is 'soon'" in row.reason


async def test_combination_that_cannot_be_fails_the_load(autojump_clock, open_server, simulated) -> None:
    model = adaptive(simulated, decoupled=True)
    async with open_server(model, exit_on_error=False) as server:
        (row,) = server.repository_index()
    assert "cannot be combined with 'model_transaction_policy.decoupled'" in row.reason


async def test_ensemble_cannot_have_an_objective(autojump_clock, open_server, simulated) -> None:
    steps = [step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})]
    config = ensemble(steps, ("INPUT0 FP32 4",), ("OUTPUT0 FP32 4",), max_batch_size=8, name="e")
    both = simulated(Profile(1), name="a"), SimulatedModel(replace(config, parameters=OBJECTIVE), Profile(1))
    async with open_server(*both, exit_on_error=False) as server:
        reasons = {row.name: row.reason for row in server.repository_index()}
    assert "parameter 'LATENCY_OBJECTIVE_MS' of model 'e' needs 'dynamic_batching'" in reasons["e"]


async def test_objective_that_cannot_be_met_is_tried_by_instances_that_need_leave(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """They are granted leave only when a request waits for them."""
    batching, hopeless = DynamicBatching(), {"LATENCY_OBJECTIVE_MS": "20"}
    limited = text_format.Parse("instance_group { rate_limiter { } }", ModelConfigMessage())
    more = {"parameters": hopeless, "message": limited}
    model = simulated(Profile(0.1), dynamic_batching=batching, max_batch_size=8, **more)
    async with open_server(model, rate_limit=True) as server:
        for _ in range(3):
            await server.infer(request_for())
        (row,) = server.statistics()
    assert row.statistics.inference_count == 3
