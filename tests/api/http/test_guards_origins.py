"""A web page cannot change the server through the browser that shows it."""

from __future__ import annotations

import pytest
from http_fakes import FakeServer, HttpClient, fp32_request

EVIL = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
CHANGES = [
    "/v2/repository/models/m/load",
    "/v2/repository/models/m/unload",
    "/v2/repository/index",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/identity/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/register",
    "/v2/systemsharedmemory/unregister",
]
REFUSAL = (
    "a call that can change the server came from the origin 'http://evil.example', expected none or one that "
    "--http-allowed-origins names"
)


@pytest.mark.parametrize("path", CHANGES)
async def test_calls_that_change_the_server_are_refused_to_pages(path: str) -> None:
    """Before the body is looked at, whatever its Content-Type."""
    client = HttpClient(FakeServer(), allow_client_shm=True)
    reply = await client.post(path, b"{", EVIL)
    assert (reply.status, reply.media, reply.error) == (403, "application/json", REFUSAL)
    assert not client.server.loads
    assert not client.server.unloads
    assert (await client.post(path, b"{}")).status != 403, "programs send no Origin"


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Origin": "https://ops.example"}, True),
        ({"Origin": "HTTPS://Ops.Example"}, True),
        ({"Origin": "https://ops.example", "Sec-Fetch-Site": "cross-site"}, True),
        ({"Origin": "https://ops.example:8443"}, False),
        ({"Origin": "http://ops.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": "http://localhost:8000", "Host": "localhost:8000", "Sec-Fetch-Site": "same-origin"}, False),
        ({"Origin": "https://ops.example", "origin": "http://evil.example"}, False),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
    ],
)
async def test_origins_must_be_named_to_pass(headers: dict[str, str], passes: bool) -> None:
    """That of the request's own host is no exception: the owner of a name can point it here."""
    client = HttpClient(FakeServer(), allowed_origins=("https://ops.example",))
    reply = await client.post("/v2/repository/models/m/load", b"{}", headers)
    assert reply.status == (200 if passes else 403)
    assert len(client.server.loads) == passes


async def test_a_star_allows_every_origin() -> None:
    client = HttpClient(FakeServer(), allowed_origins=("*",))
    assert (await client.post("/v2/repository/models/m/load", b"{}", EVIL)).status == 200


async def test_inference_and_questions_are_not_concerned() -> None:
    """They change nothing, and a page cannot read the answer."""
    client = HttpClient(FakeServer())
    assert (await client.infer(fp32_request(), headers=EVIL)).status == 200
    for path in ("/v2", "/v2/health/ready", "/v2/trace/setting", "/v2/models/identity"):
        assert (await client.ask("GET", path, headers=EVIL)).status == 200


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("triton.example", True),
        ("TRITON.example:8000", True),
        ("10.0.0.7:8000", True),
        ("10.0.0.7:8001", False),
        ("10.0.0.7", False),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("", False),
        (None, False),
    ],
)
async def test_hosts_must_be_named_if_any_is(host: str | None, passes: bool) -> None:
    """A foreign name that points at this server's address is none of its names."""
    client = HttpClient(FakeServer(), allowed_hosts=("triton.example", "10.0.0.7:8000", "[::1]"))
    headers = {} if host is None else {"Host": host}
    for method, path in (("GET", "/v2"), ("POST", "/v2/models/identity/infer")):
        reply = await client.ask(method, path, b"", headers)
        assert (reply.status != 403) is passes
        if not passes:
            shown = "no host" if host is None else f"the host '{host}'"
            assert reply.error == f"the request is for {shown}, expected one of those that --http-allowed-hosts names"


async def test_any_host_will_do_by_default() -> None:
    client = HttpClient(FakeServer())
    assert (await client.ask("GET", "/v2", headers={"Host": "evil.example"})).status == 200
    assert client.app.immediate is not None, "and the short way stays open"
