"""Questions about one model (docs/reference/grpc.md#calls)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from grpc_fakes import GrpcClient
from http_fakes import FakeServer

from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.errors import InvalidArgumentError, NotFoundError, UnavailableError, shown
from trireme.engine.metrics.statistics import (
    BatchStatistics,
    Duration,
    MemoryUsage,
    ModelStatistics,
    ModelStatisticsEntry,
    ResponseStatistics,
)
from trireme.proto.messages import inference as pb

RECORDED = sorted((Path(__file__).parents[2] / "engine" / "config" / "recorded").glob("*.pbtxt"))


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> GrpcClient:
    return GrpcClient(server)


@pytest.mark.parametrize(
    ("name", "version", "ready"),
    [("identity", "", True), ("identity", "3", True), ("identity", "2", False), ("nothing", "", False)],
)
async def test_a_model_that_is_not_ready_or_not_there_is_no_error(
    client: GrpcClient, name: str, version: str, ready: bool
) -> None:
    answer = await client.inference("ModelReady", pb.ModelReadyRequest(name=name, version=version))
    assert answer.ready is ready


NOT_A_NUMBER = "failed to get model version from specified version string '{}' (details: stol), version should be an "
NOT_A_NUMBER += "integral value > 0"
NEGATIVE = "invalid model version specified '{}' , version should be an integral value > 0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", NOT_A_NUMBER),
        ("-", NOT_A_NUMBER),
        (" ", NOT_A_NUMBER),
        ("9223372036854775808", NOT_A_NUMBER),
        ("1" * 5000, NOT_A_NUMBER),
        ("-9223372036854775809", NOT_A_NUMBER),
        ("-1", NEGATIVE),
        ("-9223372036854775808", NEGATIVE),
    ],
)
@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"])
async def test_versions_that_are_none(client: GrpcClient, method: str, text: str, expected: str) -> None:
    """Before anything else is looked at: the model does not even exist."""
    request = getattr(pb, f"{method}Request")(name="nothing", version=text)
    with pytest.raises(InvalidArgumentError) as refused:
        await client.inference(method, request)
    assert refused.value.message == expected.format(shown(text))


@pytest.mark.parametrize("text", ["1", " 1", "+1", "01", "1x", "1.5", "0" * 30 + "1"])
async def test_versions_that_mean_one(client: GrpcClient, text: str) -> None:
    answer = await client.inference("ModelMetadata", pb.ModelMetadataRequest(name="identity", version=text))
    assert answer.versions == ["1"]


async def test_metadata_of_all_versions_and_of_one(client: GrpcClient) -> None:
    answer = await client.inference("ModelMetadata", pb.ModelMetadataRequest(name="identity"))
    assert (answer.name, answer.versions, answer.platform) == ("identity", ["1", "3"], "fake")
    assert [(t.name, t.datatype, t.shape) for t in answer.inputs] == [("IN", "FP32", [-1])]
    assert [(t.name, t.datatype, t.shape) for t in answer.outputs] == [("OUT", "FP32", [-1])]
    answer = await client.inference("ModelMetadata", pb.ModelMetadataRequest(name="identity", version="3"))
    assert answer.versions == ["3"]


async def test_metadata_shows_the_batch_dimension(client: GrpcClient) -> None:
    answer = await client.inference("ModelMetadata", pb.ModelMetadataRequest(name="batching"))
    assert answer.inputs[0].shape == answer.outputs[0].shape == [-1, -1]


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
async def test_models_that_are_not_there(client: GrpcClient, method: str) -> None:
    request = getattr(pb, f"{method}Request")
    with pytest.raises(NotFoundError, match=r"^Request for unknown model: 'nothing' is not found$"):
        await client.inference(method, request(name="nothing"))
    with pytest.raises(NotFoundError, match=r"^Request for unknown model: 'identity' version 7 is not found$"):
        await client.inference(method, request(name="identity", version="7"))
    with pytest.raises(UnavailableError, match="not at ready state"):
        await client.inference(method, request(name="loading"))


@pytest.mark.parametrize("config", [path.read_text() for path in RECORDED], ids=[path.stem for path in RECORDED])
async def test_a_configuration_arrives_whole(client: GrpcClient, server: FakeServer, config: str) -> None:
    """What a client reads with protobuf's own classes equals what the server has, field by field."""
    message = text_format.Parse(config, ModelConfigMessage())
    description, compute = server.models["identity"]
    server.models["identity"] = (replace(description, config=model_config(message)), compute)
    answer = await client.inference("ModelConfig", pb.ModelConfigRequest(name="identity"))
    assert ModelConfigMessage.FromString(bytes(answer.config)) == message


async def test_statistics_tell_every_duration(client: GrpcClient, server: FakeServer) -> None:
    batch = BatchStatistics(1, 2, 4, 6)
    counted = ModelStatistics(
        last_inference_ms=1,
        inference_count=2,
        execution_count=3,
        success=Duration(4, 5),
        fail=Duration(6, 7),
        queue=Duration(8, 9),
        compute_input=Duration(10, 11),
        compute_infer=Duration(12, 13),
        compute_output=Duration(14, 15),
        cache_hit=Duration(16, 17),
        cache_miss=Duration(18, 19),
        batches={4: batch, 2: BatchStatistics()},
    )
    server.entries = [ModelStatisticsEntry("identity", 3, counted)]
    answer = await client.inference("ModelStatistics", pb.ModelStatisticsRequest(name="identity"))
    (told,) = answer.model_stats
    assert (told.name, told.version, told.last_inference) == ("identity", "3", 1)
    assert (told.inference_count, told.execution_count) == (2, 3)
    stats = told.inference_stats
    fields = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    durations = [(getattr(stats, field).count, getattr(stats, field).ns) for field in fields]
    assert durations == [(number, number + 1) for number in range(4, 20, 2)]
    assert [each.batch_size for each in told.batch_stats] == [2, 4]
    last = told.batch_stats[1]
    phases = (last.compute_input, last.compute_infer, last.compute_output)
    assert [(each.count, each.ns) for each in phases] == [(1, 2), (1, 4), (1, 6)]


async def test_statistics_tell_what_backends_report(client: GrpcClient, server: FakeServer) -> None:
    counted = ModelStatistics(responses={2: ResponseStatistics(*(Duration(number, 7) for number in range(6)))})
    memory = (MemoryUsage("CPU_PINNED", 0, 5), MemoryUsage("GPU", 1, 2**63))
    server.entries = [ModelStatisticsEntry("identity", 1, counted, memory_usage=memory)]
    (told,) = (await client.inference("ModelStatistics", pb.ModelStatisticsRequest())).model_stats
    assert list(told.response_stats) == ["2"]
    responses = told.response_stats["2"]
    fields = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
    assert [(getattr(responses, field).count, getattr(responses, field).ns) for field in fields] == [
        (number, 7) for number in range(6)
    ]
    assert [(each.type, each.id, each.byte_size) for each in told.memory_usage] == [
        ("CPU_PINNED", 0, 5),
        ("GPU", 1, 2**63),
    ]


async def test_durations_are_told_though_nothing_happened(client: GrpcClient, server: FakeServer) -> None:
    """Empty messages are on the wire, as from Triton, where clients look whether they are there."""
    server.entries = [ModelStatisticsEntry("identity", 1, ModelStatistics())]
    answer = await client.inference("ModelStatistics", pb.ModelStatisticsRequest())
    assert answer.model_stats[0].inference_stats.fail is not None
    assert b"\x12\x00" in bytes(answer.model_stats[0].inference_stats)


async def test_statistics_of_a_model_that_is_not_there(client: GrpcClient) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^requested model 'nothing' is not available$"):
        await client.inference("ModelStatistics", pb.ModelStatisticsRequest(name="nothing"))
