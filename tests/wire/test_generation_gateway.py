"""Adapters of generating models through a gateway, and through a route: what a request says of them passes as it is."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from serve_process import PATIENCE_S, GatewayProcess, ServeProcess, serve_process, write_fleet
from small_llama import write_adapter, write_llama
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServeProcess, ServeProcess]]:
    """A server with a route to its model, and a gateway in front of it."""
    folder = tmp_path_factory.mktemp("adapters")
    repository = folder / "models"
    write_llama(repository / "writer" / "1")
    (repository / "writer" / "config.pbtxt").write_text('backend: "generation"\n')
    for number, name in enumerate(("pirate", "lawyer")):
        write_adapter(repository / "writer" / "1" / "adapters" / name, number)
    routes = folder / "routes.toml"
    routes.write_text("[routes.story]\ntargets = { 'writer' = 100 }\n")
    with ExitStack() as stack:
        server = stack.enter_context(serve_process(repository, "--routes", str(routes), "--openai-on-http=true"))
        fleet = folder / "fleet.toml"
        write_fleet(fleet, a=server.grpc_port)
        gateway = stack.enter_context(GatewayProcess(fleet, "--openai-on-http=true"))
        gateway.wait_for("replica a at .*: ready")
        yield server, gateway


def told(server: ServeProcess, model: str, **sampling: Any) -> str:
    """What a request over a gRPC stream gets: text, or why not."""
    answers: queue.Queue[Any] = queue.Queue()
    given = json.dumps({"max_tokens": 12, "temperature": 0, **sampling})
    inputs = []
    for name, text in (("text_input", "Once upon a time"), ("sampling_parameters", given)):
        inputs.append(grpcclient.InferInput(name, [1], "BYTES"))
        inputs[-1].set_data_from_numpy(np.array([text.encode()], object))
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer(model, inputs)
        answer = answers.get(timeout=PATIENCE_S)
        client.stop_stream()
    return (
        answer.message() if isinstance(answer, InferenceServerException) else answer.as_numpy("text_output")[0].decode()
    )


def test_each_way_leads_to_the_adapter(served: tuple[ServeProcess, ServeProcess]) -> None:
    server, gateway = served
    names = ({}, {"lora_name": "pirate"}, {"lora_name": "lawyer"})
    texts = [told(server, "writer", **name) for name in names]
    assert len(set(texts)) == 3
    assert all(text.startswith("Once upon a time") for text in texts)
    for where, model in ((gateway, "writer"), (server, "story"), (gateway, "story")):
        assert [told(where, model, **name) for name in names] == texts
        error = told(where, model, lora_name="cook")
        assert "lora_name is 'cook', which is not known; expected one of lawyer, pirate" in error


def test_openai_s_clients_find_adapters_at_a_gateway(served: tuple[ServeProcess, ServeProcess]) -> None:
    gateway = served[1]
    listed = [each.ask("GET", "/v1/models")[1]["data"] for each in served]
    names = [[model["id"] for model in models] for models in listed]
    assert names[0] == names[1]
    assert {"writer", "lawyer", "pirate"} <= set(names[0])
    for model in ("writer", "pirate", "writer:lawyer"):
        asked = {"model": model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
        texts = [each.ask("POST", "/v1/completions", asked)[1]["choices"][0]["text"] for each in served]
        assert texts[0] == texts[1]
    status, answer = gateway.ask("POST", "/v1/completions", {"model": "cook", "prompt": "a"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
