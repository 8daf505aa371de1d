"""Request parameters and forwarded headers (docs/reference/http-inference.md#request-parameters,
docs/reference/http-inference.md#header-forwarding)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from http_fakes import FakeServer, HttpClient, fp32_request

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.request import InferenceRequest

NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_BOOL = "attempt to access JSON non-boolean as boolean"
NOT_STRING = "attempt to access JSON non-string as string"


async def decode(client: HttpClient, parameters: str) -> InferenceRequest:
    """What the facade gets of a request with these parameters."""
    text = orjson.dumps(fp32_request()).decode()
    reply = await client.infer(f'{{"parameters":{parameters},{text[1:]}')
    assert reply.status == 200, reply.body
    return client.server.submitted[-1]


async def test_known_parameters_are_consumed(client: HttpClient) -> None:
    request = await decode(
        client,
        '{"sequence_id":5,"sequence_start":true,"sequence_end":true,"priority":3,"timeout":10,'
        '"binary_data_output":false}',
    )
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == (5, True, True)
    assert (request.priority, request.timeout_us, request.parameters) == (3, 10, {})


@pytest.mark.parametrize("value", ["0", '""', "5", '"five"', str(2**64 - 1)])
async def test_sequence_id_is_an_integer_or_a_string(client: HttpClient, value: str) -> None:
    request = await decode(client, f'{{"sequence_id":{value}}}')
    assert request.correlation_id == orjson.loads(value)
    assert type(request.correlation_id) is type(orjson.loads(value))


async def test_defaults(client: HttpClient) -> None:
    request = await decode(client, "{}")
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == (0, False, False)
    assert (request.priority, request.timeout_us, request.parameters) == (0, 0, {})


BAD = [
    *(("sequence_id", value, NOT_STRING) for value in ("true", "-1", "1.5", "null", "[]", "{}", str(2**64))),
    *(
        (name, value, NOT_BOOL)
        for name in ("sequence_start", "sequence_end", "binary_data_output")
        for value in ('"true"', "1", "null", "[]", "{}", "0.0")
    ),
    *(
        (name, value, NOT_UNSIGNED)
        for name in ("priority", "timeout")
        for value in ('"1"', "true", "-1", "1.0", "null", "[]", str(2**64))
    ),
]


@pytest.mark.parametrize(("name", "value", "text"), BAD)
async def test_known_parameter_of_the_wrong_type(client: HttpClient, name: str, value: str, text: str) -> None:
    reply = await client.infer(f'{{"parameters":{{"{name}":{value}}},"inputs":[]}}')
    assert (reply.status, reply.media, reply.error) == (500, "application/json", f"Unable to parse '{name}': {text}")


@pytest.mark.parametrize("value", ['"s"', "true", "1", "null", "[]"])
async def test_reserved_names(client: HttpClient, value: str) -> None:
    reply = await client.infer(f'{{"parameters":{{"triton_x":{value}}},"inputs":[]}}')
    assert (reply.status, reply.media) == (400, "application/json")
    assert reply.error == (
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
    )


async def test_other_parameters_reach_the_model(client: HttpClient) -> None:
    """Integers beyond 64 bits with sign become doubles; the type of all others is kept."""
    request = await decode(
        client,
        '{"a":1,"b":1.5,"c":true,"d":-3,"e":"x","headers":"h","f":9223372036854775807,"g":9223372036854775808,'
        '"h":36893488147419103232,"i":-9223372036854775808}',
    )
    expected: dict[str, Any] = {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": -3,
        "e": "x",
        "headers": "h",
        "f": 2**63 - 1,
        "g": float(2**63),
        "h": float(2**65),
        "i": -(2**63),
    }
    assert request.parameters == expected
    assert [type(value) for value in request.parameters.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize("value", ["null", "[]", "{}", "[1]"])
async def test_other_parameters_are_scalars(client: HttpClient, value: str) -> None:
    reply = await client.infer(f'{{"parameters":{{"headers":{value}}},"inputs":[]}}')
    assert (reply.status, reply.media) == (400, "application/json")
    assert reply.error == "parameter 'headers' has invalid type. It should be either 'int', 'bool', or 'string'."


@pytest.mark.parametrize("value", ["1", "null", "[]", '"a"', "true"])
async def test_parameters_are_an_object(client: HttpClient, value: str) -> None:
    reply = await client.infer(f'{{"parameters":{value},"inputs":[]}}')
    assert (reply.status, reply.media) == (500, "application/json")
    assert reply.error == "failed to get request params.: attempt to get members for non-object"


@pytest.mark.parametrize(
    ("parameters", "status"), [('{"a":null,"priority":"x"}', 400), ('{"priority":"x","a":null}', 500)]
)
async def test_parameters_are_read_in_order(client: HttpClient, parameters: str, status: int) -> None:
    assert (await client.infer(f'{{"parameters":{parameters},"inputs":[]}}')).status == status


async def test_of_duplicate_parameters_the_first_counts(client: HttpClient) -> None:
    request = await decode(client, '{"priority":1,"priority":"x","a":1,"a":null}')
    assert (request.priority, request.parameters) == (1, {"a": 1})


async def test_headers_are_forwarded_if_their_name_matches_anywhere() -> None:
    client = HttpClient(FakeServer(), header_forward_pattern="X-FWD")
    headers = {"X-Fwd-A": "1", "Not": "2", "y-x-fwd-z": "three é"}
    reply = await client.infer(fp32_request(parameters={"x-fwd-a": "json", "b": 1}), headers=headers)
    assert reply.status == 200
    assert client.server.submitted[0].parameters == {
        "x-fwd-a": "json",
        "b": 1,
        "X-Fwd-A": "1",
        "y-x-fwd-z": "three \udce9",
    }


async def test_case_counts_where_the_pattern_says_so() -> None:
    """The idiom of Triton's documentation, which Python's regular expressions do not know."""
    client = HttpClient(FakeServer(), header_forward_pattern="(?-i)MY_HEADER.*")
    assert (await client.infer(fp32_request(), headers={"MY_HEADER_1": "1", "my_header_2": "2"})).status == 200
    assert client.server.submitted[0].parameters == {"MY_HEADER_1": "1"}


async def test_a_forwarded_header_overrides_a_parameter_of_its_name() -> None:
    client = HttpClient(FakeServer(), header_forward_pattern="X-FWD")
    assert (await client.infer(fp32_request(parameters={"x-fwd-a": "json"}), headers={"x-fwd-a": "1"})).status == 200
    assert client.server.submitted[0].parameters == {"x-fwd-a": "1"}


async def test_headers_of_http2_are_forwarded_under_their_lower_case_names() -> None:
    client = HttpClient(FakeServer(), header_forward_pattern="X-FWD")
    body = orjson.dumps(fp32_request())
    await client.ask("POST", "/v2/models/identity/infer", body, {"X-Fwd-A": "1"}, http_version="2")
    assert client.server.submitted[0].parameters == {"x-fwd-a": "1"}


async def test_headers_are_forwarded_with_raw_requests_too() -> None:
    client = HttpClient(FakeServer(), header_forward_pattern="^x-")
    await client.post("/v2/models/identity/infer", b"", {"x-a": "1"})
    assert client.server.submitted[0].parameters == {"x-a": "1"}


async def test_no_header_is_forwarded_by_default(client: HttpClient) -> None:
    await client.infer(fp32_request(), headers={"x-a": "1", "priority": "2"})
    assert (client.server.submitted[0].parameters, client.server.submitted[0].priority) == ({}, 0)


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
        "triton_x",
    ],
)
async def test_headers_cannot_pose_as_known_parameters(name: str) -> None:
    client = HttpClient(FakeServer(), header_forward_pattern=".*")
    reply = await client.infer(fp32_request(), headers={name: "1"})
    assert (reply.status, reply.media) == (400, "application/json")
    assert reply.error == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    unmatched = HttpClient(FakeServer(), header_forward_pattern="^x")
    assert (await unmatched.infer(fp32_request(), headers={name: "1"})).status == 200


def test_a_pattern_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(InvalidArgumentError, match=r"invalid header forward pattern '\('"):
        HttpClient(FakeServer(), header_forward_pattern="(")
