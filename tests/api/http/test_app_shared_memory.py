"""Shared memory over HTTP: regions, and tensors in them (docs/reference/http-inference.md#outputs,
docs/reference/http-inference.md#response, docs/reference/shared-memory.md#tensors-in-regions,
docs/reference/shared-memory.md#regions)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from http_fakes import FakeServer, HttpClient, HttpReply, fp32_request
from segments import Segment, open_segments

from trireme.engine.tensor import pack_bytes

MakeSegment = Callable[[bytes], Segment]

SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
NOT_STRING = "attempt to access JSON non-string as string"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NUMBERS = np.arange(16, dtype=np.float32).tobytes()
HANDLE = {"b64": base64.b64encode(bytes(64)).decode()}


@pytest.fixture
def make_segment() -> Iterator[MakeSegment]:
    with open_segments() as make:
        yield make


@pytest.fixture
def client() -> HttpClient:
    """Of a server whose clients may register."""
    return HttpClient(FakeServer(), allow_client_shm=True)


async def register(client: HttpClient, name: str, segment: Segment, byte_size: int, offset: int = 0) -> None:
    body = orjson.dumps({"key": segment.key, "offset": offset, "byte_size": byte_size})
    reply = await client.post(f"{SYSTEM}/region/{name}/register", body)
    assert (reply.status, reply.media, reply.body) == (200, "application/json", b"")


async def infer(
    client: HttpClient, inputs: Any, outputs: Any = None, model: str = "identity", **more: Any
) -> HttpReply:
    document = {"inputs": inputs, **({} if outputs is None else {"outputs": outputs}), **more}
    return await client.infer(document, model=model)


def place(region: str, byte_size: int | None = None, offset: int | None = None) -> dict[str, Any]:
    named = {"region": region, "byte_size": byte_size, "offset": offset}
    return {f"shared_memory_{name}": value for name, value in named.items() if value is not None}


def tensor(parameters: dict[str, Any], shape: tuple[int, ...] = (4,), datatype: str = "FP32") -> dict[str, Any]:
    return {"name": "IN", "shape": shape, "datatype": datatype, "parameters": parameters}


def out(**parameters: Any) -> list[dict[str, Any]]:
    return [{"name": "OUT", "parameters": parameters}]


# Regions.


async def test_register_status_unregister(client: HttpClient, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(8192))
    await register(client, "b", segment, 100)
    await register(client, "a", segment, 64, 4096)
    entry = b'{"name":"%b","key":"%b","offset":%d,"byte_size":%d}'
    first, second = entry % (b"a", segment.key.encode(), 4096, 64), entry % (b"b", segment.key.encode(), 0, 100)
    reply = await client.get(f"{SYSTEM}/status")
    assert (reply.status, reply.media, reply.body) == (200, "application/json", b"[%b,%b]" % (first, second))
    assert (await client.get(f"{SYSTEM}/region/b/status")).body == b"[%b]" % second
    assert (await client.get(f"{CUDA}/status")).body == b"[]"
    for path in (f"{CUDA}/unregister", f"{CUDA}/region/a/unregister", f"{SYSTEM}/region/x/unregister"):
        assert (await client.post(path)).status == 200
    assert (await client.get(f"{SYSTEM}/status")).body == b"[%b,%b]" % (first, second)
    reply = await client.post(f"{SYSTEM}/region/a/unregister", b"no matter what")
    assert (reply.status, reply.media, reply.body) == (200, "application/json", b"")
    assert (await client.get(f"{SYSTEM}/status")).body == b"[%b]" % second
    assert (await client.post(f"{SYSTEM}/unregister")).status == 200
    assert (await client.get(f"{SYSTEM}/status")).body == b"[]"


async def test_status_of_a_region_that_is_not_there(client: HttpClient, make_segment: MakeSegment) -> None:
    await register(client, "r", make_segment(bytes(64)), 64)
    for path, text in (
        (f"{SYSTEM}/region/q/status", "Unable to find system shared memory region: 'q'"),
        (f"{CUDA}/region/q/status", "Unable to find cuda shared memory region: 'q'"),
        (
            f"{CUDA}/region/r/status",
            "The region named 'r' is registered as system shared memory, not CUDA shared memory",
        ),
    ):
        reply = await client.get(path)
        assert (reply.status, reply.media, reply.error) == (404, "application/json", text)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (b"[]", 400, "Shared memory register request has no 'key' field"),
        (b'{"byte_size":"x"}', 400, "Shared memory register request has no 'key' field"),
        (b'{"key":"/nope"}', 400, "Shared memory register request has no 'byte_size' field"),
        (b'{"key":1,"offset":"x"}', 500, NOT_STRING),
        (b'{"key":null,"byte_size":8}', 500, NOT_STRING),
        (b'{"key":"/nope","offset":"x"}', 500, NOT_UNSIGNED),
        (b'{"key":"/nope","offset":null,"byte_size":8}', 500, NOT_UNSIGNED),
        (b'{"key":"/nope","byte_size":-8}', 500, NOT_UNSIGNED),
        (b'{"key":"/nope","byte_size":8.0}', 500, NOT_UNSIGNED),
        (b'{"key":"/nope","byte_size":36893488147419103232}', 500, NOT_UNSIGNED),
        (b'{"key":"/nope","byte_size":8}', 500, "Unable to open shared memory region: '/nope'"),
        (b'{"key":"//","byte_size":8}', 400, "cannot register shared memory region 'r' - invalid shm key '//'"),
    ],
)
async def test_bodies_that_register_nothing(client: HttpClient, body: bytes, status: int, text: str) -> None:
    reply = await client.post(f"{SYSTEM}/region/r/register", body)
    assert (reply.status, reply.media, reply.error) == (status, "application/json", text)


async def test_registering_twice(client: HttpClient, make_segment: MakeSegment) -> None:
    await register(client, "r", make_segment(bytes(64)), 64)
    reply = await client.post(f"{SYSTEM}/region/r/register", b'{"key":"/nope","byte_size":8}')
    assert (reply.status, reply.error) == (400, "shared memory region 'r' already in manager")
    reply = await client.post(
        f"{CUDA}/region/r/register", orjson.dumps({"raw_handle": HANDLE, "device_id": 0, "byte_size": 64})
    )
    assert (reply.status, reply.error) == (400, "shared memory region 'r' already in manager")


@pytest.mark.parametrize("kind", ["system", "cuda"])
async def test_registering_needs_a_name(client: HttpClient, kind: str) -> None:
    reply = await client.post(f"/v2/{kind}sharedmemory/register", b"{")
    assert (reply.status, reply.error) == (
        400,
        f"'region name' is necessary to register {kind} shared memory region",
    )


BAD_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"


@pytest.mark.parametrize(
    ("members", "status", "text"),
    [
        ({}, 400, "failed to register CUDA shared memory region: 'c', GPUs not supported"),
        ({"raw_handle": None}, 400, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": {}}, 500, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": HANDLE["b64"]}, 500, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": 1}}, 500, NOT_STRING),
        ({"byte_size": None}, 500, "attempt to access non-existing object member 'byte_size'"),
        ({"device_id": None}, 500, "attempt to access non-existing object member 'device_id'"),
        ({"device_id": "0"}, 500, NOT_UNSIGNED),
        ({"raw_handle": {"b64": "AAAA"}}, 400, BAD_HANDLE),
        ({"raw_handle": {"b64": "%%%"}}, 400, BAD_HANDLE),
        ({"raw_handle": {"b64": "AAAAA"}}, 400, BAD_HANDLE),
    ],
)
async def test_cuda_memory_is_refused(client: HttpClient, members: dict[str, Any], status: int, text: str) -> None:
    """As by a server without GPUs; `members` are those that differ from a good request, None if absent."""
    document = {"raw_handle": HANDLE, "device_id": 0, "byte_size": 64} | members
    body = orjson.dumps({name: value for name, value in document.items() if value is not None})
    reply = await client.post(f"{CUDA}/region/c/register", body)
    assert (reply.status, reply.media, reply.error) == (status, "application/json", text)


# Inputs.


async def test_an_input_in_a_region(client: HttpClient, make_segment: MakeSegment) -> None:
    """The offset counts from where the region begins."""
    segment = make_segment(bytes(4096) + NUMBERS)
    await register(client, "in", segment, 64, 4096)
    reply = await infer(client, [tensor(place("in", 16))])
    assert reply.json["outputs"][0]["data"] == [0, 1, 2, 3]
    reply = await infer(client, [tensor(place("in", 16, 32))])
    assert reply.json["outputs"][0]["data"] == [8, 9, 10, 11]


async def test_strings_in_a_region(client: HttpClient, make_segment: MakeSegment) -> None:
    await register(client, "in", make_segment(pack_bytes([b"ab", b"c"])), 11)
    reply = await infer(client, [tensor(place("in", 11), (2,), "BYTES")], model="strings")
    assert reply.json["outputs"][0]["data"] == ["ab", "c"]


OVERFLOW = (
    "Integer overflow detected: byte_size (18446744073709551615) + offset (16) exceeds maximum value "
    "(18446744073709551615) for region 'in'"
)


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        (place("zz", 16), 404, "Unable to find shared memory region: 'zz'"),
        (place("in"), 400, "Invalid offset + byte size for shared memory region: 'in'"),
        (place("in", 16, 49), 400, "Invalid offset + byte size for shared memory region: 'in'"),
        (place("in", 65), 400, "Invalid offset + byte size for shared memory region: 'in'"),
        (place("in", 16, 64), 400, "Invalid offset for shared memory region: 'in'"),
        (place("in", 0, 64), 400, "Invalid offset for shared memory region: 'in'"),
        (place("in", 2, 2**64 - 1), 400, "Invalid offset for shared memory region: 'in'"),
        (place("in", 2**64 - 1, 16), 400, OVERFLOW),
        (place("in", -1), 500, f"Unable to parse 'shared_memory_byte_size': {NOT_UNSIGNED}"),
    ],
)
async def test_parts_that_a_region_has_not(
    client: HttpClient, make_segment: MakeSegment, parameters: dict[str, Any], status: int, text: str
) -> None:
    """The segment has them all the same. For outputs it is the same."""
    await register(client, "in", make_segment(bytes(8192)), 64)
    for reply in (
        await infer(client, [tensor(parameters)]),
        await infer(client, fp32_request()["inputs"], out(**parameters)),
    ):
        assert (reply.status, reply.media, reply.error) == (status, "application/json", text)
    assert client.server.submitted == []


async def test_a_segment_that_was_cut_short(client: HttpClient, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(64))
    await register(client, "r", segment, 64)
    segment.cut(8)
    text = (
        f"shared memory region 'r' has lost its memory: '{segment.key}' was cut to 8 bytes, but byte 15 of it is needed"
    )
    reply = await infer(client, [tensor(place("r", 16))])
    assert (reply.status, reply.media, reply.error) == (400, "application/json", text)
    reply = await infer(client, [tensor({}) | {"data": [1, 2, 3, 4]}], out(**place("r", 16)))
    assert (reply.status, reply.media, reply.error) == (400, "text/plain", text)
    assert segment.data == bytes(8)


# Outputs.


async def test_an_output_in_a_region(client: HttpClient, make_segment: MakeSegment) -> None:
    """It is named in the answer, without data; around it nothing is written."""
    segment = make_segment(b"." * 8192)
    await register(client, "out", segment, 64, 4096)
    inputs = [tensor({}) | {"data": [0, 1, 2, 3]}]
    reply = await infer(client, inputs, out(**place("out", 24, 8)), id="a", parameters={"binary_data_output": True})
    assert (reply.status, reply.media) == (200, "application/json")
    assert reply.body == (
        b'{"id":"a","model_name":"identity","model_version":"3",'
        b'"outputs":[{"name":"OUT","datatype":"FP32","shape":[4]}]}'
    )
    assert segment.data == b"." * 4104 + NUMBERS[:16] + b"." * 4072
    reply = await infer(client, inputs, out(**place("out", 16), binary_data=False))
    assert reply.status == 200
    assert segment.data[4096:4112] == NUMBERS[:16]


async def test_one_output_in_a_region_and_one_behind_the_text(client: HttpClient, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(64))
    await register(client, "out", segment, 64)
    inputs = [{"name": f"INPUT{index}", "shape": [2], "datatype": "INT32", "data": [5, 6]} for index in range(2)]
    outputs = [
        {"name": "OUTPUT1", "parameters": place("out", 8)},
        {"name": "OUTPUT0", "parameters": {"binary_data": True}},
    ]
    reply = await infer(client, inputs, outputs, model="add_sub")
    assert [list(entry) for entry in reply.head["outputs"]] == [
        ["name", "datatype", "shape", "parameters"],
        ["name", "datatype", "shape"],
    ]
    assert reply.blobs == np.array([10, 12], np.int32).tobytes()
    assert segment.data[:8] == bytes(8)


async def test_strings_as_an_output(client: HttpClient, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(64))
    await register(client, "out", segment, 64)
    inputs = [tensor({}, (2,), "BYTES") | {"data": ["ab", "c"]}]
    assert (await infer(client, inputs, out(**place("out", 11)), model="strings")).status == 200
    assert segment.data[:11] == pack_bytes([b"ab", b"c"])


async def test_an_output_that_does_not_fit(client: HttpClient, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(64))
    await register(client, "out", segment, 64)
    reply = await infer(client, fp32_request()["inputs"], out(**place("out", 7)))
    assert (reply.status, reply.media, reply.error) == (
        500,
        "text/plain",
        (
            "shared memory size specified with the request for output 'OUT' (7 bytes) should be at least 8 bytes to "
            "hold the results"
        ),
    )
    assert segment.data == bytes(64)


async def test_of_an_output_listed_twice_the_first_counts(client: HttpClient, make_segment: MakeSegment) -> None:
    segment = make_segment(bytes(64))
    await register(client, "out", segment, 64)
    inputs = [tensor({}) | {"data": [1, 1, 1, 1]}]
    reply = await infer(client, inputs, out(**place("out", 16)) + out() + out(**place("out", 16, 32)))
    assert list(reply.json["outputs"][0]) == ["name", "datatype", "shape"]
    assert segment.data[:16] == np.ones(4, np.float32).tobytes()
    assert segment.data[16:] == bytes(48)
    reply = await infer(client, inputs, out() + out(**place("out", 16, 32)))
    assert reply.json["outputs"][0]["data"] == [1, 1, 1, 1]
    assert segment.data[16:] == bytes(48)


@pytest.mark.parametrize("where", ["input", "output"])
async def test_a_request_that_comes_again_looks_again(
    client: HttpClient, make_segment: MakeSegment, where: str
) -> None:
    """Nothing of a region is remembered with the head of a request, not even where there is nothing to be read."""
    first, second = make_segment(NUMBERS), make_segment(NUMBERS)
    behind = {"name": "IN", "shape": [4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    empty = tensor(place("r", 0, 8), (0,))
    document = (
        {"inputs": [behind, empty]} if where == "input" else {"inputs": [behind], "outputs": out(**place("r", 16))}
    )
    await register(client, "r", first, 64)
    assert (await client.infer(document, bytes(16))).status == 200
    assert (await client.post(f"{SYSTEM}/region/r/unregister")).status == 200
    reply = await client.infer(document, bytes(16))
    assert (reply.status, reply.error) == (404, "Unable to find shared memory region: 'r'")
    await register(client, "r", second, 64)
    first.put(NUMBERS)
    assert (await client.infer(document, bytes(16))).status == 200
    assert first.data == NUMBERS
    assert second.data[:16] == (NUMBERS[:16] if where == "input" else bytes(16))
