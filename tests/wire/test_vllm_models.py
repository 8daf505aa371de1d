"""Models for Triton's vLLM backend, as their users have them (docs/vllm.md)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc as grpcclient
from serve_process import PATIENCE_S, ServeProcess, serve_process
from vllm_backend import SAMPLE_CONFIG, write_vllm_backend, write_vllm_model

COMPLETED_CONFIG = """
backend: "vllm"
instance_group [ { kind: KIND_MODEL } ]
parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "true" } }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("vllm")
    write_vllm_backend(folder / "backends")
    write_vllm_model(folder / "models", "plain")
    write_vllm_model(folder / "models", "adapted", COMPLETED_CONFIG, adapters=("doll",))
    ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--openai-on-http=true")
    with serve_process(folder / "models", f"--backend-directory={folder / 'backends'}", *ports) as server:
        yield server


def post(server: ServeProcess, path: str, body: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_a_model_of_the_sample_configuration(server: ServeProcess) -> None:
    body = {"text_input": "one two three", "stream": False, "sampling_parameters": '{"max_tokens": 2}'}
    status, text = post(server, "/v2/models/plain/generate", body)
    assert (status, json.loads(text)["text_output"]) == (200, "one two ")
    status, text = post(server, "/v2/models/plain/generate_stream", {**body, "stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]
    assert [event["text_output"] for event in events] == ["one ", "two ", ""]


def test_parameters_of_a_request_in_place_of_the_input(server: ServeProcess) -> None:
    status, text = post(server, "/v2/models/plain/generate", {"text_input": "one two", "max_tokens": 1})
    assert (status, json.loads(text)["text_output"]) == (200, "one ")


def test_a_model_whose_configuration_is_completed_with_adapters(server: ServeProcess) -> None:
    body = {"text_input": "one", "sampling_parameters": '{"lora_name": "doll"}'}
    status, text = post(server, "/v2/models/adapted/generate", body)
    assert (status, json.loads(text)["text_output"]) == (200, "doll:one ")
    body["sampling_parameters"] = '{"lora_name": "none"}'
    status, text = post(server, "/v2/models/adapted/generate", body)
    assert status == 400
    assert "LoRA none is not supported, we currently support ['doll']" in text


def test_openais_client(server: ServeProcess) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["adapted", "doll", "plain"]
        answer = client.completions.create(model="doll", prompt="one two", stream=True)
        assert "".join(piece.choices[0].text for piece in answer) == "doll:one doll:two "
        answer = client.completions.create(model="plain", prompt="one two", max_tokens=1)
        assert answer.choices[0].text == "one "


def test_a_client_that_leaves_has_its_text_aborted(server: ServeProcess) -> None:
    text = np.array([" ".join(["word"] * 100_000).encode()], object)
    inputs = [grpcclient.InferInput("text_input", [1], "BYTES"), grpcclient.InferInput("stream", [1], "BOOL")]
    inputs[0].set_data_from_numpy(text)
    inputs[1].set_data_from_numpy(np.array([True]))
    parameters = grpcclient.InferInput("sampling_parameters", [1], "BYTES")
    parameters.set_data_from_numpy(np.array([b'{"max_tokens": 100000}'], object))
    got: SimpleQueue[Any] = SimpleQueue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: got.put((result, error)))
        client.async_stream_infer("plain", [*inputs, parameters])
        result, error = got.get(timeout=PATIENCE_S)
        assert error is None
        assert result.as_numpy("text_output").tolist() == [b"word "]
        client.stop_stream(cancel_requests=True)
    server.wait_for(r"\[vllm\] aborted \[\d+\]")


def test_its_metrics_are_among_the_servers(server: ServeProcess) -> None:
    assert post(server, "/v2/models/adapted/generate", {"text_input": "one"})[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    assert 'vllm:generation_tokens_total{model="adapted",version="1"}' in text
    assert 'vllm:time_to_first_token_seconds_count{model="adapted",version="1"}' in text


def test_without_the_backend_a_load_says_what_is_missing(tmp_path: Path) -> None:
    write_vllm_model(tmp_path / "models", "plain", SAMPLE_CONFIG)
    (tmp_path / "backends").mkdir()
    flags = (f"--backend-directory={tmp_path / 'backends'}", "--exit-on-error=false", "--http-port=0", "--grpc-port=0")
    with serve_process(tmp_path / "models", *flags, "--metrics-port=0") as server:
        _, text = post(server, "/v2/repository/index", {})
    assert "unable to find backend library for backend 'vllm'" in text
