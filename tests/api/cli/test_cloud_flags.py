"""The flags and variables of the cloud front ends (docs/reference/cloud-front-ends.md#start)."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.api.cli.command import ServeCommand, build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, parse
from trireme.api.clouds.sagemaker import SageMakerOptions
from trireme.api.clouds.vertex_ai import VertexAiOptions

VERTEX = {"AIP_MODE": "PREDICTION", "AIP_PREDICT_ROUTE": "/p", "AIP_HEALTH_ROUTE": "/h"}


def command(*words: str, **environment: str) -> ServeCommand:
    return build_command(parse(words, FLAGS), environment)


def refusal(*words: str, **environment: str) -> str:
    with pytest.raises(UsageError) as raised:
        command(*words, **environment)
    return raised.value.message


def test_neither_is_served_unless_it_is_wanted() -> None:
    made = command("--sagemaker-port=1", "--vertex-ai-port=1", SAGEMAKER_TRITON_PING_MODE="live", AIP_HTTP_PORT="99")
    assert (made.sagemaker, made.vertex_ai) == (None, None)


def test_sagemaker_takes_its_variables() -> None:
    made = command(
        "--allow-sagemaker=true",
        SAGEMAKER_TRITON_PING_MODE="live",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="m",
        SAGEMAKER_TRITON_INFERENCE_TYPE="generate",
    ).sagemaker
    assert made is not None
    assert made.platform == SageMakerOptions("live", "m", "generate")
    made = command("--allow-sagemaker=true").sagemaker
    assert made is not None
    assert made.platform == SageMakerOptions("ready", "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "infer")
    assert made.service.bind == ("0.0.0.0:8080",)


def test_it_says_what_it_does_not_know() -> None:
    words = "--allow-sagemaker=true"
    assert refusal(words, SAGEMAKER_TRITON_INFERENCE_TYPE="chat") == (
        "Error: Server has invalid inference type 'chat'. Must be one of: infer, generate, generate_stream."
    )
    assert refusal(words, SAGEMAKER_TRITON_PING_MODE="x") == (
        "Error: SAGEMAKER_TRITON_PING_MODE must be one of: ready, live. Got x"
    )


def test_both_share_what_http_is_told_but_for_tls() -> None:
    """They listen at its address, and carry its limits and restrictions."""
    words = ("--http-address=127.0.0.1", "--http-max-input-size=99", "--http-restricted-api=health:a=b")
    tls = ("--http-use-ssl=1", "--http-server-cert=c", "--http-server-key=k")
    made = command(*words, *tls, "--allow-sagemaker=1", "--allow-vertex-ai=1", "--sagemaker-port=9")
    for each, port in ((made.sagemaker, 9), (made.vertex_ai, 8080)):
        assert each is not None
        assert made.http is not None
        assert (each.service.bind, each.service.tls) == ((f"127.0.0.1:{port}",), None)
        assert each.options == made.http.options
        assert each.service.limits == made.http.service.limits


def test_vertex_ai_takes_its_variables() -> None:
    made = command(**VERTEX, AIP_HTTP_PORT="7080", AIP_STORAGE_URI="models")
    assert made.vertex_ai is not None
    assert made.vertex_ai.platform == VertexAiOptions("/p", "/h")
    assert made.vertex_ai.service.bind == ("0.0.0.0:7080",)
    assert (made.http, made.grpc, made.metrics is None) == (None, None, False)
    assert made.server.model_repository == (Path("models"),)


def test_flags_beat_them() -> None:
    words = ("--allow-http=1", "--vertex-ai-port=1", "--vertex-ai-default-model=m", "--model-repository=mine")
    made = command(*words, **VERTEX, AIP_HTTP_PORT="7080", AIP_STORAGE_URI="models")
    assert made.vertex_ai is not None
    assert made.vertex_ai.platform.default_model == "m"
    assert (made.vertex_ai.service.bind, made.http is None) == (("0.0.0.0:1",), False)
    assert made.server.model_repository == (Path("mine"),)
    assert command("--allow-vertex-ai=0", **VERTEX).vertex_ai is None
    assert command(AIP_MODE="TRAINING").http is not None


def test_a_port_that_is_none_is_refused() -> None:
    assert refusal(AIP_HTTP_PORT="http") == "Error: AIP_HTTP_PORT: Invalid option value. Got http"


def test_other_services_stay_within_sagemakers_range() -> None:
    words = ("--allow-sagemaker=1", "--allow-http=0", "--allow-grpc=0", "--sagemaker-safe-port-range=9000-9100")
    assert refusal(*words) == (
        "The server cannot listen to metrics requests at port 8002, allowed port range is [9000, 9100]"
    )
    assert command(*words, "--metrics-port=9050").sagemaker is not None
