"""A model with a latency objective, in a server, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from ensembles import ensemble, step
from google.protobuf import text_format

from trireme.actors import InferenceServer
from trireme.api.metrics.collector import ServerCollector
from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.config.model import DynamicBatching, ModelConfigMessage
from trireme.engine.errors import RefusalReason, UnavailableError
from trireme.engine.job import ExecutionBatch
from trireme.engine.metrics.families import HostReadings
from trireme.engine.metrics.page import write_text
from trireme.engine.options import ControlMode
from trireme.simulations.models import Profile, SimulatedModel

LATE = "Latency objective cannot be met, the request would be answered too late"
REFUSED = f"[request id: <id_unknown>] {LATE}"
OBJECTIVE = {"LATENCY_OBJECTIVE_MS": "250"}


def adaptive(simulated, **more):
    batching = DynamicBatching((8,))
    return simulated(Profile(0.1), dynamic_batching=batching, max_batch_size=8, parameters=OBJECTIVE, **more)


async def ask_at_once(server: InferenceServer, count: int, request_for, name: str = "m") -> list[str | None]:
    """The text of each one's refusal; None for those that were executed."""
    answers: list[str | None] = []

    async def ask() -> None:
        try:
            await server.infer(request_for(name))
            answers.append(None)
        except UnavailableError as error:
            answers.append(error.message)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(ask)
    return answers


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
    assert text.endswith(LATE)
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
    assert "'LATENCY_OBJECTIVE_MS' of model 'e' cannot be combined with 'ensemble_scheduling'" in reasons["e"]


async def test_member_of_an_ensemble_refuses_what_would_be_late(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """The ensemble's client reads which member has refused, and why; the refusal counts once, at the member."""
    steps = [step("m", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})]
    config = ensemble(steps, ("INPUT0 FP32 4",), ("OUTPUT0 FP32 4",), max_batch_size=8, name="e")
    async with open_server(adaptive(simulated), SimulatedModel(config, Profile(1))) as server:
        await server.infer(request_for("e"))
        answers = await ask_at_once(server, 41, request_for, "e")
        refused = {row.name: row.statistics.refused for row in server.statistics()}
    late = [answer for answer in answers if answer is not None]
    assert 0 < len(late) < 41
    assert set(late) == {f"in ensemble 'e', {REFUSED}"}
    assert refused == {"e": {}, "m": {RefusalReason.OBJECTIVE: len(late)}}


async def test_sequences_cannot_have_an_objective(autojump_clock, open_server, simulated) -> None:
    sequences = text_format.Parse("sequence_batching { }", ModelConfigMessage())
    model = simulated(Profile(1), has_sequence_batching=True, message=sequences, parameters=OBJECTIVE)
    async with open_server(model, exit_on_error=False) as server:
        (row,) = server.repository_index()
    assert "'LATENCY_OBJECTIVE_MS' of model 'm' cannot be combined with 'sequence_batching'" in row.reason


@pytest.mark.parametrize("instances", [1, 3])
async def test_first_requests_are_all_executed_as_nothing_is_known(
    autojump_clock, open_server, simulated, request_for, instances: int
) -> None:
    """Even if they are late: each of the first batches takes longer than the objective."""
    model = simulated(
        Profile(10.0), count=instances, dynamic_batching=DynamicBatching((8,)), max_batch_size=8, parameters=OBJECTIVE
    )
    async with open_server(model) as server:
        assert await ask_at_once(server, 8 * instances, request_for) == [None] * 8 * instances
        (row,) = server.statistics()
    assert row.statistics.refused == {}


async def test_objective_changes_with_a_reload(autojump_clock, open_server, simulated, request_for) -> None:
    """The new version begins with nothing learnt and its own objective."""
    model = adaptive(simulated)
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    async with open_server(model, **options) as server:
        refused: list[int] = []
        for objective_ms in (250, 1_000_000, 250):
            model.config = replace(model.config, parameters={"LATENCY_OBJECTIVE_MS": str(objective_ms)})
            model.touch()
            await server.load_model("m", {})
            await server.infer(request_for())
            answers = await ask_at_once(server, 60, request_for)
            refused.append(60 - answers.count(None))
            (row,) = server.statistics("m")
            assert row.statistics.learnt.objective_s == objective_ms / 1_000
    assert refused[0] > 0
    assert refused == [refused[0], 0, refused[0]]


async def test_metrics_show_what_was_learnt(autojump_clock, open_server, simulated, request_for) -> None:
    async with open_server(adaptive(simulated)) as server:
        for _ in range(3):
            await server.infer(request_for())
        page = write_text(ServerCollector(server, HostReadings).collect())
    lines = page.splitlines()
    assert 'trireme_adaptive_objective_seconds{model="m",version="1"} 0.25' in lines
    (line,) = [line for line in lines if line.startswith('trireme_adaptive_service_seconds{batch_size="1"')]
    assert float(line.split()[1]) == pytest.approx(0.1)


async def test_objective_below_the_service_time_refuses_and_never_stops_trying(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """One request at a time is executed, others are told why not; as soon as batches are fast enough all are taken."""
    takes_s = [0.1]

    async def work(_spec: InstanceSpec, _batch: ExecutionBatch) -> None:
        await trio.sleep(takes_s[0])

    hopeless = {"LATENCY_OBJECTIVE_MS": "20"}
    model = simulated(work, dynamic_batching=DynamicBatching((8,)), max_batch_size=8, parameters=hopeless)
    async with open_server(model) as server:
        await server.infer(request_for())
        for _ in range(20):
            answers = await ask_at_once(server, 5, request_for)
            assert answers.count(None) == 1, "one is tried"
            assert {answer for answer in answers if answer is not None} == {REFUSED}
            await trio.sleep(60)
        takes_s[0] = 0.001
        for _ in range(20):
            await ask_at_once(server, 1, request_for)
        assert await ask_at_once(server, 8, request_for) == [None] * 8


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
