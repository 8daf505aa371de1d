"""Shadows get copies of what clients ask, and clients notice nothing of it (`actors.shadows`)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from valued_models import PATIENCE_S
from valued_server import until

from trireme.actors import InferenceServer
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.options import ControlMode, ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.routing import shadowing
from trireme.engine.routing.route import Target
from trireme.engine.tensor import Tensor

CONFIG = """
backend: "played"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
STREAMING = CONFIG + "model_transaction_policy { decoupled: true }\n"

Behaviour = Callable[[Job], None]


def adds(number: float) -> Behaviour:
    def behave(job: Job) -> None:
        tensor = job.inputs["IN"]
        job.respond(job.response([Tensor("OUT", FP32, tensor.shape, array=tensor.array + np.float32(number))]))

    return behave


def streams(*numbers: float) -> Behaviour:
    def behave(job: Job) -> None:
        for number in numbers:
            job.respond(job.response([Tensor("OUT", FP32, (1,), array=np.array([number], np.float32))]), False)
        job.respond(None)

    return behave


def fails_with(text: str) -> Behaviour:
    return lambda job: job.fail(InternalError(text))


class Stage:
    """What each model does."""

    def __init__(self, behaviours: Mapping[str, Behaviour]) -> None:
        self.behaviours = dict(behaviours)
        self.jobs: list[Job] = []

    def backends(self) -> BackendRegistry:
        stage = self

        class Played(Backend):
            name = "played"

            def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
                return _Loaded(stage, config.name)

        return BackendRegistry(lambda _name: {}, {"played": Played})


class _Loaded(LoadedModel):
    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.name = stage, name

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        return _Instance(self)


class _Instance(ModelInstance):
    def __init__(self, loaded: _Loaded) -> None:
        self._loaded = loaded

    def execute(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            if self._loaded.name == "shadow":
                self._loaded.stage.jobs.append(job)
            self._loaded.stage.behaviours[self._loaded.name](job)


@asynccontextmanager
async def shadowed(
    root: Path, target: Behaviour, shadow: Behaviour, config: str = CONFIG, **options: Any
) -> AsyncIterator[tuple[InferenceServer, Stage]]:
    """A server with route `r` to model `target`, and model `shadow`."""
    for name in ("target", "shadow"):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    stage = Stage({"target": target, "shadow": shadow})
    settings: dict[str, Any] = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("*",), **options}
    async with InferenceServer(
        ServerOptions(model_repository=(root,), **settings), backends=stage.backends()
    ) as server:
        await server.management.set_route("r", document())
        yield server, stage


def document(**fields: Any) -> dict[str, Any]:
    return {"targets": {"target": 100}, "shadow": {"target": "shadow", "percent": 100, "tolerance": 0.01, **fields}}


def request(*values: float, **fields: Any) -> InferenceRequest:
    array = np.array(values or [1.0], np.float32)
    return InferenceRequest("r", inputs=[Tensor("IN", FP32, array.shape, array=array)], **fields)


async def shown(server: InferenceServer) -> dict[str, Any]:
    (route,) = await server.management.route_status("r")
    return route["state"]["shadow"]


async def comes_to(server: InferenceServer, **members: Any) -> dict[str, Any]:
    """Wait until the status has these members."""
    with trio.fail_after(PATIENCE_S):
        while True:
            status = await shown(server)
            if all(status[name] == value for name, value in members.items()):
                return status
            await trio.sleep(0.005)


def metrics(server: InferenceServer, name: str) -> dict[str, float]:
    """The values of a family by its last label."""
    (family,) = [each for each in server.routes.families() if each.name == name]
    return {list(sample.labels.values())[-1]: sample.value for sample in family.samples}


async def test_answers_that_agree_are_counted(tmp_path: Path) -> None:
    async with shadowed(tmp_path, adds(1), adds(1.001)) as (server, stage):
        for number in range(3):
            response = await server.infer(request(number, id="mine", parameters={"p": 7}, priority=1, timeout_us=1))
            assert response.model_name == "target"
        status = await comes_to(server, agrees=3)
        assert status["differs"] == status["failed"] == status["timed_out"] == status["waiting"] == 0
        assert status["greatest_difference"] == pytest.approx(0.001, rel=0.01)
        assert status["target_ms"] > 0 < status["shadow_ms"]
        assert status["ready"]
        assert metrics(server, "trireme_route_shadow_copies_total")["agrees"] == 3
        assert metrics(server, "trireme_route_shadow_latency_seconds_total")["shadow"] > 0
        copy = stage.jobs[-1].request
        assert (copy.id, copy.parameters, copy.priority, copy.timeout_us) == ("mine", {"p": 7}, 0, 0)
        assert server.budget_statistics().requests == 0


async def test_nothing_is_kept_before_the_answer_has_been_written(tmp_path: Path) -> None:
    waiting = list[int]()

    class Connection:
        def flush(self) -> None:
            waiting.append(server.routes.status("r")[0]["state"]["shadow"]["waiting"])

    async with shadowed(tmp_path, adds(1), adds(1)) as (server, _):
        reply = await server.admit(request())
        reply.notify(lambda _: server.turn.flush_later(Connection()))
        status = await comes_to(server, agrees=1)
        assert (waiting, status["waiting"]) == ([0], 0)


async def test_the_first_difference_is_logged_and_all_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shadowed(tmp_path, adds(1), adds(1.5)) as (server, _):
        for number in range(3):
            await server.infer(request(0, 0, id=f"request {number}"))
        status = await comes_to(server, differs=3)
        assert (status["greatest_difference"], status["agrees"]) == (0.5, 0)
        assert status["last_difference"].startswith("output 'OUT' has 2 other values of 2, the first at [0]")
        assert metrics(server, "trireme_route_shadow_greatest_difference") == {"shadow": 0.5}
        (line,) = [record.message for record in caplog.records if "does not agree" in record.message]
        assert line.startswith("route 'r': shadow 'shadow' does not agree: output 'OUT' has 2 other values")
        assert "(request id 'request 0')" in line


async def test_a_shadow_that_fails_costs_clients_nothing(tmp_path: Path) -> None:
    async with shadowed(tmp_path, adds(1), fails_with("no such digit")) as (server, _):
        await server.infer(request())
        status = await comes_to(server, failed=1)
        assert status["last_difference"] == "an error, expected an answer: no such digit"


async def test_errors_of_one_kind_agree(tmp_path: Path) -> None:
    async with shadowed(tmp_path, fails_with("bad"), fails_with("worse")) as (server, _):
        with pytest.raises(InternalError):
            await server.infer(request())
        await comes_to(server, agrees=1)


async def test_all_answers_of_a_stream_are_compared(tmp_path: Path) -> None:
    async with shadowed(tmp_path, streams(1, 2, 3), streams(1, 2, 3), STREAMING) as (server, stage):
        reply = await server.admit(request())
        assert len([response async for response in reply.responses()]) == 3
        await comes_to(server, agrees=1)
        stage.behaviours["shadow"] = streams(*range(500))
        reply = await server.admit(request())
        assert len([response async for response in reply.responses()]) == 3
        status = await comes_to(server, differs=1)
        assert "of response 0" in status["last_difference"]


async def test_large_answers_are_compared_on_a_thread(tmp_path: Path) -> None:
    async with shadowed(tmp_path, adds(1), adds(2)) as (server, _):
        await server.infer(request(*([0.0] * 100_000)))
        status = await comes_to(server, differs=1)
        assert "100000 other values of 100000" in status["last_difference"]


async def test_a_shadow_that_hangs_is_given_up_and_gets_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadowing, "ANSWER_LIMIT_S", 0.05)
    monkeypatch.setattr(shadowing, "LONGEST_PAUSE_S", 0.01)
    end = threading.Event()

    def hang(job: Job) -> None:
        assert end.wait(PATIENCE_S)
        adds(1)(job)

    async with shadowed(tmp_path, adds(1), hang) as (server, stage):
        await server.infer(request())
        status = await comes_to(server, timed_out=1)
        assert status["last_difference"].startswith("no answer within")
        (job,) = stage.jobs
        assert job.cancelled
        await server.infer(request())
        assert (await shown(server))["dropped"] == {"hanging": 1}
        end.set()
        with trio.fail_after(PATIENCE_S):
            while not (await shown(server))["agrees"]:  # as soon as it has answered, it gets copies again
                await server.infer(request())
                await trio.sleep(0.005)


async def test_a_shadow_that_is_not_there_gets_nothing(tmp_path: Path) -> None:
    async with shadowed(tmp_path, adds(1), adds(1)) as (server, _):
        await server.unload_model("shadow")
        await until(lambda: not server.routes.is_ready("r", Target("shadow")))
        await server.infer(request())
        status = await shown(server)
        assert (status["ready"], status["dropped"]) == (False, {"not_ready": 1})
        await server.load_model("shadow", {})
        await server.infer(request())
        await comes_to(server, agrees=1, ready=True)


async def test_a_shadow_that_is_unloaded_in_the_middle_ends_what_it_has(tmp_path: Path) -> None:
    entered, end = threading.Event(), threading.Event()

    def wait(job: Job) -> None:
        entered.set()
        assert end.wait(PATIENCE_S)
        adds(1)(job)

    async with shadowed(tmp_path, adds(1), wait) as (server, _):
        await server.infer(request())
        await until(entered.is_set)
        await server.unload_model("shadow")
        end.set()
        await comes_to(server, agrees=1)


async def test_a_route_that_changes_gives_up_what_is_in_flight_and_drops_what_waits(tmp_path: Path) -> None:
    entered, end = threading.Event(), threading.Event()

    def wait(job: Job) -> None:
        entered.set()
        assert end.wait(PATIENCE_S)

    async with shadowed(tmp_path, adds(1), wait) as (server, stage):
        await server.infer(request())
        await until(entered.is_set)
        await server.infer(request())
        assert (await shown(server))["waiting"] == 1
        await server.management.set_route("r", document(percent=50))
        status = await shown(server)
        assert (status["waiting"], status["timed_out"]) == (0, 0)
        assert stage.jobs[0].cancelled
        end.set()
        await server.management.set_route("r", {"targets": {"target": 100}})
        await server.infer(request())


async def test_a_server_that_stops_waits_for_no_copy_that_has_not_begun(tmp_path: Path) -> None:
    entered, end = threading.Event(), threading.Event()

    def wait(job: Job) -> None:
        entered.set()
        while not job.cancelled and not end.is_set():
            end.wait(0.001)

    async with shadowed(tmp_path, adds(1), wait, exit_timeout_s=PATIENCE_S) as (server, stage):
        for _ in range(3):
            await server.infer(request())
        await until(entered.is_set)
    assert server.drained
    assert len(stage.jobs) == 1
    assert not end.is_set()


async def test_more_than_may_wait_is_dropped_and_clients_wait_for_nothing(tmp_path: Path) -> None:
    entered, end = threading.Event(), threading.Event()

    def wait(job: Job) -> None:
        entered.set()
        assert end.wait(PATIENCE_S)
        adds(1)(job)

    async with shadowed(tmp_path, adds(1), wait, max_inflight_requests=2) as (server, _):
        await server.infer(request())
        await until(entered.is_set)
        for _ in range(shadowing.MOST_WAITING + 5):
            await server.infer(request())
        status = await shown(server)
        assert (status["waiting"], status["dropped"]) == (shadowing.MOST_WAITING, {"full": 5})
        assert server.budget_statistics().requests == 0
        end.set()


async def test_a_copy_that_is_too_large_is_dropped(tmp_path: Path) -> None:
    async with shadowed(tmp_path, adds(1), adds(1), max_inflight_bytes=64 * 1_000) as (server, _):
        await server.infer(request(*([0.0] * 126)))  # 504 bytes in, 504 out; a 64th is 1,000
        assert (await shown(server))["dropped"] == {"memory": 1}


async def test_what_a_shadow_does_not_take_is_no_answer(tmp_path: Path) -> None:
    async with shadowed(tmp_path, adds(1), adds(1)) as (server, _):
        with pytest.raises(InvalidArgumentError):
            await server.infer(InferenceRequest("r"))
        assert (await shown(server))["dropped"] == {}


async def test_a_shadow_goes_on_when_its_route_is_set_again_as_it_was(tmp_path: Path) -> None:
    async with shadowed(tmp_path, adds(1), adds(1)) as (server, _):
        await server.infer(request())
        await comes_to(server, agrees=1)
        await server.management.set_route("r", document())
        await server.infer(request())
        assert (await comes_to(server, agrees=2))["dropped"] == {}


async def test_a_shadow_that_streams_without_end_is_cancelled_and_differs(tmp_path: Path) -> None:
    never = threading.Event()

    def flood(job: Job) -> None:
        while not job.cancelled:
            job.respond(job.response([Tensor("OUT", FP32, (1,), array=np.ones(1, np.float32))]), False)
            never.wait(0.001)
        job.respond(None)

    async with shadowed(tmp_path, streams(1), flood, STREAMING) as (server, stage):
        reply = await server.admit(request())
        assert [each async for each in reply.responses()]
        await comes_to(server, differs=1, timed_out=0)
        assert stage.jobs[-1].cancelled


async def test_there_are_no_copies_where_requests_need_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shadowed(tmp_path, adds(1), adds(1)) as (server, _):
        monkeypatch.setattr(server._budget, "may_spare", lambda _nbytes: False)
        await server.infer(request())
        assert (await shown(server))["dropped"] == {"memory": 1}
