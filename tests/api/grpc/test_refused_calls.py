"""The trailer ``trireme-refused``: on errors of inference of which nothing was executed, and on no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_stub import infer_request, stub_for
from scripted_server import ScriptedServer, scripted_server

from trireme.api.grpc.infer_writer import KINDS_WANTED


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made


def trailers_of(stub: Any, request: Any) -> dict[str, str]:
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request, timeout=60)
    error: Any = raised.value
    return dict(error.trailing_metadata())


def test_refused_calls_say_why(stub: Any) -> None:
    assert trailers_of(stub, infer_request("nothing")) == {"trireme-refused": "unknown_model"}
    unfit = infer_request("plain")
    del unfit.inputs[:]
    del unfit.raw_input_contents[:]
    assert trailers_of(stub, unfit) == {"trireme-refused": "invalid"}


def test_calls_that_fail_in_execution_do_not(stub: Any) -> None:
    assert trailers_of(stub, infer_request("plain", "fail:broken")) == {}


@pytest.mark.parametrize("wanted", [False, True])
def test_errors_on_streams_tell_their_kind_to_who_asks(stub: Any, wanted: bool) -> None:
    requests = [infer_request("nothing"), infer_request("plain", "fail:broken")]
    metadata = ((KINDS_WANTED, "1"),) if wanted else ()
    refused, failed = stub.ModelStreamInfer(iter(requests), timeout=60, metadata=metadata)
    told = [
        {name: value.string_param for name, value in each.infer_response.parameters.items() if "kind" in name}
        for each in (refused, failed)
    ]
    kinds = [{"trireme_error_kind": "NOT_FOUND"}, {"trireme_error_kind": "INTERNAL"}] if wanted else [{}, {}]
    assert told == kinds
    assert ("trireme_error_refusal" in refused.infer_response.parameters) == wanted
    assert "trireme_error_refusal" not in failed.infer_response.parameters
