"""A large body is unpacked and read off the event loop, and what it expands to counts in the budget."""

from __future__ import annotations

import gzip
import threading
from typing import Any

import numpy as np
import orjson
import pytest
import trio
from http_fakes import FakeServer, HttpClient

from trireme.actors.budget import InflightBudget
from trireme.api.http.compression import Expansion
from trireme.api.http.json import strict as json_strict
from trireme.api.http.json.reader import ON_LOOP_BYTES, LargeText
from trireme.api.request_parameters import MAX_PARTS
from trireme.engine.tensor import Tensor

NUMBERS = 60_000


def numbers(count: int = NUMBERS) -> dict[str, Any]:
    return {"inputs": [{"name": "IN", "shape": [count], "datatype": "FP32", "data": [0.5] * count}]}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[bool]]:
    """By step: whether it ran on the event loop's thread."""
    loop = threading.get_ident()
    seen: dict[str, set[bool]] = {"unpack": set(), "scan": set(), "read": set(), "strict": set()}

    def watch(owner: object, name: str, step: str) -> None:
        genuine = getattr(owner, name)

        def watched(*args: Any, **named: Any) -> Any:
            seen[step].add(threading.get_ident() == loop)
            return genuine(*args, **named)

        monkeypatch.setattr(owner, name, watched)

    watch(Expansion, "step", "unpack")
    watch(LargeText, "__init__", "scan")
    watch(LargeText, "read", "read")
    watch(json_strict._Text, "read", "strict")
    return seen


async def test_large_json_is_read_elsewhere(threads: dict[str, set[bool]]) -> None:
    client = HttpClient(FakeServer())
    reply = await client.infer(numbers())
    assert reply.status == 200
    assert reply.json["outputs"][0]["data"] == [0.5] * NUMBERS
    assert threads == {"unpack": set(), "scan": {False}, "read": {False}, "strict": set()}


async def test_small_json_is_read_on_the_spot(threads: dict[str, set[bool]]) -> None:
    client = HttpClient(FakeServer())
    document = numbers(100)
    document["id"] = "x" * (ON_LOOP_BYTES - len(orjson.dumps(document)) - 9)
    assert (await client.infer(document)).status == 200
    assert threads == {"unpack": set(), "scan": set(), "read": set(), "strict": set()}


async def test_large_bodies_are_unpacked_elsewhere(threads: dict[str, set[bool]]) -> None:
    client = HttpClient(FakeServer())
    tensor = {"name": "IN", "shape": [1 << 20], "datatype": "FP32", "parameters": {"binary_data_size": 4 << 20}}
    head = orjson.dumps({"inputs": [tensor]})
    blob = np.arange(1 << 20, dtype=np.float32).tobytes()
    sent = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    reply = await client.post("/v2/models/identity/infer", gzip.compress(head + blob, 1), sent)
    assert reply.status == 200
    assert client.server.submitted[0].inputs[0].buffer == blob
    assert threads["unpack"] == {False}


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":"' + b"\xff" * 60_000 + b'"}',
        b'{"inputs":[' + b",".join([b"NaN"] * 20_000) + b"]}",
        b"{" + b",".join([b'"a":0'] * 20_000) + b"}",
        b"[" * 60_000,
    ],
    ids=["no UTF-8", "NaN", "duplicates", "nesting"],
)
@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
async def test_odd_json_is_read_elsewhere(threads: dict[str, set[bool]], path: str, body: bytes) -> None:
    client = HttpClient(FakeServer())
    reply = await client.post(f"/v2/models/identity/{path}", body)
    assert reply.status in (400, 500)
    assert threads["strict"] == {False}


@pytest.mark.parametrize(
    "path", ["/v2/trace/setting", "/v2/repository/models/m/load", "/v2/systemsharedmemory/region/r/register"]
)
async def test_management_calls_read_elsewhere_too(threads: dict[str, set[bool]], path: str) -> None:
    client = HttpClient(FakeServer(), allow_client_shm=True)
    await client.post(path, b"{" + b",".join([b'"a":NaN'] * 20_000) + b"}")
    assert threads["strict"] == {False}


@pytest.mark.parametrize("compressed", [False, True])
async def test_what_a_body_becomes_counts_in_the_budget(compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is made; and when the request is over, or refused, all has been given back."""
    server = FakeServer()
    server.budget = InflightBudget(10, 4 << 30)
    held: list[int] = []
    genuine = LargeText.read

    def read(self: LargeText, *args: Any) -> Any:
        held.append(server.budget.statistics().bytes)
        return genuine(self, *args)

    monkeypatch.setattr(LargeText, "read", read)
    client = HttpClient(server)
    for document in (numbers(), numbers() | {"id": 1}):
        body = orjson.dumps(document)
        headers = {"Content-Encoding": "gzip"} if compressed else {}
        await client.post("/v2/models/identity/infer", gzip.compress(body) if compressed else body, headers)
        assert server.budget.statistics().bytes == 0
    assert len(held) == 2
    assert min(held) > 8 * NUMBERS + compressed * len(orjson.dumps(numbers()))


@pytest.mark.parametrize("path", ["infer", "generate"])
async def test_values_are_limited(path: str) -> None:
    client = HttpClient(FakeServer(), max_json_values=1_000)
    reply = await client.post(f"/v2/models/identity/{path}", b'{"a":[' + b",".join([b"{}"] * 20_000) + b"]}")
    assert reply.status == 400
    assert "--http-max-json-values" in reply.error


async def test_generate_takes_large_arrays() -> None:
    server = FakeServer()
    client = HttpClient(server, max_json_values=1_000)
    reply = await client.post("/v2/models/identity/generate", orjson.dumps({"IN": [0.5] * NUMBERS, "p": "x"}))
    assert "--http-max-json-values" not in str(reply.body)
    (request,) = server.submitted
    assert isinstance(request.inputs[0], Tensor)
    assert request.inputs[0].array.tolist() == [0.5] * NUMBERS
    assert request.parameters == {"p": "x"}


def named(count: int) -> dict[str, int]:
    return {f"p{number}": number for number in range(count)}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/identity/infer", {**numbers(1), "parameters": named(MAX_PARTS)}),
        ("/v2/models/identity/infer", {**numbers(1), "outputs": [{"name": "OUT"}] * MAX_PARTS}),
        ("/v2/models/identity/infer", {"inputs": numbers(1)["inputs"] * (MAX_PARTS + 1)}),
        ("/v2/models/identity/generate", {"IN": [1.0], **named(MAX_PARTS)}),
        ("/v2/models/identity/generate", {"IN": [1.0], "parameters": named(MAX_PARTS)}),
    ],
)
async def test_what_a_request_consists_of_is_bounded(path: str, body: dict[str, Any]) -> None:
    """As over gRPC: a few bytes of each part become objects of some hundred, and what a model gets."""
    reply = await HttpClient(FakeServer()).post(path, orjson.dumps(body))
    assert (reply.status, f"more than {MAX_PARTS} inputs, outputs and parameters" in reply.error) == (400, True)


async def test_a_load_request_has_a_bounded_number_of_files() -> None:
    files = {f"file:1/{number}": "AAAA" for number in range(4 * MAX_PARTS)}
    reply = await HttpClient(FakeServer()).post("/v2/repository/models/m/load", orjson.dumps({"parameters": files}))
    assert (reply.status, "expected at most 32768" in reply.error) == (400, True)


async def test_documents_of_several_clients_take_turns() -> None:
    client = HttpClient(FakeServer())
    piecework = client.server.offload.piecework
    statuses: list[int] = []

    async def ask(document: dict[str, Any]) -> None:
        statuses.append((await client.infer(document)).status)

    piecework.take()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(6):  # more than there are threads for other work
                nursery.start_soon(ask, numbers())
            while piecework.waiting < 6:
                await trio.lowlevel.checkpoint()
            assert client.server.submitted == []
            await ask(numbers(100))
            assert statuses == [200]  # it waits for no one
            piecework.give()
    assert statuses == [200] * 7


async def test_the_document_of_a_client_that_has_left_is_not_read(threads: dict[str, set[bool]]) -> None:
    client = HttpClient(FakeServer())
    server = client.server
    piecework = server.offload.piecework
    piecework.take()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.infer, numbers())
            while not piecework.waiting:
                await trio.lowlevel.checkpoint()
            assert server.budget.statistics().leases == 1
            nursery.cancel_scope.cancel()
            piecework.give()
    assert threads["read"] == set()
    assert server.budget.statistics().leases == 0
