"""Verbose logs tell of a call's life in Triton's words, as the real server writes them; others tell nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_stub import MESSAGES, OpenStream, infer_request, stub_for
from http2_held import watch
from scripted_server import ScriptedServer, scripted_server

from trireme.api.grpc import call_log
from trireme.api.logging import verbose

LOGGER = "trireme.api.grpc.call_log"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        with stub_for(running.url) as opened:  # once it answers, its start has told what it tells
            opened.ServerLive(MESSAGES.ServerLiveRequest())
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as opened:
        yield opened


@pytest.fixture
def lines(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What level 2 tells; complete when no call is open."""
    with caplog.at_level(verbose(2), LOGGER):
        told: list[str] = []

        class Collector(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                told.append(record.getMessage())

        collector = Collector()
        logging.getLogger(LOGGER).addHandler(collector)
        yield told
        logging.getLogger(LOGGER).removeHandler(collector)


def whole(server: ScriptedServer, lines: list[str]) -> list[str]:
    server.until(lambda: watch(server.service).calls == 0)
    assert len([line for line in lines if line.startswith("StateNew")]) == len(
        [line for line in lines if line.startswith("StateRelease")]
    )
    return [line for line in lines if not line.startswith("GRPC request: ")]


def test_a_call_of_inference(server: ScriptedServer, stub: Any, lines: list[str]) -> None:
    stub.ModelInfer(infer_request())
    assert whole(server, lines) == [
        "Process for ModelInferHandler, rpc_ok=1, 0 step START",
        "StateNew, 0 Step START",
        "New request handler for ModelInferHandler, 0",
        "ModelInferHandler::InferResponseComplete, 0 step ISSUED",
        "ModelInferHandler::InferRequestComplete",
        "Process for ModelInferHandler, rpc_ok=1, 0 step COMPLETE",
        "Process for ModelInferHandler, rpc_ok=1, 0 step FINISH",
        "Done for ModelInferHandler, 0",
        "StateRelease, 0 Step FINISH",
    ]


def test_a_call_that_is_refused(server: ScriptedServer, stub: Any, lines: list[str]) -> None:
    with pytest.raises(grpc.RpcError):
        stub.ModelInfer(infer_request("nope"))
    assert whole(server, lines)[3:] == [
        "[request id: <id_unknown>] Infer failed: Request for unknown model: 'nope' is not found",
        "Process for ModelInferHandler, rpc_ok=1, 0 step COMPLETE",
        "Process for ModelInferHandler, rpc_ok=1, 0 step FINISH",
        "Done for ModelInferHandler, 0",
        "StateRelease, 0 Step FINISH",
    ]


@pytest.mark.parametrize("end", ["cancelled", "out of time"])
def test_a_call_whose_client_has_gone(server: ScriptedServer, stub: Any, lines: list[str], end: str) -> None:
    timeout = None if end == "cancelled" else 0.3
    call = stub.ModelInfer.future(infer_request(script="until-cancelled say!", request_id=end), timeout=timeout)
    server.until(lambda: end in server.script.begun)
    if end == "cancelled":
        call.cancel()
    server.until(lambda: end in server.script.cancelled)
    assert whole(server, lines)[3:] == [
        "Cancellation notification received for ModelInferHandler, rpc_ok=1, context 0, 0 step ISSUED",
        "Issuing cancellation for 0",
        "Completing cancellation for ModelInferHandler, rpc_ok=1, context 0, 0 step CANCELLED",
        "Done for ModelInferHandler, 0",
        "StateRelease, 0 Step CANCELLED",
    ]


def test_a_stream(server: ScriptedServer, stub: Any, lines: list[str]) -> None:
    stream = OpenStream(stub)
    stream.say(request_id="a")
    stream.hear()
    stream.rest()
    assert whole(server, lines) == [
        "Process for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step START",
        "StateNew, 0 Step START",
        "New request handler for ModelStreamInferHandler, 0",
        "Process for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step READ",
        "StateNew, 0 Step READ",
        "Process for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step WRITTEN",
        "Done for ModelStreamInferHandler, 0",
        "StateRelease, 0 Step FINISH",
        "Process for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step COMPLETE",
        "Process for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step FINISH",
        "Done for ModelStreamInferHandler, 0",
        "StateRelease, 0 Step FINISH",
    ]


def test_a_stream_that_is_cancelled(server: ScriptedServer, stub: Any, lines: list[str]) -> None:
    stream = OpenStream(stub)
    stream.say(script="until-cancelled say!", request_id="given up")
    server.until(lambda: "given up" in server.script.begun)
    stream.leave()
    told = whole(server, lines)
    assert "Cancellation notification received for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step ISSUED" in told
    assert told.count("StateRelease, 0 Step CANCELLED") == 2


def test_another_call(server: ScriptedServer, stub: Any, lines: list[str]) -> None:
    stub.ServerLive(MESSAGES.ServerLiveRequest())
    assert whole(server, lines) == [
        "Process for ServerLive, rpc_ok=1, 0 step START",
        "Ready for RPC 'ServerLive', 0",
        "Process for ServerLive, rpc_ok=1, 0 step COMPLETE",
        "Done for ServerLive, 0",
    ]


def test_what_is_served_is_told_once_a_name(caplog: pytest.LogCaptureFixture) -> None:
    service = "/inference.GRPCInferenceService/"
    methods = ("ServerLive", "ModelInfer", "TraceSetting", "ModelStreamInfer", "LogSettings", "ServerLive")
    with caplog.at_level(logging.DEBUG, LOGGER):
        call_log.tell_ready(f"{service}{method}" for method in methods)
    assert caplog.messages == [f"Ready for RPC '{name}', 0" for name in ("ServerLive", "Trace", "Logging")]


def test_without_verbose_logs_nothing_is_kept_of_calls(server: ScriptedServer, stub: Any) -> None:
    call = stub.ModelInfer.future(infer_request(script="wait:kept say!", request_id="kept"))
    server.until(lambda: "kept" in server.script.begun)
    connections = server.call(lambda: list(server.service._group.connections))
    assert any(connection.calls for connection in connections)
    assert not any(connection.stories for connection in connections)  # pyright: ignore[reportAttributeAccessIssue]
    server.script.open("kept")
    call.result(10)
