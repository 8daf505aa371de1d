"""`trireme serve` with the front ends of cloud platforms."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from cloud_servers import call

SIMPLE = {
    "inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]
}
VERTEX = {
    "AIP_MODE": "PREDICTION",
    "AIP_PREDICT_ROUTE": "/predict",
    "AIP_HEALTH_ROUTE": "/health",
    "AIP_HTTP_PORT": "0",
}


@pytest.mark.parametrize("front_ends", ["0", "1"])
def test_sagemaker_is_served_beside_the_others(start_serve: Callable, repository: Path, front_ends: str) -> None:
    """In the server's process, also where HTTP and gRPC have one of their own; and it ends with them."""
    flags = ("--allow-sagemaker=true", "--sagemaker-port=0", f"--front-ends={front_ends}")
    environment = {**os.environ, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple"}
    serve = start_serve(f"--model-repository={repository}", *flags, environment=environment)
    http_port = int(serve.read_until(r"Started HTTPService at 127\.0\.0\.1:(\d+)")[1])
    port = int(serve.read_until(r"Started Sagemaker HTTPService at 127\.0\.0\.1:(\d+)")[1])
    metrics_port = int(serve.read_until(r"Started Metrics Service at 127\.0\.0\.1:(\d+)")[1])
    assert call(port, "GET", "/ping").status == 200
    reply = call(port, "POST", "/invocations", SIMPLE)
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2] * 16)
    assert call(port, "GET", "/v2").status == 400
    assert call(http_port, "GET", "/ping").status == 404
    assert b'nv_inference_request_success{model="simple",version="1"} 1' in call(metrics_port, "GET", "/metrics").body
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0


@pytest.mark.parametrize("platform", ["sagemaker", "vertex-ai"])
def test_a_drain_is_told_by_health_and_serves_on(start_serve: Callable, repository: Path, platform: str) -> None:
    """As on the other ports; a second signal ends it."""
    environment = {**os.environ, **VERTEX, "AIP_MODE": "", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple"}
    words = (f"--allow-{platform}=true", f"--{platform}-port=0", "--drain-secs=600")
    serve = start_serve(f"--model-repository={repository}", *words, environment=environment)
    port = int(serve.read_until(r"Started (?:Sagemaker|Vertex AI) HTTPService at 127\.0\.0\.1:(\d+)")[1])
    serve.read_until("Started Metrics Service")
    health, predict = ("/ping", "/invocations") if platform == "sagemaker" else ("/health", "/predict")
    assert call(port, "GET", health).status == 200
    serve.signal(signal.SIGTERM)
    serve.read_until("Draining for")
    assert call(port, "GET", health).status == 400
    reply = call(port, "POST", predict, SIMPLE)
    assert (reply.status, reply.headers.get("connection")) == (200, "close")
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0


def test_models_are_registered_in_the_explicit_mode_alone(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}", "--allow-sagemaker=true", "--sagemaker-port=0")
    port = int(serve.read_until(r"Started Sagemaker HTTPService at 127\.0\.0\.1:(\d+)")[1])
    reply = call(port, "POST", "/models", {"model_name": "a", "url": "/opt/ml/models/a/model"})
    text = "repository registration is not allowed if model control mode is not EXPLICIT"
    assert (reply.status, reply.error) == (400, text)


def test_vertex_ai_is_what_its_variables_ask_for(start_serve: Callable, repository: Path) -> None:
    """The only front end besides metrics, with the only model."""
    environment = {**os.environ, **VERTEX, "AIP_STORAGE_URI": str(repository)}
    words = ("--http-address=127.0.0.1", "--metrics-port=0")
    serve = start_serve(*words, on_loopback=False, environment=environment)
    port = int(serve.read_until(r"Started Vertex AI HTTPService at 127\.0\.0\.1:(\d+)")[1])
    serve.read_until("Started Metrics Service")
    assert "Started HTTPService" not in serve.stdout
    assert "Started GRPC" not in serve.stdout
    assert call(port, "GET", "/health").status == 200
    assert call(port, "POST", "/predict", SIMPLE).json["outputs"][0]["data"] == [2] * 16
    page = call(port, "POST", "/predict", b"", X_Vertex_Ai_Triton_Redirect="metrics")
    assert b'nv_inference_request_success{model="simple",version="1"} 1' in page.body
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0


@pytest.mark.parametrize(
    ("environment", "words", "text"),
    [
        ({"AIP_PREDICT_ROUTE": ""}, (), "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        ({"AIP_HEALTH_ROUTE": ""}, (), "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
        ({}, ("--vertex-ai-default-model=x",), "Expect the default model 'x' is loaded"),
    ],
)
def test_vertex_ai_does_not_start_without_what_it_needs(
    start_serve: Callable, repository: Path, environment: dict[str, str], words: tuple[str, ...], text: str
) -> None:
    given = {**os.environ, **VERTEX, **environment}
    serve = start_serve(f"--model-repository={repository}", *words, environment=given)
    assert serve.wait() == 1
    assert f"failed to start Vertex AI service: Invalid argument - {text}" in serve.stderr


def test_a_port_that_is_taken_is_named(start_serve: Callable, repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--allow-sagemaker=true", f"--sagemaker-port={port}")
        serve = start_serve(f"--model-repository={repository}", *words)
        assert serve.wait() == 1
    assert f"failed to start SageMaker service: Unavailable - Socket '127.0.0.1:{port}' already in use" in serve.stderr
    assert "--http-address takes an address of this machine, and --sagemaker-port a free port" in serve.stderr
