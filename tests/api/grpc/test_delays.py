"""Delays that the environment asks for. They are an hour long here, so that what waits for them never comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_stub import MESSAGES, OpenStream, infer_request, stub_for
from http2_held import watch
from scripted_server import ScriptedServer, scripted_server

from trireme.api.cli.command import build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import parse
from trireme.api.grpc.options import NO_DELAYS, GrpcDelays, read_delays

HOUR_S = 3600.0


@contextmanager
def serving(folder: Path, **delays: float) -> Iterator[tuple[ScriptedServer, Any]]:
    with (
        scripted_server(folder, {"delays": GrpcDelays(**delays)}) as server,
        stub_for(server.url) as stub,
    ):
        yield server, stub


def times_out(call: Callable[..., Any], request: Any) -> bool:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=0.2)
    error: Any = caught.value
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_environment_says_which() -> None:
    environment = {
        "TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": "2",
        "TRITONSERVER_DELAY_GRPC_NOTIFICATION": "3000",
        "TRITONSERVER_DELAY_GRPC_RESPONSE": "4000",
        "TRITONSERVER_DELAY_GRPC_PROCESS": " 5000ms",
        "TRITONSERVER_DELAY_GRPC_ENQUEUE": "+6000",
        "TRITONSERVER_DELAY_GRPC_COMPLETE": "7000",
        "TRITONSERVER_DELAY_RESPONSE_COMPLETION": "8000",
    }
    assert read_delays(environment) == GrpcDelays(2, 3, 4, 5, 6, 7, 8)
    assert read_delays({}) == read_delays({"TRITONSERVER_DELAY_GRPC_PROCESS": "soon"}) == NO_DELAYS
    assert read_delays({"TRITONSERVER_DELAY_GRPC_PROCESS": "-5"}) == NO_DELAYS
    words = ["--model-repository", "models"]
    command = build_command(parse(words, FLAGS), environment)
    assert command.grpc is not None
    assert command.grpc.options.delays.answer_s == 2


def test_all_answers_but_those_of_inference(tmp_path: Path) -> None:
    with serving(tmp_path, answer_s=HOUR_S) as (_, stub):
        assert times_out(stub.ServerLive, MESSAGES.ServerLiveRequest())
        assert times_out(stub.ModelConfig, MESSAGES.ModelConfigRequest(name="nothing"))
        assert stub.ModelInfer(infer_request(request_id="1")).id == "1"
        stream = OpenStream(stub)
        stream.say(request_id="2")
        assert stream.rest()[0].infer_response.id == "2"


def test_calls_that_have_come(tmp_path: Path) -> None:
    """A client that gives up in the meantime is never heard."""
    with serving(tmp_path, process_s=HOUR_S) as (server, stub):
        assert times_out(stub.ModelInfer, infer_request(request_id="late"))
        server.until(lambda: watch(server.service).calls == 0)
        assert "late" not in server.script.begun


def test_answers_that_are_there(tmp_path: Path) -> None:
    with serving(tmp_path, response_completion_s=HOUR_S) as (server, stub):
        assert times_out(stub.ModelInfer, infer_request(script="say!", request_id="said"))
        assert "said" in server.script.said


@pytest.mark.parametrize("field", ["notification_s", "enqueue_s"])
def test_what_happens_when_a_client_cancels(tmp_path: Path, field: str) -> None:
    """The call is not over yet. Where the model is to hear of it late, it has not heard of it."""
    with serving(tmp_path, **{field: HOUR_S}) as (server, stub):
        call = stub.ModelInfer.future(infer_request(script="until-cancelled say!", request_id="one"))
        server.until(lambda: "one" in server.script.begun)
        call.cancel()
        server.until(lambda: watch(server.service).streams == 0)
        if field == "enqueue_s":
            server.until(lambda: server.server.budget_statistics().requests == 0)
        else:
            assert server.inflight == 1
            server.script.close()
        assert server.calls == 1


@pytest.mark.parametrize(("field", "heard"), [("response_s", 0), ("complete_s", 1)])
def test_answers_of_decoupled_models(tmp_path: Path, field: str, heard: int) -> None:
    """Each of them before it is sent; or, when it has been sent, what follows."""
    with serving(tmp_path, **{field: HOUR_S}) as (server, stub):
        stream = OpenStream(stub)
        stream.say("many", "say say say!", request_id="d")
        server.until(lambda: server.script.said.get("d") == 3)
        for _ in range(heard):
            assert stream.hear().infer_response.id == "d"
        stream.say("plain", request_id="p")
        server.until(lambda: "p" in server.script.said)
        stream.leave()
        with pytest.raises(grpc.RpcError):
            stream.hear()
