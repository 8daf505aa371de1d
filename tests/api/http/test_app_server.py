"""Health, metadata, configuration, statistics (docs/reference/http.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from http_fakes import HttpClient

from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.metrics.statistics import (
    BatchStatistics,
    Duration,
    MemoryUsage,
    ModelStatistics,
    ModelStatisticsEntry,
    ResponseStatistics,
)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/identity/ready"])
async def test_health_is_an_empty_answer(client: HttpClient, path: str) -> None:
    reply = await client.get(path)
    assert (reply.status, reply.media, reply.body) == (200, "text/plain", b"")
    assert set(reply.headers) == {"content-type", "content-length"}


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/identity/ready"])
async def test_health_of_a_server_that_shuts_down(client: HttpClient, path: str) -> None:
    client.server.exiting = True
    reply = await client.get(path)
    assert (reply.status, reply.media, reply.error) == (503, "text/plain", "Server exiting")


async def test_server_that_is_not_live_or_not_ready(client: HttpClient) -> None:
    client.server.is_live = client.server.is_ready = False
    for path in ("/v2/health/live", "/v2/health/ready"):
        reply = await client.get(path)
        assert (reply.status, reply.media, reply.body) == (400, "text/plain", b"")


@pytest.mark.parametrize("path", ["nope", "identity/versions/2", "nope/versions/1"])
async def test_model_that_is_not_ready_does_not_say_why(client: HttpClient, path: str) -> None:
    reply = await client.get(f"/v2/models/{path}/ready")
    assert (reply.status, reply.media, reply.error) == (400, "text/plain", "Model version not ready")


async def test_server_metadata(client: HttpClient) -> None:
    reply = await client.get("/v2")
    assert (reply.status, reply.media) == (200, "application/json")
    assert reply.body == (
        b'{"name":"triton","version":"1.2.3","extensions":["classification","sequence","model_repository",'
        b'"model_repository(unload_dependents)","schedule_policy","model_configuration","system_shared_memory",'
        b'"cuda_shared_memory","binary_tensor_data","parameters","statistics","trace","logging"]}'
    )


async def test_model_metadata_lists_all_versions_or_the_one_asked_for(client: HttpClient) -> None:
    reply = await client.get("/v2/models/identity")
    assert (reply.status, reply.media) == (200, "application/json")
    assert reply.body == (
        b'{"name":"identity","versions":["1","3"],"platform":"fake",'
        b'"inputs":[{"name":"IN","datatype":"FP32","shape":[-1]}],'
        b'"outputs":[{"name":"OUT","datatype":"FP32","shape":[-1]}]}'
    )
    assert (await client.get("/v2/models/identity/versions/3")).json["versions"] == ["3"]


async def test_model_metadata_shows_the_batch_dimension_and_the_platform_if_there_is_one(client: HttpClient) -> None:
    description, compute = client.server.models["batching"]
    config = replace(description.config, platform="onnxruntime_onnx")
    client.server.models["batching"] = (replace(description, config=config), compute)
    document = (await client.get("/v2/models/batching")).json
    assert document["platform"] == "onnxruntime_onnx"
    assert document["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1, -1]}]
    assert (await client.get("/v2/models/strings")).json["inputs"][0]["datatype"] == "BYTES"


@pytest.mark.parametrize("route", ["", "/config"])
async def test_lookup_failures_are_json(client: HttpClient, route: str) -> None:
    for path, status, text in (
        ("nope", 404, "Request for unknown model: 'nope' is not found"),
        ("identity/versions/2", 404, "Request for unknown model: 'identity' version 2 is not found"),
        ("loading", 503, "Request for unknown model: 'loading' version 1 is not at ready state"),
    ):
        reply = await client.get(f"/v2/models/{path}{route}")
        assert (reply.status, reply.media, reply.error) == (status, "application/json", text)


async def test_config_is_the_messages_own_text(client: HttpClient) -> None:
    description, compute = client.server.models["identity"]
    config = model_config(ModelConfigMessage(name="identity", max_batch_size=4))
    client.server.models["identity"] = (replace(description, config=config), compute)
    reply = await client.get("/v2/models/identity/config")
    assert (reply.status, reply.media) == (200, "application/json")
    assert (reply.json["name"], reply.json["max_batch_size"]) == ("identity", 4)


def _entry(name: str, version: int) -> ModelStatisticsEntry:
    statistics = ModelStatistics(last_inference_ms=5, inference_count=6, execution_count=7)
    for number, field in enumerate(
        ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    ):
        setattr(statistics, field, Duration(number, 100 + number))
    statistics.batches[4] = BatchStatistics(1, 11, 12, 13)
    statistics.batches[2] = BatchStatistics(2, 21, 22, 23)
    return ModelStatisticsEntry(name, version, statistics)


async def test_statistics_have_every_member_in_order(client: HttpClient) -> None:
    client.server.entries = [_entry("m", 1)]
    reply = await client.get("/v2/models/m/stats")
    assert (reply.status, reply.media) == (200, "application/json")
    assert reply.body == (
        b'{"model_stats":[{"name":"m","version":"1","last_inference":5,"inference_count":6,"execution_count":7,'
        b'"inference_stats":{"success":{"count":0,"ns":100},"fail":{"count":1,"ns":101},"queue":{"count":2,"ns":102},'
        b'"compute_input":{"count":3,"ns":103},"compute_infer":{"count":4,"ns":104},'
        b'"compute_output":{"count":5,"ns":105},"cache_hit":{"count":6,"ns":106},"cache_miss":{"count":7,"ns":107}},'
        b'"response_stats":{},"batch_stats":['
        b'{"batch_size":2,"compute_input":{"count":2,"ns":21},"compute_infer":{"count":2,"ns":22},'
        b'"compute_output":{"count":2,"ns":23}},'
        b'{"batch_size":4,"compute_input":{"count":1,"ns":11},"compute_infer":{"count":1,"ns":12},'
        b'"compute_output":{"count":1,"ns":13}}],"memory_usage":[]}]}'
    )


async def test_statistics_tell_what_backends_report(client: HttpClient) -> None:
    """Responses by index, in order; memory as it is."""
    statistics = ModelStatistics()
    for index in (10, 2):
        statistics.responses[index] = ResponseStatistics(*(Duration(number, index) for number in range(6)))
    memory = (MemoryUsage("CPU", 0, 5), MemoryUsage("GPU", 1, 2**63))
    client.server.entries = [ModelStatisticsEntry("m", 1, statistics, memory_usage=memory)]
    body = (await client.get("/v2/models/m/stats")).body
    assert (
        b'"response_stats":{"2":{"compute_infer":{"count":0,"ns":2},"compute_output":{"count":1,"ns":2},'
        b'"success":{"count":2,"ns":2},"fail":{"count":3,"ns":2},"empty_response":{"count":4,"ns":2},'
        b'"cancel":{"count":5,"ns":2}},"10":{"compute_infer"'
    ) in body
    assert body.endswith(
        b'"memory_usage":[{"type":"CPU","id":0,"byte_size":5},{"type":"GPU","id":1,"byte_size":9223372036854775808}]}]}'
    )


async def test_statistics_of_all_models_of_one_and_of_one_version(client: HttpClient) -> None:
    client.server.entries = [_entry("a", 1), _entry("m", 1), _entry("m", 2)]
    for path, expected in (
        ("/v2/models/stats", ["a1", "m1", "m2"]),
        ("/v2/models/m/stats", ["m1", "m2"]),
        ("/v2/models/m/versions/2/stats", ["m2"]),
    ):
        rows = (await client.get(path)).json["model_stats"]
        assert [row["name"] + row["version"] for row in rows] == expected


async def test_statistics_of_an_unknown_model(client: HttpClient) -> None:
    reply = await client.get("/v2/models/nope/stats")
    assert (reply.status, reply.media) == (400, "application/json")
    assert reply.error == "requested model 'nope' is not available"
