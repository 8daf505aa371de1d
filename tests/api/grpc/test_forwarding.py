"""Metadata that becomes request parameters (docs/reference/grpc.md#header-forwarding)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_fakes import GrpcClient, head_of
from grpc_stub import PATIENCE_S, OpenStream, infer_request, stub_for
from http_fakes import FakeServer
from scripted_server import ScriptedServer, scripted_server

from trireme.api.grpc.infer import forward_metadata
from trireme.api.request_parameters import compile_forward_pattern
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.request import InferenceRequest

RESERVED = ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"]


def forwarded(pattern: str, *metadata: tuple[str, str | bytes], user_agent: str | None = None) -> dict[str, Any]:
    request = InferenceRequest("m", parameters={"own": 1})
    compiled = compile_forward_pattern(pattern)
    assert compiled is not None
    forward_metadata(head_of("", metadata, user_agent), compiled, request)
    return request.parameters


def test_keys_that_the_pattern_is_found_in() -> None:
    """Unanchored, whatever the case."""
    metadata = (("x-one", "1"), ("two", "2"), ("y-x-three", "3"))
    assert forwarded("X-", *metadata) == {"own": 1, "x-one": "1", "y-x-three": "3"}


def test_metadata_takes_the_place_of_the_requests_own_parameter() -> None:
    assert forwarded("own", ("own", "theirs")) == {"own": "theirs"}


def test_of_a_repeated_key_the_last_value_stays() -> None:
    assert forwarded("x", ("x", "1"), ("x", "2")) == {"own": 1, "x": "2"}


def test_binary_values_become_text() -> None:
    assert forwarded("bin", ("a-bin", b"\x01A"))["a-bin"] == "\x01A"
    assert forwarded("bin", ("a-bin", b"\xff"))["a-bin"].encode("utf-8", "surrogateescape") == b"\xff"


def test_the_user_agent_counts_as_metadata() -> None:
    assert forwarded(".*", user_agent="tool/1")["user-agent"] == "tool/1"


@pytest.mark.parametrize("key", [*RESERVED, "triton_anything"])
def test_names_that_mean_something_to_the_server_are_refused(key: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        forwarded(".*", (key, "x"))
    assert refused.value.message == f"Header '{key}' is reserved for Triton usage and cannot be forwarded."
    assert key not in forwarded("other", (key, "x")), "what is not forwarded may be called anything"


def test_case_counts_where_the_pattern_says_so() -> None:
    assert "my_header" in forwarded("MY_HEADER", ("my_header", "x"))
    assert "my_header" not in forwarded("(?-i)MY_HEADER", ("my_header", "x"))


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(InvalidArgumentError, match="invalid header forward pattern"):
        GrpcClient(FakeServer(), header_forward_pattern="(")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models"), {"header_forward_pattern": "^script|^priority"}) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made


SCRIPT = (("script", "fail:forwarded"),)


def test_the_model_of_a_unary_call_sees_it(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        stub.ModelInfer(infer_request(), metadata=SCRIPT)
    assert failed.value.details() == "forwarded"  # type: ignore[attr-defined]


def test_so_does_the_model_of_a_call_that_had_to_wait(tmp_path: Path) -> None:
    options = {"header_forward_pattern": "script"}
    with scripted_server(tmp_path, options, max_inflight_requests=1) as server, stub_for(server.url) as stub:
        first = stub.ModelInfer.future(infer_request(script="wait:first say!", request_id="first"))
        server.until(lambda: "first" in server.script.begun)
        second = stub.ModelInfer.future(infer_request("queued"), metadata=SCRIPT)
        server.until(lambda: server.server.budget_statistics().waiting)
        server.script.open("first")
        first.result(PATIENCE_S)
        assert second.exception(PATIENCE_S).details() == "forwarded"


def test_every_request_of_a_stream_gets_it(stub: Any) -> None:
    stream = OpenStream(stub, SCRIPT)
    stream.say()
    stream.say("many")
    assert [response.error_message for response in stream.rest()] == ["forwarded", "forwarded"]


def test_a_reserved_name_refuses_the_call_or_each_request_of_the_stream(stub: Any) -> None:
    text = "Header 'priority' is reserved for Triton usage and cannot be forwarded."
    with pytest.raises(grpc.RpcError) as failed:
        stub.ModelInfer(infer_request(), metadata=(("priority", "1"),))
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert failed.value.details() == text  # type: ignore[attr-defined]
    stream = OpenStream(stub, (("priority", "1"),))
    stream.say(request_id="a")
    (response,) = stream.rest()
    assert (response.error_message, response.infer_response.id) == (text, "a")
