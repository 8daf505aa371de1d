"""Calls that need a key (docs/reference/grpc.md#restricted-protocols)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_fakes import GrpcClient, head_of
from grpc_stub import MESSAGES, OpenStream, infer_request, stub_for
from grpclib.exceptions import GRPCError
from http_fakes import FakeServer
from scripted_server import ScriptedServer, scripted_server

from trireme.api.grpc.application import RestrictedProtocols, paths_of
from trireme.api.request_parameters import RESTRICTABLE, Restriction

REFUSAL = "This protocol is restricted, expecting header 'triton-grpc-protocol-{}'"


def test_every_method_belongs_to_one_category() -> None:
    """Those of reflection to none: the schema is no secret, and Triton has no such service."""
    paths = [path for category in RESTRICTABLE for path in paths_of(category)]
    offered = [path for path in GrpcClient(FakeServer()).handlers if not path.startswith("/grpc.reflection.")]
    assert sorted(paths) == sorted(offered)


def test_only_the_categories_named_need_a_key() -> None:
    guard = RestrictedProtocols([Restriction(("health", "inference"), "key", "value")])
    for category in RESTRICTABLE:
        for path in paths_of(category):
            if category in ("health", "inference"):
                with pytest.raises(GRPCError):
                    guard(head_of(path))
            else:
                guard(head_of(path))
            guard(head_of(path, [("triton-grpc-protocol-key", "value")]))
    guard(head_of("/no.such/Method"))


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("triton-grpc-protocol-key", "VALUE")],
        [("triton-grpc-protocol-key", "value ")],
        [("triton-grpc-protocol-key", "")],
        [("key", "value")],
        [("triton-grpc-protocol-other", "value")],
        [("triton-grpc-protocol-key", "wrong"), ("triton-grpc-protocol-key", "value")],
    ],
)
def test_the_value_must_be_the_very_same(metadata: list[tuple[str, str]]) -> None:
    guard = RestrictedProtocols([Restriction(("trace",), "key", "value")])
    (path,) = paths_of("trace")
    with pytest.raises(GRPCError) as refused:
        guard(head_of(path, metadata))
    assert (refused.value.status.name, refused.value.message) == ("UNAVAILABLE", REFUSAL.format("key"))


def test_categories_may_need_different_keys_in_whatever_case() -> None:
    """Metadata keys are lower case on the wire, so the case of the flag cannot matter."""
    guard = RestrictedProtocols([Restriction(("trace",), "One", "1"), Restriction(("logging",), "two", "2")])
    guard(head_of(*paths_of("trace"), metadata=[("triton-grpc-protocol-one", "1")]))
    guard(head_of(*paths_of("logging"), metadata=[("triton-grpc-protocol-two", "2")]))
    with pytest.raises(GRPCError, match="triton-grpc-protocol-One"):
        guard(head_of(*paths_of("trace"), metadata=[("triton-grpc-protocol-two", "2")]))


KEY = (("triton-grpc-protocol-admin", "secret"),)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    restricted = {"restrictions": (Restriction(("inference", "health"), "admin", "secret"),)}
    with scripted_server(tmp_path_factory.mktemp("models"), restricted) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made


def test_unary_calls_on_the_wire(stub: Any) -> None:
    for call, request in (
        (stub.ModelInfer, infer_request()),
        (stub.ServerLive, MESSAGES.ServerLiveRequest()),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(request)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert refused.value.details() == REFUSAL.format("admin")  # type: ignore[attr-defined]
        call(request, metadata=KEY)
    assert stub.ServerMetadata(MESSAGES.ServerMetadataRequest()).name == "triton"


def test_a_stream_is_refused_when_it_opens(stub: Any) -> None:
    stream = OpenStream(stub)
    with pytest.raises(grpc.RpcError):
        stream.hear()
    assert stream.status == (grpc.StatusCode.UNAVAILABLE, REFUSAL.format("admin"))
    stream.half_close()
    stream = OpenStream(stub, KEY)
    stream.say(request_id="a")
    assert [response.infer_response.id for response in stream.rest()] == ["a"]
