"""Told to stop while requests are in flight: they are answered, and the exit code says whether all were."""

from __future__ import annotations

import http.client
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serve_process import PATIENCE_S, ServeProcess, infer, outputs_of, serve_process, tensor
from slow_model import FOREVER, write_gated_model, write_slow_model


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("slow")
    write_slow_model(repository)
    return repository


def turns(count: int) -> dict[str, Any]:
    return tensor("TURNS", "INT64", [count], [1])


def send(
    clients: ThreadPoolExecutor, server: ServeProcess, model: str, *inputs: dict[str, Any]
) -> list[Future[tuple[int, Any]]]:
    """Put requests in flight; one executes and the others are queued when this returns."""
    port = server.http_port
    answers = [clients.submit(infer, port, model, each) for each in inputs]
    queued = f'nv_inference_pending_request_count{{model="{model}",version="1"}} {len(inputs) - 1}'
    while queued not in server.metrics():
        assert not any(answer.done() for answer in answers), "answered before all of them were in flight"
    return answers


def test_requests_in_flight_are_answered(tmp_path: Path) -> None:
    gate = write_gated_model(tmp_path)
    with ThreadPoolExecutor() as clients, serve_process(tmp_path) as server:
        answers = send(clients, server, "gated", *(tensor("INPUT0", "FP32", [value]) for value in (1.0, 2.0)))
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Found 2 HTTP service connections")
        gate.touch()
        for answer, value in zip(answers, (1.0, 2.0), strict=True):
            status, body = answer.result(PATIENCE_S)
            assert (status, outputs_of(body)) == (200, {"OUTPUT0": [value]})
        assert server.wait() == 0
        assert "Signal (15) received." in server.log
        assert "successfully unloaded 'gated' version 1" in server.log
        assert "Exit timeout expired" not in server.log


def test_requests_that_take_longer_than_allowed_are_given_up(repository: Path) -> None:
    with ThreadPoolExecutor() as clients, serve_process(repository, "--exit-timeout-secs", "1") as server:
        answers = send(clients, server, "slow", turns(FOREVER), turns(FOREVER))
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1
        for answer in answers:
            with pytest.raises((http.client.HTTPException, OSError)):
                answer.result(PATIENCE_S)
        errors = [line for line in server.stderr if line.startswith("E")]
        assert len(errors) == 1
        assert errors[0].endswith('"failed to stop server: Internal - Exit timeout expired. Exiting immediately."')
        assert "Traceback" not in server.log


def test_an_idle_server_stops_at_once(repository: Path) -> None:
    """SIGINT does the same as SIGTERM, and what is connected idly does not hold up the exit for longer than allowed."""
    with serve_process(repository, "--exit-timeout-secs", "1") as server:
        idle = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
        idle.request("GET", "/v2/health/ready")
        response = idle.getresponse()
        response.read()
        assert response.status == 200
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0
        idle.close()
        assert "Signal (2) received." in server.log
        assert "successfully unloaded 'slow' version 1" in server.log


def test_a_hung_instance_is_replaced_and_does_not_spoil_the_exit(repository: Path) -> None:
    """Its request gets an error, the next one an answer; the thread that was given up is still busy at the end."""
    with ThreadPoolExecutor() as clients, serve_process(repository, "--hang-limit-secs", "3") as server:
        hung = clients.submit(infer, server.http_port, "slow", turns(FOREVER))
        status, body = hung.result(PATIENCE_S)
        assert status == 500
        assert "gave no answer within 3 s" in body["error"]
        status, body = infer(server.http_port, "slow", turns(3))
        assert (status, outputs_of(body)) == (200, {"MADE": [3]})
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
