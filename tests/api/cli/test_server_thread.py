"""A server on a thread of a program that is not trio's (`api.cli.server_thread`)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import tritonclient.http as triton

from trireme.actors import InferenceServer
from trireme.api.cli.server_thread import GatewayThread, NotServingError, ServerThread
from trireme.engine.errors import NotFoundError
from trireme.gateway.server import FleetServer

PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--drain-secs=0")


async def names(server: InferenceServer) -> list[str]:
    return server.model_names()


async def load_none(server: InferenceServer) -> None:
    server.describe("none")


def test_it_serves_is_asked_from_other_threads_and_ends(repository: Path) -> None:
    thread = ServerThread([f"--model-repository={repository}", "--http-address=127.0.0.1", *PORTS])
    assert not thread.alive
    thread.start()
    try:
        titles = {title: (host, port) for title, host, port in thread.listening}
        assert sorted(titles) == ["GRPCInferenceService", "HTTPService"]
        host, port = titles["HTTPService"]
        with triton.InferenceServerClient(f"{host}:{port}") as client:
            assert client.is_model_ready("simple")
        assert thread.call(names) == ["simple"]
        with pytest.raises(NotFoundError, match="'none'"):
            thread.call(load_none)
    finally:
        assert thread.stop(30)
    assert not thread.alive
    with pytest.raises(NotServingError):
        thread.call(names)
    assert thread.stop(), "again"


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("--no-such-flag", "unrecognized option '--no-such-flag'"),
        ("--model-repository=/no/such/place", "the server did not start; its log says why"),
    ],
)
def test_what_does_not_start_says_so(word: str, error: str) -> None:
    thread = ServerThread([word, *PORTS])
    with pytest.raises(NotServingError, match=error):
        thread.start()
    assert thread.stop(30)
    assert not thread.alive


def test_a_thread_that_has_not_ended_yet_though_nothing_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told, may_end = threading.Event(), threading.Event()
    serve = ServerThread._serve

    def serve_and_stay(thread: ServerThread) -> None:
        serve(thread)
        told.set()
        may_end.wait(30)

    monkeypatch.setattr(ServerThread, "_serve", serve_and_stay)
    thread = ServerThread(["--no-such-flag", *PORTS])
    with pytest.raises(NotServingError, match="unrecognized option"):
        thread.start()
    assert told.wait(30)
    assert not thread.stop(0)
    may_end.set()
    assert thread.stop(30)


def test_a_gateway_as_well(repository: Path, tmp_path: Path) -> None:
    async def members(server: FleetServer) -> list[str]:
        return sorted(server.members)

    path = tmp_path / "fleet.toml"
    path.write_text('[replicas.a]\naddress = "127.0.0.1:9"\n')
    thread = GatewayThread([f"--fleet={path}", *PORTS])
    thread.start()
    try:
        assert sorted(title for title, _, _ in thread.listening) == ["GRPCInferenceService", "HTTPService"]
        assert thread.call(members) == ["a"]
    finally:
        assert thread.stop(30)
    with pytest.raises(NotServingError, match="--fleet must be specified"):
        GatewayThread(PORTS).start()
