"""The model repository (docs/reference/grpc.md#repository-calls)."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_fakes import GrpcClient
from http_fakes import FakeServer

from trireme.engine.description import IndexEntry, ModelState
from trireme.engine.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from trireme.proto.messages import inference as pb

Parameter = pb.ModelRepositoryParameter


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> GrpcClient:
    return GrpcClient(server)


async def test_the_index(client: GrpcClient, server: FakeServer) -> None:
    server.index = [IndexEntry("a", "1", ModelState.READY), IndexEntry("b", "2", ModelState.UNAVAILABLE, "why")]
    server.index.append(IndexEntry("c"))
    answer = await client.inference("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))
    rows = [(model.name, model.version, model.state, model.reason) for model in answer.models]
    assert rows == [("a", "1", "READY", ""), ("b", "2", "UNAVAILABLE", "why"), ("c", "", "", "")]
    await client.inference("RepositoryIndex", pb.RepositoryIndexRequest())
    assert server.index_calls == [True, False]


@pytest.mark.parametrize("method", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
async def test_a_repository_cannot_be_named(client: GrpcClient, server: FakeServer, method: str) -> None:
    """Which is said before anything else."""
    server.control_error = UnavailableError("not reached")
    request = getattr(pb, f"{method}Request")(repository_name="r")
    with pytest.raises(UnsupportedError, match=r"^'repository_name' specification is not supported$"):
        await client.inference(method, request)


async def test_load_parameters_reach_the_server_as_they_are(client: GrpcClient, server: FakeServer) -> None:
    parameters = {"config": Parameter(string_param="{}"), "file:1/model.onnx": Parameter(bytes_param=b"\x00\xff")}
    request = pb.RepositoryModelLoadRequest(model_name="m", parameters=parameters)
    await client.inference("RepositoryModelLoad", request)
    assert server.loads == [("m", {"config": "{}", "file:1/model.onnx": b"\x00\xff"})]


BAD_LOADS: dict[str, tuple[dict[str, Any], str]] = {
    "config is no text": (
        {"config": Parameter(bytes_param=b"{}")},
        "invalid value type for load parameter 'config', expected string_param.",
    ),
    "config is not set": (
        {"config": Parameter()},
        "invalid value type for load parameter 'config', expected string_param.",
    ),
    "file is no bytes": (
        {"file:1/m": Parameter(string_param="x")},
        "invalid value type for load parameter 'file:1/m', expected bytes_param.",
    ),
    "unknown name": ({"foo": Parameter(bool_param=True)}, "unrecognized load parameter 'foo'."),
}


@pytest.mark.parametrize("case", BAD_LOADS)
async def test_bad_load_parameters(client: GrpcClient, server: FakeServer, case: str) -> None:
    """They are found before the server is asked."""
    parameters, expected = BAD_LOADS[case]
    server.control_error = UnavailableError("not reached")
    with pytest.raises(InvalidArgumentError) as refused:
        await client.inference(
            "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m", parameters=parameters)
        )
    assert refused.value.message == expected


@pytest.mark.parametrize("value", [True, False])
async def test_unload_may_include_dependents(client: GrpcClient, server: FakeServer, value: bool) -> None:
    parameters = {"unload_dependents": Parameter(bool_param=value), "other": Parameter(string_param="ignored")}
    request = pb.RepositoryModelUnloadRequest(model_name="m", parameters=parameters)
    await client.inference("RepositoryModelUnload", request)
    await client.inference("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="n"))
    assert server.unloads == [("m", value), ("n", False)]


@pytest.mark.parametrize("parameter", [Parameter(string_param="true"), Parameter(int64_param=1), Parameter()])
async def test_unload_dependents_is_a_bool(client: GrpcClient, parameter: pb.ModelRepositoryParameter) -> None:
    request = pb.RepositoryModelUnloadRequest(model_name="m", parameters={"unload_dependents": parameter})
    with pytest.raises(InvalidArgumentError) as refused:
        await client.inference("RepositoryModelUnload", request)
    assert refused.value.message == "invalid value type for 'unload_dependents' parameter, expected bool_param."


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
async def test_what_the_server_refuses_is_refused(client: GrpcClient, server: FakeServer, method: str) -> None:
    server.control_error = UnavailableError("not in this mode")
    with pytest.raises(UnavailableError, match=r"^not in this mode$"):
        await client.inference(method, getattr(pb, f"{method}Request")(model_name="m"))
