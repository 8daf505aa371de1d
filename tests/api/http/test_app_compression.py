"""Compressed requests and answers (docs/reference/http-inference.md#compression)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest
from http_fakes import FakeServer, HttpClient, fp32_request

from trireme.api.http.compression import compress

PATH = "/v2/models/identity/infer"
PLAIN = orjson.dumps(fp32_request())


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
async def test_compressed_requests(client: HttpClient, encoding: str, pack: type) -> None:
    """Gzip labelled deflate works, and the other way round."""
    reply = await client.post(PATH, pack(PLAIN), {"Content-Encoding": encoding})
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [1.0, 2.0])


@pytest.mark.parametrize("encoding", ["identity", ""])
async def test_no_encoding_by_name(client: HttpClient, encoding: str) -> None:
    assert (await client.post(PATH, PLAIN, {"Content-Encoding": encoding})).status == 200


@pytest.mark.parametrize("encoding", ["GZIP", "br", "gzip, deflate", "x"])
async def test_unknown_encodings_are_told_what_is_known(client: HttpClient, encoding: str) -> None:
    reply = await client.post(PATH, PLAIN, {"Content-Encoding": encoding})
    assert (reply.status, reply.media, reply.error) == (501, "text/plain", "Unsupported compression type")
    assert reply.headers["accept-encoding"] == "gzip, deflate"


async def test_nothing_to_decompress(client: HttpClient) -> None:
    reply = await client.post(PATH, b"", {"Content-Encoding": "gzip"})
    assert (reply.status, reply.media, reply.error) == (400, "text/plain", "nothing to be decompressed")
    assert "accept-encoding" not in reply.headers


async def test_undecodable_data_is_an_empty_body_and_so_a_raw_request(client: HttpClient) -> None:
    await client.post(PATH, b"garbage", {"Content-Encoding": "gzip"})
    assert client.server.submitted[0].raw_input == b""


async def test_lengths_refer_to_the_uncompressed_body(client: HttpClient) -> None:
    tensor = {"name": "IN", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(text)), "Accept-Encoding": "gzip"}
    reply = await client.post(PATH, gzip.compress(text + bytes(8)), headers)
    assert (reply.status, reply.media) == (200, "application/octet-stream")
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.headers["content-length"] == str(len(reply.body))
    plain = gzip.decompress(reply.body)
    length = int(reply.headers["inference-header-content-length"])
    assert orjson.loads(plain[:length])["model_name"] == "identity"
    assert plain[length:] == bytes(8)

    headers["Inference-Header-Content-Length"] = "1000"
    reply = await client.post(PATH, gzip.compress(text + bytes(8)), headers)
    assert reply.error == f"inference header size should be in range (0, {len(text) + 8}), got: 1000"


async def test_decompressed_size_is_bounded() -> None:
    client = HttpClient(FakeServer(), max_input_bytes=1000)
    reply = await client.post(PATH, gzip.compress(bytes(1001)), {"Content-Encoding": "gzip"})
    assert (reply.status, reply.media) == (400, "text/plain")
    assert reply.error.startswith("Decompressed data size exceeds the maximum allowed value of 1000 bytes. ")


@pytest.mark.parametrize(
    ("accepted", "unpack"),
    [
        ("gzip", gzip.decompress),
        ("deflate", zlib.decompress),
        ("gzip;q=0.5, deflate", zlib.decompress),
        ("br, gzip", gzip.decompress),
    ],
)
async def test_answers_are_compressed_as_accepted(client: HttpClient, accepted: str, unpack: type) -> None:
    reply = await client.post(PATH, PLAIN, {"Accept-Encoding": accepted})
    assert reply.headers["content-encoding"] == ("gzip" if unpack is gzip.decompress else "deflate")
    assert orjson.loads(unpack(reply.body))["outputs"][0]["data"] == [1.0, 2.0]


@pytest.mark.parametrize("accepted", ["identity", "*", "gzip;q=0", "GZIP", ""])
async def test_answers_are_plain_otherwise(client: HttpClient, accepted: str) -> None:
    reply = await client.post(PATH, PLAIN, {"Accept-Encoding": accepted})
    assert "content-encoding" not in reply.headers
    assert reply.json["outputs"][0]["data"] == [1.0, 2.0]


async def test_only_infer_is_compressed_and_never_an_error(client: HttpClient) -> None:
    accepting = {"Accept-Encoding": "gzip"}
    assert "content-encoding" not in (await client.ask("GET", "/v2", headers=accepting)).headers
    assert "content-encoding" not in (await client.post(PATH, b"{", accepting)).headers


@pytest.mark.parametrize(("count", "threads"), [(2, 0), (40_000, 1)])
async def test_large_answers_are_packed_by_the_threads_of_the_server(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch, count: int, threads: int
) -> None:
    packed_by: list[partial[bytes]] = []
    offload = client.server.offload

    async def seen(function: Callable[..., Any], *args: Any) -> Any:
        if isinstance(function, partial) and function.func is compress:
            packed_by.append(function)
        return await offload(function, *args)

    monkeypatch.setattr(client.server, "offload", seen)
    tensor = {"name": "IN", "shape": [count], "datatype": "FP32", "parameters": {"binary_data_size": 4 * count}}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    headers = {"Inference-Header-Content-Length": str(len(text)), "Accept-Encoding": "gzip"}
    reply = await client.post(PATH, text + bytes(4 * count), headers)
    assert reply.headers["content-encoding"] == "gzip"
    assert gzip.decompress(reply.body).endswith(bytes(4 * count))
    assert len(packed_by) == threads
