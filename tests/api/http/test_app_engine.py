"""The application over the real facade: what the fake one stands for is really so."""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from http_fakes import HttpClient, HttpReply

from trireme.actors import InferenceServer
from trireme.api.http.app import HttpApplication
from trireme.api.http.exchange import HttpOptions
from trireme.engine.options import ServerOptions

REPOSITORY = Path(__file__).parents[3] / "model_repository"

A = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
B = {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}


@pytest.fixture
async def real(client: HttpClient, tmp_path: Path) -> AsyncIterator[HttpClient]:
    """The client, over a server that has loaded some of the models that come with the house."""
    for name in ("digits", "identity_fp32", "simple", "simple_identity"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    async with InferenceServer(ServerOptions(model_repository=(tmp_path,))) as server:
        client.app = HttpApplication(server, HttpOptions())
        yield client


def summary(reply: HttpReply) -> tuple[int, str, Any]:
    return reply.status, reply.media, reply.json


async def test_requests_in_every_form_reach_a_model(real: HttpClient) -> None:
    reply = await real.infer({"id": "x", "inputs": [A, B]}, model="simple")
    assert (reply.status, reply.json["id"], reply.json["model_name"]) == (200, "x", "simple")
    outputs = {output["name"]: output for output in reply.json["outputs"]}
    assert outputs["OUTPUT0"]["data"] == list(range(1, 17))
    assert outputs["OUTPUT1"]["data"] == list(range(-1, 15))

    numbers = struct.pack("<16f", *range(16))
    tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}
    listed = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    reply = await real.infer({"inputs": [tensor], "outputs": listed}, numbers, model="identity_fp32/versions/1")
    assert (reply.status, reply.blobs) == (200, numbers)

    raw = {"Inference-Header-Content-Length": "0"}
    reply = await real.post("/v2/models/identity_fp32/infer", numbers, raw)
    assert (reply.status, reply.blobs) == (200, numbers)

    tensor = {"name": "INPUT0", "shape": [1, 2], "datatype": "BYTES", "data": ["a", "é"]}
    reply = await real.infer({"inputs": [tensor]}, model="simple_identity")
    assert reply.json["outputs"][0]["data"] == ["a", "é"]


async def test_classes_have_the_labels_of_the_model(real: HttpClient) -> None:
    model = (await real.get("/v2/models/digits")).json
    (tensor,) = model["inputs"]
    shape = [1, *tensor["shape"][1:]]
    data = [0] * math.prod(shape)
    given = {"name": tensor["name"], "shape": shape, "datatype": tensor["datatype"], "data": data}
    listed = [{"name": model["outputs"][0]["name"], "parameters": {"classification": 3}}]
    reply = await real.infer({"inputs": [given], "outputs": listed}, model="digits")
    assert reply.json["outputs"][0]["shape"] == [1, 3]
    labels = (REPOSITORY / "digits" / "labels.txt").read_text().split("\n")
    for text in reply.json["outputs"][0]["data"]:
        _, index, label = text.split(":")
        assert label == labels[int(index)]


async def test_refusals_of_the_engine_are_answers(real: HttpClient) -> None:
    unknown = "Request for unknown model: 'nope' is not found"
    assert summary(await real.infer({"inputs": []}, model="nope")) == (404, "text/plain", {"error": unknown})
    text = "[request id: <id_unknown>] input 'INPUT0' already exists in request"
    assert summary(await real.infer({"inputs": [A, A]}, model="simple")) == (400, "application/json", {"error": text})
    listed = [{"name": "X"}]
    reply = await real.infer({"inputs": [A, B], "outputs": listed}, model="simple")
    assert summary(reply) == (400, "application/json", {"error": "unexpected inference output 'X' for model 'simple'"})
    invalid = {"name": "INPUT0", "shape": [1, 16], "datatype": "FOO", "parameters": {"binary_data_size": 0}}
    reply = await real.infer({"inputs": [invalid, B]}, model="simple")
    text = "inference input 'INPUT0' data-type is '<invalid>', but model 'simple' expects 'INT32'"
    text = f"[request id: <id_unknown>] {text}"
    assert summary(reply) == (400, "application/json", {"error": text})


async def test_what_the_server_tells_about_its_models(real: HttpClient) -> None:
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/simple/ready",
        "/v2/models/simple/versions/1/ready",
    ):
        assert (await real.get(path)).status == 200
    assert (await real.get("/v2/models/simple/versions/2/ready")).status == 400
    config = (await real.get("/v2/models/simple/config")).json
    assert (config["name"], config["max_batch_size"]) == ("simple", 8)
    await real.infer({"inputs": [A, B]}, model="simple")
    (row,) = (await real.get("/v2/models/simple/stats")).json["model_stats"]
    assert (row["name"], row["version"], row["inference_count"], row["execution_count"]) == ("simple", "1", 1, 1)
    assert row["inference_stats"]["success"]["count"] == 1
    assert [batch["batch_size"] for batch in row["batch_stats"]] == [1]
    index = (await real.post("/v2/repository/index")).json
    assert {"name": "simple", "version": "1", "state": "READY"} in index
    for path in ("/v2/models/nope/stats", "/v2/models/simple/versions/7/stats"):
        assert (await real.get(path)).status == 400


async def test_models_cannot_be_loaded_in_the_default_mode(real: HttpClient) -> None:
    for action in ("load", "unload"):
        reply = await real.post(f"/v2/repository/models/simple/{action}")
        text = "explicit model load / unload is not allowed if polling is enabled"
        assert summary(reply) == (503, "application/json", {"error": text})
