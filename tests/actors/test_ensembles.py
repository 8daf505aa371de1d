"""Ensembles on real actors in virtual time: data flows, failures and cancellations end, nothing is left."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from ensembles import ensemble, step

from trireme.actors import InferenceServer
from trireme.engine.config.model import ModelConfig
from trireme.engine.errors import CancelledError, InternalError, NotFoundError, TriremeError
from trireme.engine.options import ServerOptions
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import SimulatedFailure, VirtualExecutors
from trireme.simulations.models import Profile, SimulatedModel, SimulatedRepository, Work, simple_model, simple_request

TENSORS = ("INPUT0 FP32 4",), ("OUTPUT0 FP32 4",)


def chain(*models: str, name: str = "e", rest: str = "") -> ModelConfig:
    """INPUT0 goes through one model after the other, and becomes OUTPUT0."""
    names = ["INPUT0", *(f"t{at}" for at in range(1, len(models))), "OUTPUT0"]
    steps = [
        step(model, {"INPUT0": source}, {"OUTPUT0": target})
        for model, source, target in zip(models, names, names[1:], strict=False)
    ]
    return ensemble(steps, *TENSORS, max_batch_size=8, name=name, rest=rest)


class _Idle:
    async def __call__(self, spec: object, batch: object) -> None:
        raise AssertionError("an ensemble executes nothing")


def ensemble_model(config: ModelConfig) -> SimulatedModel:
    return SimulatedModel(config, _Idle())


@asynccontextmanager
async def serving(models: Sequence[SimulatedModel], **options: object):
    repository = SimulatedRepository(tuple(models))
    server = InferenceServer(
        ServerOptions(**options),  # type: ignore[arg-type]
        source=repository,
        executors=VirtualExecutors(),
        clock=VirtualClock(),
        backends=repository.backends(),
    )
    async with server:
        yield server
        await trio.testing.wait_all_tasks_blocked()


def failing(message: str, after_s: float) -> Work:
    async def work(spec: object, batch: object) -> None:
        await trio.sleep(after_s)
        raise SimulatedFailure(message)

    return work


async def test_steps_follow_each_other_and_are_counted(autojump_clock) -> None:
    """Each member counts its own; the ensemble counts one request, whose compute time is the sum."""
    models = [simple_model("a", Profile(1.0)), simple_model("b", Profile(2.0)), ensemble_model(chain("a", "b"))]
    async with serving(models) as server:
        response = await server.infer(simple_request("e", rows=2))
        assert (response.model_name, [output.name for output in response.outputs]) == ("e", ["OUTPUT0"])
        assert trio.current_time() == pytest.approx(3.0)
        counts = {}
        for entry in server.statistics():
            statistics = entry.statistics
            counts[entry.name] = (statistics.success.count, statistics.inference_count, statistics.execution_count)
        assert counts == {"a": (1, 2, 1), "b": (1, 2, 1), "e": (1, 2, 1)}


async def test_ensembles_may_be_steps(autojump_clock) -> None:
    models = [
        simple_model("a", Profile(1.0)),
        ensemble_model(chain("a", "a", name="inner")),
        ensemble_model(chain("inner", "a", name="outer")),
    ]
    async with serving(models) as server:
        await server.infer(simple_request("outer"))
        assert trio.current_time() == pytest.approx(3.0)
        (entry,) = server.statistics("a")
        assert entry.statistics.success.count == 3


async def test_a_step_that_fails_fails_the_request(autojump_clock) -> None:
    models = [
        simple_model("a", Profile(1.0)),
        simple_model("bad", failing("out of order", 1.0)),
        ensemble_model(chain("a", "bad")),
    ]
    async with serving(models) as server:
        with pytest.raises(InternalError, match="in ensemble 'e', out of order"):
            await server.infer(simple_request("e"))
        (entry,) = server.statistics("e")
        assert (entry.statistics.success.count, entry.statistics.fail.count) == (0, 2)
        assert server.budget_statistics().requests == 0


async def test_a_cancelled_request_submits_no_further_step(autojump_clock) -> None:
    models = [simple_model("a", Profile(1.0)), simple_model("b", Profile(1.0)), ensemble_model(chain("a", "b"))]
    async with serving(models) as server:
        with trio.move_on_after(0.5):
            await server.infer(simple_request("e"))
        await trio.sleep(5)
        (entry,) = server.statistics("b")
        assert entry.statistics.execution_count == 0
        assert server.budget_statistics().requests == 0


async def test_what_is_in_flight_when_the_server_stops_is_finished(autojump_clock) -> None:
    """Members are drained after the ensembles that need them."""
    models = [simple_model("a", Profile(1.0)), simple_model("b", Profile(1.0)), ensemble_model(chain("a", "b"))]
    async with serving(models) as server, trio.open_nursery() as nursery:
        answered: list[str] = []

        async def ask() -> None:
            answered.append((await server.infer(simple_request("e"))).model_name)

        nursery.start_soon(ask)
        await trio.sleep(0.5)
        assert await server.stop(10.0)
        assert answered == ["e"]


async def test_what_is_in_flight_when_the_server_stops_is_told(autojump_clock, caplog) -> None:
    """In Triton's words, each second; what still has to be unloaded is told to who asks for verbose logs."""
    models = [simple_model("a", Profile(1.5)), simple_model("b", Profile(1.0))]
    with caplog.at_level(logging.DEBUG, "trireme.server"):
        async with serving(models) as server, trio.open_nursery() as nursery:
            nursery.start_soon(server.infer, simple_request("a"))
            nursery.start_soon(server.infer, simple_request("a"))
            await trio.sleep(0.25)
            assert await server.stop(10.0)
    told = [record.getMessage() for record in caplog.records if record.name == "trireme.server"]
    assert told[:3] == [
        "Waiting for in-flight requests to complete.",
        "Timeout 10: Found 1 model versions that have in-flight inferences",
        "Model 'a' (version 1) has 2 in-flight inferences",
    ]
    assert told[3] == "Timeout 9: Found 1 model versions that have in-flight inferences"
    assert "Timeout 8: Found 0 model versions that have in-flight inferences" in told
    assert told[-1].endswith("Found 0 live models and 0 in-flight non-inference requests")


async def test_a_limit_of_requests_in_flight_is_told(autojump_clock, caplog) -> None:
    limited = chain("a", rest="max_inflight_requests: 4")
    with caplog.at_level(logging.INFO, "trireme.repository"):
        async with serving([simple_model("a", Profile(1.0)), ensemble_model(limited)]):
            pass
    assert "Ensemble model 'e' configured with max_inflight_requests: 4" in caplog.messages


async def test_steps_need_no_room_in_the_servers_budget(autojump_clock) -> None:
    """Otherwise a request could wait for room that only its own end would make."""
    models = [simple_model("a", Profile(1.0)), ensemble_model(chain("a", "a"))]
    async with serving(models, max_inflight_requests=1) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(server.infer, simple_request("e"))
        (entry,) = server.statistics("e")
        assert entry.statistics.success.count == 3


async def test_a_member_that_goes_on_dying_fails_the_ensembles_requests_and_its_health(autojump_clock) -> None:
    async def die(spec: object, batch: object) -> None:
        raise RuntimeError("gone")

    models = [simple_model("a", die), ensemble_model(chain("a"))]
    async with serving(models, restart_limit=0) as server:
        assert server.model_ready("e")
        with pytest.raises(TriremeError, match="gone"):
            await server.infer(simple_request("e"))
        await trio.testing.wait_all_tasks_blocked()
        assert not server.model_ready("e")
        row = next(row for row in server.repository_index() if row.name == "e")
        died = "1 of 1 instances have died and are being restarted; last: gone"
        assert row.reason == f"its member 'a' version 1: {died}"
        with pytest.raises(TriremeError, match="in ensemble 'e', instance 'a_0' died: RuntimeError: gone"):
            await server.infer(simple_request("e"))


async def test_requests_of_clients_that_have_gone_leave_a_member_that_hangs(autojump_clock) -> None:
    async def hang(_spec: object, _batch: object) -> None:
        await trio.sleep_forever()

    async with serving([simple_model("a", hang), ensemble_model(chain("a"))], exit_timeout_s=0) as server:
        async with trio.open_nursery() as clients:
            for _ in range(50):
                clients.start_soon(server.infer, simple_request("e"))
            await trio.testing.wait_all_tasks_blocked()
            clients.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert server.budget_statistics().requests == 1, "what is being executed"


async def test_an_ensemble_without_its_member_is_not_loaded(autojump_clock, caplog) -> None:
    models = [simple_model("a", Profile(1.0)), ensemble_model(chain("a", "missing"))]
    async with serving(models, exit_on_error=False) as server:
        assert await server.infer(simple_request("a"))
        with pytest.raises(NotFoundError):
            await server.infer(simple_request("e"))
    assert "ensemble e contains models that are not available or ambiguous: missing" in caplog.text


async def test_cancelling_while_the_last_step_runs_is_answered_once(autojump_clock) -> None:
    models = [simple_model("a", Profile(1.0)), ensemble_model(chain("a"))]
    async with serving(models) as server:
        reply = await server.admit(simple_request("e"))
        await trio.sleep(0.5)
        reply.cancel()
        with pytest.raises(CancelledError):
            await reply.response()
        assert server.budget_statistics().requests == 0
