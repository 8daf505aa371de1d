"""The parameters extension (docs/reference/http-inference.md#request-parameters,
docs/reference/grpc.md#request-parameters): what a client gives a model reaches it, and what a model gives back reaches
the client, over both protocols and in the types that they have."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_stub import OpenStream, infer_request, stub_for
from scripted_models import Script, write_scripted_models

GIVEN: dict[str, Any] = {
    "yes": True,
    "no": False,
    "one": 1,
    "least": -(2**63),
    "most": 2**63 - 1,
    "text": 'é " \\ \n',
    "empty": "",
    "half": 0.5,
    "huge": 1e300,
    "": "nameless",
    "Triton_x": "another case is another name",
    "headers_": "nearly reserved",
}
CHOICES = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}


@pytest.fixture(scope="module")
def server(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("models")
    write_scripted_models(repository)
    with serve(repository, Script().backends()) as live:
        yield live


@pytest.fixture
def stub(server: Any) -> Iterator[Any]:
    with stub_for(server.grpc_url) as made:
        yield made


def post(server: Any, path: str, document: object) -> tuple[int, bytes]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    try:
        with urllib.request.urlopen(f"http://{server.url}{path}", body) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def infer(server: Any, parameters: object) -> tuple[int, Any]:
    inputs = [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}]
    status, body = post(server, "/v2/models/plain/infer", {"inputs": inputs, "parameters": parameters})
    return status, json.loads(body)


def same(given: dict[str, Any], back: dict[str, Any]) -> bool:
    """Equal, types included."""
    return {name: (type(value), value) for name, value in given.items()} == {
        name: (type(value), value) for name, value in back.items()
    }


def test_infer(server: Any) -> None:
    status, answer = infer(server, {**GIVEN, "script": "mirror", "beyond": 2**63})
    assert status == 200
    assert same(answer["parameters"], {**GIVEN, "beyond": float(2**63)})


def test_names_that_the_server_knows_do_not_reach_the_model(server: Any) -> None:
    known = {"sequence_id": 5, "sequence_start": True, "sequence_end": True, "priority": 1, "timeout": 7}
    status, answer = infer(server, {**known, "binary_data_output": True, "script": "mirror", "headers": "h"})
    assert (status, answer["parameters"]) == (200, {"headers": "h"})


def test_numbers_that_json_has_no_notation_for(server: Any) -> None:
    body = b'{"IN": 1, "script": "mirror", "a": NaN, "b": -Infinity}'
    status, text = post(server, "/v2/models/plain/generate", body)
    assert (status, text) == (200, b'{"a":NaN,"b":-Infinity,"model_name":"plain","model_version":"1"}')


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_generate(server: Any, verb: str) -> None:
    status, text = post(server, f"/v2/models/plain/{verb}", {**GIVEN, "IN": 1, "script": "mirror", "triton_x": 1})
    back = json.loads(text.removeprefix(b"data: "))
    assert status == 200
    assert same(back, {**GIVEN, "triton_x": 1, "model_name": "plain", "model_version": "1"})
    assert list(back) == sorted(back, key=str.encode)


def grpc_request(model: str, given: dict[str, Any]) -> Any:
    request = infer_request(model, script="mirror")
    for name, value in given.items():
        setattr(request.parameters[name], CHOICES[type(value)], value)
    return request


def values(message: Any) -> dict[str, Any]:
    """The parameters of a response, each with its type."""
    found = {}
    for name, parameter in message.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        assert choice in CHOICES.values(), "only these four are ever sent"
        found[name] = getattr(parameter, choice)
    return found


def test_grpc(stub: Any) -> None:
    given = {**GIVEN, "binary_data_output": True, "headers": "h", "infinite": math.inf}
    assert same(values(stub.ModelInfer(grpc_request("plain", given))), given)


@pytest.mark.parametrize("model", ["plain", "many"])
def test_grpc_stream(stub: Any, model: str) -> None:
    """Beside the flag that streams add, and which a model cannot fake."""
    stream = OpenStream(stub)
    stream._requests.put(grpc_request(model, GIVEN))
    (response,) = stream.rest()
    assert same(values(response.infer_response), {**GIVEN, "triton_final_response": True})


@pytest.mark.parametrize("name", ["triton_", "triton_x", "triton_enable_empty_final_response", "triton_final_response"])
def test_reserved_names(server: Any, stub: Any, name: str) -> None:
    """gRPC has one that may be given; HTTP has none."""
    text = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
    assert infer(server, {name: "x"}) == (400, {"error": text})
    expected = (
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        "'triton_' are allowed: triton_enable_empty_final_response"
    )
    if name == "triton_enable_empty_final_response":
        expected = f"invalid value type for '{name}' parameter, expected bool_param."
        assert values(stub.ModelInfer(grpc_request("plain", {name: True}))) == {}
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(grpc_request("plain", {name: "x"}))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert refused.value.details() == expected  # type: ignore[attr-defined]
