"""How the application behaves towards connections: bodies, clients that leave, defects, anything at all as input."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
import trio
from http_fakes import FakeExchange, FakeServer, HttpClient, HttpReply, fp32_request
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.request import InferenceRequest

PATH = "/v2/models/identity/infer"
PLAIN = orjson.dumps(fp32_request())


async def test_a_body_in_pieces_is_put_together(client: HttpClient) -> None:
    pieces = [PLAIN[:10], bytearray(PLAIN[10:11]), b"", memoryview(PLAIN)[11:]]
    reply = await client.ask("POST", PATH, pieces)
    assert reply.json["outputs"][0]["data"] == [1.0, 2.0]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
async def test_a_body_in_one_piece_is_not_copied(client: HttpClient, wrap: type) -> None:
    text = orjson.dumps(
        {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}]}
    )
    body = wrap(text + bytes(8))
    await client.ask("POST", PATH, [body], {"Inference-Header-Content-Length": str(len(text))})
    buffer = client.server.submitted[0].inputs[0].buffer
    assert isinstance(buffer, memoryview)
    assert buffer.obj is (body.obj if isinstance(body, memoryview) else body)


class Unread(FakeExchange):
    async def read(self) -> Any:
        pytest.fail("nothing was to be received")


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/nope", 404), ("POST", "/v2", 405)])
async def test_a_body_that_no_handler_wants_is_not_read(
    client: HttpClient, method: str, path: str, status: int
) -> None:
    """So nothing is kept of it, and a client that asks first (`Expect: 100-continue`) is spared sending it."""
    exchange = Unread(method, path)
    await client.app(exchange)
    assert HttpReply(exchange).status == status


async def test_http2_answers_are_the_same(client: HttpClient) -> None:
    first = await client.ask("POST", PATH, PLAIN)
    second = await client.ask("POST", PATH, PLAIN, http_version="2")
    assert (first.status, first.headers, first.body) == (second.status, second.headers, second.body)
    client.server.failure = None
    assert (await client.ask("POST", PATH, "{", http_version="2")).status == 500


async def test_cancelling_the_application_cancels_the_request(client: HttpClient) -> None:
    """That is how a connection says that the client has gone, or has reset the request's stream."""
    client.server.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.ask, "POST", PATH, PLAIN)
        with trio.fail_after(5):
            while not client.server.replies:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert client.server.replies[0].cancelled


@pytest.mark.parametrize("http_version", ["1.1", "2"])
async def test_a_defect_costs_one_request_and_is_logged(
    client: HttpClient, caplog: pytest.LogCaptureFixture, http_version: str
) -> None:
    def broken(request: InferenceRequest) -> Any:
        raise ZeroDivisionError("broken model")

    description, _ = client.server.models["identity"]
    client.server.models["identity"] = (description, broken)
    with caplog.at_level(logging.ERROR):
        reply = await client.ask("POST", PATH, PLAIN, http_version=http_version)
    assert (reply.status, reply.media) == (500, "application/json")
    assert reply.error == "unexpected failure inside the server, see its log"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert PATH in record.getMessage()
    assert "ZeroDivisionError: broken model" in caplog.text


SPECIFIED = {200, 400, 404, 405, 413, 500, 501, 503}

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["IN", "OUT", "FP32", "BYTES", "INT8", "FP16", "FOO"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            "binary_data_size",
            "binary_data",
            "binary_data_output",
            "classification",
            "shared_memory_region",
            "shared_memory_offset",
            "sequence_id",
            "priority",
            "timeout",
            "triton_a",
            "a",
        ]
    ),
    st.integers(0, 16) | st.booleans() | JSON_VALUES,
    max_size=3,
)
SHAPES = st.lists(st.integers(0, 4), max_size=3)
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("IN") | JSON_VALUES,
        "shape": SHAPES | JSON_VALUES,
        "datatype": st.sampled_from(["FP32", "BYTES", "INT64", "BOOL", "FP16", "FOO"]) | JSON_VALUES,
        "data": st.lists(st.floats(width=32) | st.text(max_size=3), max_size=4) | JSON_VALUES,
        "parameters": PARAMETERS | JSON_VALUES,
    },
)
OUTPUTS = st.fixed_dictionaries({"name": st.just("OUT")}, optional={"parameters": PARAMETERS | JSON_VALUES})
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=5) | JSON_VALUES,
        "inputs": st.lists(INPUTS | JSON_VALUES, max_size=3) | JSON_VALUES,
        "outputs": st.lists(OUTPUTS | JSON_VALUES, max_size=3) | JSON_VALUES,
        "parameters": PARAMETERS | JSON_VALUES,
    },
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["Inference-Header-Content-Length", "Content-Encoding", "Accept-Encoding", "priority", "X-Forwarded", "é"]
    ),
    st.sampled_from(["0", "1", "-1", "7", "x", "gzip", "deflate", "identity", "gzip;q=", ";q=é"])
    | st.text(st.characters(max_codepoint=255), max_size=8),
)
METHODS = st.sampled_from(["GET", "POST", "HEAD", "PUT"])
PATHS = st.sampled_from(
    [
        PATH,
        "/v2/models/strings/infer",
        "/v2/models/batching/infer",
        "/v2/models/loading/infer",
        "/v2/repository/index",
        "/v2/repository/models/m/load",
        "/v2/repository/models/m/unload",
        "/v2/models/identity/versions/9/stats",
        "/v2/logging",
        "/nope",
    ]
)


def exchange(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Whatever is sent is answered with a status of docs/reference/errors.md#error-kinds, in its form, and never by a
    defect.

    The answer's own bytes may be no JSON: names and data go out as they came in (docs/reference/errors.md#error-kinds).
    """
    client = HttpClient(FakeServer(), header_forward_pattern="x-forw|é|prio", max_input_bytes=1000)

    async def ask() -> HttpReply:
        return await client.ask(method, path, body, headers)

    reply = trio.run(ask)
    assert reply.status in SPECIFIED
    assert b"unexpected failure" not in reply.body
    if reply.status != 200 and method != "HEAD":
        assert reply.body.startswith(b'{"error":"')
        assert reply.body.endswith(b'"}')


@settings(max_examples=150, deadline=None)
@given(METHODS, PATHS, st.binary(max_size=60), HEADERS)
def test_any_bytes_get_a_specified_answer(method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
    exchange(method, path, body, headers)


@settings(max_examples=100, deadline=None)
@given(PATHS, DOCUMENTS | JSON_VALUES, st.binary(max_size=16), st.booleans(), HEADERS)
def test_any_document_gets_a_specified_answer(
    path: str, document: Any, blobs: bytes, split: bool, headers: dict[str, str]
) -> None:
    text = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS) if _fits(document) else repr(document).encode()
    if split:
        headers = {**headers, "Inference-Header-Content-Length": str(len(text))}
    exchange("POST", path, text + blobs, headers)


def _fits(value: Any) -> bool:
    """Whether orjson writes it: no integer beyond 64 bits, no lone surrogate."""
    if isinstance(value, dict):
        return all(_fits(key) and _fits(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_fits, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return not isinstance(value, str) or value.isprintable() or value.isascii()
