"""In which order an infer request is examined, and how its failures look
(docs/reference/http-inference.md#processing-order)."""

from __future__ import annotations

import orjson
import pytest
from http_fakes import FakeServer, HttpClient, fp32_request

from trireme.engine.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TriremeError,
    UnavailableError,
    UnsupportedError,
    shown,
)

OUT_OF_RANGE = (
    "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
)
DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"


async def test_answer_of_the_plainest_request(client: HttpClient) -> None:
    reply = await client.infer(fp32_request())
    assert (reply.status, reply.media) == (200, "application/json")
    assert set(reply.headers) == {"content-type", "content-length"}
    assert reply.body == (
        b'{"model_name":"identity","model_version":"3",'
        b'"outputs":[{"name":"OUT","datatype":"FP32","shape":[2],"data":[1.0,2.0]}]}'
    )


async def test_version_in_the_path_is_handed_on(client: HttpClient) -> None:
    reply = await client.infer(fp32_request(), model="identity/versions/1")
    assert reply.status == 200
    await client.infer(fp32_request())
    assert [request.model_version for request in client.server.submitted] == [1, -1]


# Each row fails at its own stage and would fail at every later one too.
STAGES = [
    ("versions/99999999999999999999", {"Content-Encoding": "br"}, "{", "text/plain", 400, "failed to get model ver"),
    ("nope", {"Content-Encoding": "br"}, "{", "text/plain", 404, "Request for unknown model: 'nope' is not found"),
    ("decoupled", {"Content-Encoding": "br"}, "{", "text/plain", 501, DECOUPLED),
    (
        "identity",
        {"Content-Encoding": "br", "Inference-Header-Content-Length": "x"},
        "{",
        "text/plain",
        501,
        "Unsupported compression type",
    ),
    (
        "identity",
        {"Inference-Header-Content-Length": "x"},
        "{",
        "text/plain",
        400,
        "Unable to parse Inference-Header-Content-Length, got: x",
    ),
    ("identity", {}, "{", "application/json", 500, "failed to parse the request JSON buffer: "),
    ("identity", {}, '{"id":1,"parameters":1}', "application/json", 500, "Unable to parse 'id': "),
    ("identity", {}, '{"parameters":1,"inputs":1}', "application/json", 500, "failed to get request params.: "),
    ("identity", {}, '{"inputs":1,"outputs":1}', "application/json", 500, "Unable to parse 'inputs': "),
    (
        "identity",
        {"Inference-Header-Content-Length": "27"},
        '{"inputs":[],"outputs":[1]}x',
        "application/json",
        400,
        "unexpected additional input data for model 'identity'",
    ),
    (
        "identity",
        {"priority": "1"},
        '{"inputs":[],"outputs":[1]}',
        "application/json",
        500,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    (
        "identity",
        {"priority": "1"},
        '{"inputs":[]}',
        "application/json",
        400,
        "Header 'priority' is reserved for Triton usage and cannot be forwarded.",
    ),
    ("identity", {}, '{"inputs":[]}', "application/json", 400, "refused"),
]


@pytest.mark.parametrize(("model", "headers", "body", "media", "status", "text"), STAGES)
async def test_the_first_failure_wins(
    model: str, headers: dict[str, str], body: str, media: str, status: int, text: str
) -> None:
    client = HttpClient(FakeServer(), header_forward_pattern="^priority$")
    client.server.refusal = InvalidArgumentError("refused")
    path = f"identity/{model}" if model.startswith("versions") else model
    reply = await client.infer(body, headers=headers, model=path)
    assert (reply.status, reply.media) == (status, media)
    assert reply.error.startswith(text)
    assert client.server.submitted == []


async def test_unknown_version_of_a_model(client: HttpClient) -> None:
    reply = await client.infer("{", model="identity/versions/2")
    assert (reply.status, reply.media) == (404, "text/plain")
    assert reply.error == "Request for unknown model: 'identity' version 2 is not found"


KINDS = [
    (InvalidArgumentError, 400),
    (TriremeError, 400),
    (AlreadyExistsError, 400),
    (CancelledError, 400),
    (NotFoundError, 404),
    (InternalError, 500),
    (UnsupportedError, 501),
    (UnavailableError, 503),
    (DeadlineError, 503),
]


@pytest.mark.parametrize(("kind", "status"), KINDS)
async def test_refusals_are_json_and_failures_of_the_execution_are_text(
    client: HttpClient, kind: type[TriremeError], status: int
) -> None:
    """Every kind of error has its status (docs/reference/errors.md#error-kinds); the Content-Type tells before from
    after."""
    client.server.refusal = kind('no "room"\n')
    reply = await client.infer(fp32_request())
    assert (reply.status, reply.media) == (status, "application/json")
    assert reply.body == b'{"error":"no \\"room\\"\\n"}'
    client.server.refusal = None
    client.server.failure = kind("model failed")
    reply = await client.infer(fp32_request(), headers={"Accept-Encoding": "gzip"})
    assert (reply.status, reply.media) == (status, "text/plain")
    assert reply.body == b'{"error":"model failed"}'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("[]", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ('"a"', "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ("{}", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ('{"inputs":null}', "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ('{"inputs":{}}', "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ('{"id":null,"inputs":[]}', "Unable to parse 'id': attempt to access JSON non-string as string"),
        ("{bad", "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ('{"inputs":[],"outputs":null}', "Unable to parse 'outputs': attempt to access JSON non-array as array"),
        ('{"inputs":[],"outputs":{}}', "Unable to parse 'outputs': attempt to access JSON non-array as array"),
    ],
)
async def test_bad_documents_are_internal_errors(client: HttpClient, body: str, text: str) -> None:
    reply = await client.infer(body)
    assert (reply.status, reply.media, reply.error) == (500, "application/json", text)


async def test_id_is_echoed_unless_empty(client: HttpClient) -> None:
    reply = await client.infer('{"id":"a\\"b\\\\c\\n\\u0001\\u007f/é",' + '"inputs":[]}')
    assert reply.body.startswith(b'{"id":"a\\"b\\\\c\\n\\u0001\x7f/\xc3\xa9","model_name":"identity"')
    assert (await client.infer(fp32_request(id=""))).body.startswith(b'{"model_name":')


async def test_bytes_in_names_that_are_no_utf8_survive(client: HttpClient) -> None:
    reply = await client.ask(
        "POST",
        "/v2/models/identity/infer",
        b'{"id":"\xff","inputs":[{"name":"IN\xfe","shape":[1],"datatype":"FP32","data":[1]}]}',
    )
    assert reply.body == (
        b'{"id":"\xff","model_name":"identity","model_version":"3",'
        b'"outputs":[{"name":"OUT\xfe","datatype":"FP32","shape":[1],"data":[1.0]}]}'
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("", "Unable to parse Inference-Header-Content-Length, got: "),
        ("-", "Unable to parse Inference-Header-Content-Length, got: -"),
        ("-1", "inference header size should be in range (0, 13), got: -1"),
        ("14", "inference header size should be in range (0, 13), got: 14"),
        ("14xyz", "inference header size should be in range (0, 13), got: 14xyz"),
        ("2147483648", OUT_OF_RANGE + "2147483648"),
        ("-2147483649", OUT_OF_RANGE + "-2147483649"),
        ("9" * 5000, OUT_OF_RANGE + shown("9" * 5000)),
    ],
)
async def test_header_length_out_of_range(client: HttpClient, text: str, error: str) -> None:
    reply = await client.infer('{"inputs":[]}', headers={"Inference-Header-Content-Length": text})
    assert (reply.status, reply.media, reply.error) == (400, "text/plain", error)


@pytest.mark.parametrize("text", ["13", "+13", " 13", "13abc", "0013"])
async def test_header_length_may_be_the_whole_body(client: HttpClient, text: str) -> None:
    reply = await client.infer('{"inputs":[]}', headers={"Inference-Header-Content-Length": text})
    assert reply.status == 200


@pytest.mark.parametrize(("body", "headers"), [(b"", {}), (bytes(8), {"Inference-Header-Content-Length": "0"})])
async def test_raw_request_hands_over_the_body_and_gets_all_outputs_binary(
    client: HttpClient, body: bytes, headers: dict[str, str]
) -> None:
    reply = await client.post("/v2/models/identity/infer", body, headers)
    (request,) = client.server.submitted
    assert (request.raw_input, request.inputs, request.id, request.requested_outputs) == (body, [], "", ())
    assert reply.status == 200
    if body:
        assert (reply.media, reply.blobs) == ("application/octet-stream", body)
        assert reply.head["outputs"][0]["parameters"] == {"binary_data_size": 8}
    else:
        assert reply.media == "application/json"


async def test_size_limits() -> None:
    """Texts of docs/reference/http.md#request-bodies; bytes of binary tensors are not limited."""
    hint = "Use --http-max-input-size to increase the limit."
    client = HttpClient(FakeServer(), max_input_bytes=200)
    reply = await client.infer(" " * 200 + "{}")
    assert (reply.status, reply.media) == (413, "application/json")
    assert reply.error == f"request size of 202 bytes exceeds the maximum allowed input size of 200 bytes. {hint}"

    reply = await client.post("/v2/models/identity/infer", bytes(201), {"Inference-Header-Content-Length": "0"})
    assert (reply.status, reply.media) == (413, "application/json")
    assert reply.error == f"request size of 201 bytes exceeds the maximum allowed input size of 200 bytes. {hint}"

    tensor = {"name": "IN", "shape": [51], "datatype": "FP32", "data": []}
    reply = await client.infer({"inputs": [tensor]})
    assert reply.status == 400
    assert reply.error == (
        f"JSON input 'IN' has a byte_size (204 bytes) that exceeds the maximum allowed value of 200 bytes. {hint}"
    )

    binary = {"name": "IN", "shape": [1000], "datatype": "FP32", "parameters": {"binary_data_size": 4000}}
    assert (await client.infer({"inputs": [binary]}, bytes(4000))).status == 200


async def test_size_limit_of_strings_counts_their_length_fields() -> None:
    tensor = {"name": "IN", "shape": [100], "datatype": "BYTES", "data": [""] * 100}
    text = orjson.dumps({"inputs": [tensor]}).decode()
    assert len(text) < 399
    for limit_bytes, status in ((400, 200), (399, 400)):
        client = HttpClient(FakeServer(), max_input_bytes=limit_bytes)
        assert (await client.infer(text, model="strings")).status == status
    reply = await client.infer(text, model="strings")
    assert reply.error.startswith("JSON input 'IN' has a byte_size (400 bytes) that exceeds the maximum allowed value")
