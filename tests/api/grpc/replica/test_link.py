"""The link to a replica, against a whole server of the house's on a loopback port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from linked_replica import linked, request_of
from scripted_server import ScriptedServer, scripted_server

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
        assert unknown.error.kind is ErrorKind.UNAVAILABLE or unknown.error.kind is ErrorKind.NOT_FOUND
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


async def test_what_is_asked_is_answered(server: ScriptedServer) -> None:
    async with linked(server.url) as replica:
        assert await replica.link.ask("inference.GRPCInferenceService/ServerLive", b"", 30.0) == b"\x08\x01"
        with pytest.raises(NotFoundError, match="Request for unknown model: 'x' is not found"):
            await replica.link.ask("inference.GRPCInferenceService/ModelMetadata", b"\x0a\x01x", 30.0)
        with pytest.raises(UnsupportedError):
            await replica.link.ask("no.Service/Method", b"", 30.0)
