"""Questions about the server, its health and its switched-off features (docs/reference/grpc.md#health-service,
docs/reference/grpc.md#calls)."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_fakes import GrpcClient
from http_fakes import FakeServer

from trireme.api.grpc.codec import RawMessage
from trireme.engine.errors import NotFoundError, UnavailableError, UnsupportedError
from trireme.proto.descriptors import descriptor_pool
from trireme.proto.messages import inference as pb
from trireme.proto.messages.grpc.health.v1 import HealthCheckRequest, HealthCheckResponseServingStatus
from trireme.proto.messages.message_pool import default_message_pool

CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> GrpcClient:
    return GrpcClient(server)


async def test_every_rpc_of_the_schema_is_served_with_its_messages(client: GrpcClient) -> None:
    """Those with a class of ours; what reads the message itself is given its bytes."""
    names = (
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "trireme.Fleet",
    )
    methods = [method for name in names for method in descriptor_pool().FindServiceByName(name).methods]
    paths = {f"/{method.containing_service.full_name}/{method.name}": method for method in methods}
    assert {path for path in client.handlers if "v1alpha" not in path} == set(paths)
    for path, method in paths.items():
        handler = client.handlers[path]
        assert handler.cardinality.value == (method.client_streaming, method.server_streaming)
        for its_type, described in (
            (handler.request_type, method.input_type),
            (handler.reply_type, method.output_type),
        ):
            its_class = default_message_pool.url_to_type[f"type.googleapis.com/{described.full_name}"]
            assert its_type in (RawMessage, its_class)


async def test_live_and_ready_are_answers_and_no_errors(client: GrpcClient, server: FakeServer) -> None:
    for fact in (True, False):
        server.is_live = server.is_ready = fact
        assert (await client.inference("ServerLive", pb.ServerLiveRequest())).live is fact
        assert (await client.inference("ServerReady", pb.ServerReadyRequest())).ready is fact


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/inference.GRPCInferenceService/ServerLive", pb.ServerLiveRequest()),
        ("/inference.GRPCInferenceService/ServerReady", pb.ServerReadyRequest()),
        ("/inference.GRPCInferenceService/ModelReady", pb.ModelReadyRequest(name="identity")),
        (CHECK, HealthCheckRequest()),
    ],
)
async def test_a_server_that_exits_refuses_questions_about_health(
    client: GrpcClient, server: FakeServer, path: str, message: Any
) -> None:
    server.exiting = True
    with pytest.raises(UnavailableError, match=r"^Server exiting$"):
        await client.ask(path, message)


async def test_server_metadata_is_what_http_tells(client: GrpcClient, server: FakeServer) -> None:
    answer = await client.inference("ServerMetadata", pb.ServerMetadataRequest())
    about = server.metadata()
    assert (answer.name, answer.version, tuple(answer.extensions)) == (about.name, about.version, about.extensions)


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "nothing"])
async def test_health_follows_readiness_whatever_service_is_asked_about(
    client: GrpcClient, server: FakeServer, service: str
) -> None:
    answer = await client.ask(CHECK, HealthCheckRequest(service=service))
    assert answer.status == HealthCheckResponseServingStatus.SERVING
    server.is_ready = False
    answer = await client.ask(CHECK, HealthCheckRequest(service=service))
    assert answer.status == HealthCheckResponseServingStatus.NOT_SERVING


def test_health_has_no_watch(client: GrpcClient) -> None:
    """What is not there, the dispatcher answers with UNIMPLEMENTED and no text, as Triton does."""
    assert [path for path in client.handlers if path.startswith("/grpc.health")] == [CHECK]


@pytest.mark.parametrize("kind", ["System", "Cuda"])
async def test_there_are_no_shared_memory_regions(client: GrpcClient, kind: str) -> None:
    request = getattr(pb, f"{kind}SharedMemoryStatusRequest")
    answer = await client.inference(f"{kind}SharedMemoryStatus", request())
    assert answer.regions == {}
    expected = f"^Unable to find {kind.lower()} shared memory region: 'r'$"
    with pytest.raises(NotFoundError, match=expected):
        await client.inference(f"{kind}SharedMemoryStatus", request(name="r"))


@pytest.mark.parametrize("kind", ["System", "Cuda"])
@pytest.mark.parametrize("change", ["Register", "Unregister"])
async def test_shared_memory_is_switched_off(server: FakeServer, kind: str, change: str) -> None:
    method = f"{kind}SharedMemory{change}"
    message = getattr(pb, f"{method}Request")(name="r")
    with pytest.raises(UnsupportedError) as refused:
        await GrpcClient(server).inference(method, message)
    assert refused.value.message == (
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    )
