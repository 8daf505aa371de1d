"""Repository control, and the routes that this version only refuses (docs/reference/http.md,
docs/reference/shared-memory.md)."""

from __future__ import annotations

import base64
import binascii

import pytest
from http_fakes import FakeServer, HttpClient

from trireme.engine.description import IndexEntry, ModelState
from trireme.engine.errors import InternalError, UnavailableError

LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"


async def test_index_leaves_out_what_is_empty(client: HttpClient) -> None:
    client.server.index = [
        IndexEntry("a", "1", ModelState.READY),
        IndexEntry("b", "2", ModelState.UNAVAILABLE, "unloaded"),
        IndexEntry("c"),
        IndexEntry("d", "", ModelState.UNAVAILABLE, "model appears in two or more repositories"),
    ]
    reply = await client.post("/v2/repository/index")
    assert (reply.status, reply.media) == (200, "application/json")
    assert reply.body == (
        b'[{"name":"a","version":"1","state":"READY"},'
        b'{"name":"b","version":"2","state":"UNAVAILABLE","reason":"unloaded"},{"name":"c"},'
        b'{"name":"d","state":"UNAVAILABLE","reason":"model appears in two or more repositories"}]'
    )


@pytest.mark.parametrize(
    ("body", "ready_only"),
    [("", False), ("{}", False), ('{"ready":false}', False), ('{"ready":true}', True), ("[]", False), ('"a"', False)],
)
async def test_index_body_is_optional(client: HttpClient, body: str, ready_only: bool) -> None:
    for path in ("/v2/repository/index", "/v2/repository/ignored/index"):
        reply = await client.post(path, body)
        assert (reply.status, reply.body) == (200, b"[]")
    assert client.server.index_calls == [ready_only, ready_only]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ('{"ready":1}', 400, "Invalid value for 'ready': expected a boolean"),
        ('{"ready":null}', 400, "Invalid value for 'ready': expected a boolean"),
        ("{bad", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ("  ", 500, "failed to parse the request JSON buffer: The document is empty. at 2"),
    ],
)
async def test_index_with_a_bad_body(client: HttpClient, body: str, status: int, text: str) -> None:
    reply = await client.post("/v2/repository/index", body)
    assert (reply.status, reply.media, reply.error) == (status, "application/json", text)


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"parameters":{}}'])
async def test_load_without_parameters(client: HttpClient, body: str) -> None:
    reply = await client.post(LOAD, body)
    assert (reply.status, reply.media, reply.body) == (200, "application/json", b"")
    assert client.server.loads == [("m", {})]


async def test_load_hands_over_config_and_files(client: HttpClient) -> None:
    content = bytes(range(256))
    text = base64.b64encode(content).decode()
    reply = await client.post(LOAD, f'{{"parameters":{{"config":"{{}}","file:1/model.onnx":"{text}"}}}}')
    assert reply.status == 200
    assert client.server.loads == [("m", {"config": "{}", "file:1/model.onnx": content})]


@pytest.mark.parametrize("line", [None, 64, 76], ids=["one line", "lines of 64", "lines of 76"])
@pytest.mark.parametrize("size", [0, 1, 196_607, 196_608, 196_609, 600_001])
async def test_a_large_file_is_decoded_in_pieces(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch, size: int, line: int | None
) -> None:
    """To the same bytes as at once, and a text without line breaks never by a call for more than a piece."""
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    text = base64.b64encode(content).decode()
    if line is not None:
        text = "\\n".join(text[at : at + line] for at in range(0, len(text), line))
    longest = 0
    whole = binascii.a2b_base64

    def decode(piece: str) -> bytes:
        nonlocal longest
        longest = max(longest, len(piece))
        return whole(piece)

    monkeypatch.setattr(binascii, "a2b_base64", decode)
    reply = await client.post(LOAD, f'{{"parameters":{{"config":"{{}}","file:1/model.onnx":"{text}"}}}}')
    assert reply.status == 200
    assert client.server.loads == [("m", {"config": "{}", "file:1/model.onnx": content})]
    assert line is not None or longest <= 1 << 18


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"parameters":[]}', "attempt to get members for non-object"),
        ('{"parameters":null}', "attempt to get members for non-object"),
        ('{"parameters":{"config":1}}', "attempt to access JSON non-string as string"),
        ('{"parameters":{"other":1}}', "attempt to access JSON non-string as string"),
        ('{"parameters":{"other":"a"}}', "unexpected error on creating Triton parameter"),
        ("{bad", "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    ],
)
async def test_load_with_a_bad_body_is_an_internal_error(client: HttpClient, body: str, text: str) -> None:
    reply = await client.post(LOAD, body)
    assert (reply.status, reply.media, reply.error) == (500, "application/json", text)
    assert client.server.loads == []


async def test_load_of_a_file_that_is_not_base64_names_the_file(client: HttpClient) -> None:
    reply = await client.post(LOAD, '{"parameters":{"config":"{}","file:1/m":"abc"}}')
    assert reply.status == 400
    assert reply.error.startswith("failed to decode parameter 'file:1/m' as base64: ")


@pytest.mark.parametrize(
    ("body", "dependents"),
    [
        ("", False),
        ("{bad", False),
        ("[]", False),
        ('{"parameters":[]}', False),
        ('{"parameters":{"unload_dependents":"x"}}', False),
        ('{"parameters":{"unload_dependents":1}}', False),
        ('{"parameters":{"unload_dependents":false}}', False),
        ('{"parameters":{"unload_dependents":true}}', True),
    ],
)
async def test_unload_ignores_what_it_cannot_read(client: HttpClient, body: str, dependents: bool) -> None:
    reply = await client.post(UNLOAD, body)
    assert (reply.status, reply.media, reply.body) == (200, "application/json", b"")
    assert client.server.unloads == [("m", dependents)]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnavailableError("explicit model load / unload is not allowed if polling is enabled"), 503),
        (InternalError("failed to load 'm', failed to poll from model repository"), 500),
    ],
)
async def test_errors_of_the_facade_are_answers(
    client: HttpClient, path: str, error: UnavailableError | InternalError, status: int
) -> None:
    client.server.control_error = error
    reply = await client.post(path)
    assert (reply.status, reply.media, reply.error) == (status, "application/json", error.message)


@pytest.mark.parametrize("action", ["load", "unload"])
async def test_repository_name_is_not_supported(client: HttpClient, action: str) -> None:
    reply = await client.post(f"/v2/repository/r/models/m/{action}", "{bad")
    assert (reply.status, reply.media) == (501, "application/json")
    assert reply.error == "'repository_name' specification is not supported"
    assert client.server.loads == client.server.unloads == []


@pytest.mark.parametrize("path", ["/v2/repository/index", LOAD, UNLOAD])
async def test_bodies_are_bounded(path: str) -> None:
    client = HttpClient(FakeServer(), max_management_bytes=10)
    assert (await client.post(path, " " * 8 + "{}")).status == 200
    reply = await client.post(path, " " * 9 + "{}")
    assert (reply.status, reply.media) == (413, "application/json")
    assert reply.error == (
        "request size of 11 bytes exceeds the maximum allowed input size of 10 bytes. "
        "Use --http-max-management-size to increase the limit."
    )
    assert not client.server.loads[1:]


async def test_a_load_request_with_files_may_be_as_large_as_an_input() -> None:
    client = HttpClient(FakeServer(), max_management_bytes=50, max_input_bytes=200)
    files = '{"parameters":{"config":"{}","file:1/model.onnx":"%s"}}'
    assert (await client.post(LOAD, files % ("A" * 100))).status == 200
    reply = await client.post(LOAD, files % ("A" * 200))
    assert (reply.status, reply.error[-48:]) == (413, "Use --http-max-input-size to increase the limit.")
    reply = await client.post(LOAD, '{"parameters":{"config":"%s"}}' % ("x" * 100))
    assert (reply.status, reply.error[-53:]) == (413, "Use --http-max-management-size to increase the limit.")
    assert len(client.server.loads) == 1


@pytest.mark.parametrize("kind", ["system", "cuda"])
async def test_there_are_no_shared_memory_regions(client: HttpClient, kind: str) -> None:
    reply = await client.get(f"/v2/{kind}sharedmemory/status")
    assert (reply.status, reply.media, reply.body) == (200, "application/json", b"[]")
    reply = await client.get(f"/v2/{kind}sharedmemory/region/R/status")
    assert (reply.status, reply.media) == (404, "application/json")
    assert reply.error == f"Unable to find {kind} shared memory region: 'R'"


@pytest.mark.parametrize("action", ["register", "unregister", "region/R/register", "region/R/unregister"])
async def test_shared_memory_is_disabled(client: HttpClient, action: str) -> None:
    for kind in ("system", "cuda"):
        reply = await client.post(f"/v2/{kind}sharedmemory/{action}")
        assert (reply.status, reply.media) == (501, "application/json")
        assert reply.error == (
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        )
