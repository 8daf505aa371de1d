"""The link to a replica, against a whole server of the house's on a loopback port."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import trio
from authority import Authority
from linked_replica import linked, request_of
from scripted_server import ScriptedServer, scripted_server

from trireme.api.grpc.replica.limits import LinkLimits
from trireme.engine.errors import ErrorKind, NotFoundError, RefusalReason, TriremeError, UnsupportedError


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        yield running


async def test_a_request_is_answered(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        for number in range(5):
            told = await replica.infer(request_of(values=[1.0, number], id=f"r{number}")).over()
            response = told.response
            assert (response.model_name, response.model_version, response.id) == ("plain", 1, f"r{number}")
            assert response.output("OUT").array.tolist() == [1.0, number]


async def test_a_request_may_be_answered_often(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        told = await replica.infer(request_of("many", [5.0], "say say say!"), decoupled=True).over()
        assert told.values == [[5.0], [6.0], [7.0]]
        assert [final for _, final in told.answers] == [False, False, True]


async def test_an_end_without_a_response_is_told(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        told = await replica.infer(request_of("many", [5.0], "say end"), decoupled=True).over()
        assert told.values == [[5.0]]
        assert told.answers[-1] == (None, True)


async def test_errors_keep_their_text_and_kind(server: ScriptedServer) -> None:
    """What was executed, and what was refused."""
    async with linked(server.url) as replica:
        failed = await replica.infer(request_of(script="fail:broken-ünit")).over()
        assert failed.error is not None
        assert (failed.error.kind, failed.error.message) == (ErrorKind.INTERNAL, "broken-ünit")
        assert failed.executed
        unknown = await replica.infer(request_of("nothing")).over()
        assert unknown.error is not None
        assert unknown.error.kind is ErrorKind.NOT_FOUND
        assert unknown.error.message == "Request for unknown model: 'nothing' is not found"
        assert unknown.error.refusal is RefusalReason.UNKNOWN_MODEL
        assert unknown.executed is False


@pytest.mark.parametrize(("model", "decoupled"), [("plain", False), ("many", True)])
async def test_a_refused_request_was_not_executed(server: ScriptedServer, model: str, decoupled: bool) -> None:
    async with linked(server.url) as replica:
        request = request_of(model)
        request.inputs = []
        told = await replica.infer(request, decoupled).over()
        assert told.error is not None
        assert told.error.message == (
            f"[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model '{model}'. Got input(s) [], but "
            "missing required input(s) ['IN']. Please provide all required input(s)."
        )
        assert told.error.kind is ErrorKind.INVALID_ARGUMENT
        assert (told.error.refusal, told.executed) == (RefusalReason.INVALID, False)


async def test_errors_between_answers_are_answers(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        told = await replica.infer(request_of("many", [5.0], "say err:odd say!"), decoupled=True).over()
        error, final = told.answers[1]
        assert isinstance(error, TriremeError)
        assert (error.kind, error.message, final) == (ErrorKind.INTERNAL, "odd", False)
        assert len(told.answers) == 3
        failed = await replica.infer(request_of("many", [5.0], "say fail:odd"), decoupled=True).over()
        assert failed.error is not None
        assert (failed.error.message, failed.executed, len(failed.answers)) == ("odd", True, 1)


async def test_a_cancelled_request_is_cancelled_there(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        for model, decoupled in (("plain", False), ("many", True)):
            told = replica.infer(request_of(model, script="until-cancelled", id=model), decoupled)
            await trio.to_thread.run_sync(lambda name=model: server.until(lambda: name in server.script.begun))
            replica.cancel(told)
            await trio.to_thread.run_sync(lambda: server.until(lambda: server.server.budget_statistics().requests == 0))
            assert (told.answers, told.error) == ([], None)
        assert (await replica.infer(request_of()).over()).values == [[1.0]]


async def test_the_replica_reports_of_itself(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        await replica.events.until(lambda told: replica.events.of_kind("report"))
        report = replica.events.of_kind("report")[0]
        assert report["state"] == "ready"
        assert {"plain", "many"} <= {model["name"] for model in report["models"]}


async def test_a_large_tensor_passes_both_ways(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        values = np.arange(100 << 18, dtype=np.float32)
        response = (await replica.infer(request_of(values=values)).over()).response
        assert np.array_equal(response.outputs[0].array, values)


async def test_a_slow_reader_holds_its_own_answers_back_only(server: ScriptedServer) -> None:
    """Of 64 MiB that the model has to say, no more is in memory here than a window and a message."""
    limits = LinkLimits(http2=replace(LinkLimits().http2, stream_window_bytes=1 << 18))
    async with linked(server.url, limits=limits) as replica:
        told = replica.infer(request_of("many", [0.0] * (1 << 14), "flood:1024 end"), decoupled=True)
        await told.until(lambda told: len(told.answers) >= 3)
        assert (await replica.infer(request_of()).over()).values == [[1.0]], "others are not held back"
        assert len(told.answers) == 3
        told.on_answer = lambda: replica.taken(told, 1)
        replica.taken(told, len(told.answers))
        await told.over()
        assert told.error is None
        assert len(told.answers) == 1025


async def test_messages_larger_than_a_window_come_one_at_a_time(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        told = replica.infer(request_of("many", [0.0] * (1 << 19), "flood:5 end"), decoupled=True)
        for count in range(1, 6):
            await told.until(lambda told, count=count: len(told.answers) >= count)
            assert sum(outcome is not None for outcome, _ in told.answers) == count
            replica.taken(told, 1)
        await told.over()


async def test_over_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    folder = tmp_path_factory.mktemp("models")
    with scripted_server(folder, service={"tls": authority.options}) as server:
        address = server.url.replace("127.0.0.1", "localhost")
        async with linked(address, tls=authority.context("h2")) as replica:
            values = np.arange(1 << 20, dtype=np.float32)
            response = (await replica.infer(request_of(values=values)).over()).response
            assert np.array_equal(response.outputs[0].array, values)
            told = await replica.infer(request_of("many", [5.0], "say say!"), decoupled=True).over()
            assert told.values == [[5.0], [6.0]]
        async with linked(server.url, connects=False, tls=authority.context("h2")) as stranger:
            await stranger.events.until(lambda told: told)
            assert stranger.events.of_kind("lost")[0].startswith("TLS with the replica failed: ")


async def test_what_is_asked_is_answered(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        assert await replica.link.ask("inference.GRPCInferenceService/ServerLive", b"", 30.0) == b"\x08\x01"
        with pytest.raises(NotFoundError, match="Request for unknown model: 'x' is not found"):
            await replica.link.ask("inference.GRPCInferenceService/ModelMetadata", b"\x0a\x01x", 30.0)
        with pytest.raises(UnsupportedError):
            await replica.link.ask("no.Service/Method", b"", 30.0)
