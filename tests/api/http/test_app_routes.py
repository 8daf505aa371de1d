"""Which path and method reach which handler (docs/reference/http.md#transport, docs/reference/http.md#routes)."""

from __future__ import annotations

import logging
import re

import pytest
from http_fakes import HttpClient
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.http.routes import ROUTES, Router
from trireme.engine.errors import shown

ROUTE_PATHS = [
    ("GET", "/v2/health/live", "text/plain"),
    ("GET", "/v2/health/ready", "text/plain"),
    ("GET", "/v2/models/identity/ready", "text/plain"),
    ("GET", "/v2/models/identity/versions/1/ready", "text/plain"),
    ("GET", "/v2", "application/json"),
    ("GET", "/v2/models/identity", "application/json"),
    ("GET", "/v2/models/identity/versions/1", "application/json"),
    ("GET", "/v2/models/identity/config", "application/json"),
    ("GET", "/v2/models/identity/versions/1/config", "application/json"),
    ("GET", "/v2/models/stats", "application/json"),
    ("GET", "/v2/models/identity/stats", "application/json"),
    ("GET", "/v2/models/identity/versions/1/stats", "application/json"),
    ("POST", "/v2/models/identity/infer", "text/plain"),
    ("POST", "/v2/models/identity/versions/1/infer", "text/plain"),
    ("POST", "/v2/models/identity/generate", "application/json"),
    ("POST", "/v2/models/identity/versions/1/generate", "application/json"),
    ("POST", "/v2/models/identity/generate_stream", "application/json"),
    ("POST", "/v2/models/identity/versions/1/generate_stream", "application/json"),
    ("POST", "/v2/repository/index", "application/json"),
    ("POST", "/v2/repository/any/index", "application/json"),
    ("POST", "/v2/repository/models/identity/load", "application/json"),
    ("POST", "/v2/repository/models/identity/unload", "application/json"),
    ("POST", "/v2/repository/any/models/identity/load", "application/json"),
    ("GET", "/v2/systemsharedmemory/status", "application/json"),
    ("GET", "/v2/cudasharedmemory/region/R/status", "application/json"),
    ("POST", "/v2/systemsharedmemory/register", "application/json"),
    ("POST", "/v2/cudasharedmemory/region/R/register", "application/json"),
    ("POST", "/v2/systemsharedmemory/region/R/unregister", "application/json"),
    ("GET", "/v2/trace/setting", "application/json"),
    ("GET", "/v2/models/identity/trace/setting", "application/json"),
    ("GET", "/v2/logging", "application/json"),
]

NO_ROUTES = [
    "/",
    "/v2/",
    "//v2",
    "/V2",
    "/v3",
    "/v2/health",
    "/v2/health/live/",
    "/v2/Health/live",
    "/v2/models",
    "/v2/models/",
    "/v2/models//ready",
    "/v2/models/a/b",
    "/v2/models/a/versions",
    "/v2/models/a/versions/x",
    "/v2/models/a/versions/1x/stats",
    "/v2/models/a/versions/-1",
    "/v2/models/a/versions/+1/infer",
    "/v2/models/a/versions/1.0",
    "/v2/models/a/infer/",
    "/v2/models/a/versions/1/trace/setting",
    "/v2/repository//index",
    "/v2/repository/a/b/index",
    "/v2/repository/models/load",
    "/v2/systemsharedmemory",
    "/v2/systemsharedmemory/region/status",
    "/v2/systemsharedmemory/region/a/b/status",
    "/v2/othersharedmemory/status",
    "v2",
    "*",
    "",
]


@pytest.mark.parametrize(("method", "path", "media"), ROUTE_PATHS)
async def test_every_route_answers_its_method_and_no_other(
    client: HttpClient, method: str, path: str, media: str
) -> None:
    """The wrong method is refused with the reason phrase `Not Allowed`; the right one is not."""
    assert client.app._router.match(path.encode()) is not None
    for other in ("DELETE", "HEAD", "OPTIONS", "FOO", "POST" if method == "GET" else "GET"):
        if (other, path.rsplit("/", 1)[-1]) in (("POST", "setting"), ("POST", "logging")):
            continue
        reply = await client.ask(other, path)
        assert reply.status == 405
        assert reply.media == media
        assert reply.headers["content-length"] == "30"
        assert reply.body == (b"" if other == "HEAD" else b'{"error":"Method Not Allowed"}')


@pytest.mark.parametrize("path", NO_ROUTES)
async def test_unknown_path_is_not_found(client: HttpClient, path: str) -> None:
    reply = await client.get(path)
    assert (reply.status, reply.media, reply.error) == (404, "text/plain", "Not Found")


async def test_requests_are_shown_where_the_log_is_verbose(
    client: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Each once, and those that are not served, too."""
    with caplog.at_level(logging.INFO, "trireme"):
        await client.get("/v2/health/live")
    assert not caplog.messages
    with caplog.at_level(logging.DEBUG, "trireme"):
        await client.get("/v2/health/live")
        await client.ask("POST", "/nothing/\xe9")
    assert caplog.messages == ["HTTP request: GET /v2/health/live", "HTTP request: POST /nothing/\xe9"]


async def test_query_string_is_ignored_even_where_a_server_leaves_it_in_the_path(client: HttpClient) -> None:
    assert (await client.get("/v2?a=/x")).status == 200


async def test_names_are_not_percent_decoded(client: HttpClient) -> None:
    reply = await client.get("/v2/models/a%5Fb%22c")
    assert reply.error == "Request for unknown model: 'a%5Fb%22c' is not found"


async def test_bytes_that_are_no_utf8_come_back_as_they_were(client: HttpClient) -> None:
    reply = await client.ask("GET", b"/v2/models/a\xe9\xff")
    assert reply.body == b'{"error":"Request for unknown model: \'a\xe9\xff\' is not found"}'


@pytest.mark.parametrize("path", ["", "/config", "/stats", "/ready"])
async def test_version_beyond_64_bits_is_an_invalid_argument(client: HttpClient, path: str) -> None:
    for digits in (str(2**63), "9" * 20, "9" * 5000):
        reply = await client.get(f"/v2/models/identity/versions/{digits}{path}")
        assert reply.status == 400
        assert reply.error == (
            f"failed to get model version from specified version string '{shown(digits)}' (details: stol), "
            "version should be an integral value > 0"
        )
    reply = await client.get(f"/v2/models/identity/versions/{2**63 - 1}{path}")
    assert "failed to get model version" not in reply.body.decode()


async def test_leading_zeros_are_part_of_a_number(client: HttpClient) -> None:
    assert (await client.get("/v2/models/identity/versions/" + "0" * 5000 + "1")).json["versions"] == ["1"]


async def test_version_zero_is_a_version_that_does_not_exist(client: HttpClient) -> None:
    reply = await client.get("/v2/models/identity/versions/0")
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'identity' version 0 is not found")


async def test_a_model_called_stats_has_no_metadata_route_but_the_others(client: HttpClient) -> None:
    client.server.models["stats"] = client.server.models["identity"]
    assert (await client.get("/v2/models/stats")).json == {"model_stats": []}
    assert (await client.get("/v2/models/stats/versions/1")).json["name"] == "identity"
    assert (await client.get("/v2/models/stats/ready")).status == 200


def test_categories_are_those_of_the_restricted_api_option() -> None:
    """docs/reference/command-line.md names them; every route has one."""
    known = {"health", "metadata", "model-config", "statistics", "inference", "model-repository"}
    assert {route.category for route in ROUTES} == known | {"shared-memory", "trace", "logging"}


def test_remembered_paths_are_bounded_and_do_not_change_what_matches() -> None:
    router = Router()
    for number in range(3000):
        match = router.match(b"/v2/models/m%d/infer" % number)
        assert match is not None
        assert match.name == f"m{number}"
        assert len(router._matches) <= 2048
    long = b"/v2/models/" + b"m" * 10_000
    assert router.match(long) is not None
    assert long not in router._matches


SEGMENTS = st.sampled_from(["v2", "models", "versions", "1", "m", "infer", "stats", "repository", "index", "load", ""])


@given(st.lists(SEGMENTS, max_size=7).map("/".join) | st.text(max_size=40))
def test_a_path_finds_the_route_that_its_table_row_describes(path: str) -> None:
    """The router agrees with a plain reading of docs/reference/http.md#routes, cached or not."""
    rows = [
        r"/v2(/health/(live|ready)|/logging|/trace/setting)?",
        r"/v2/models/(stats|[^/?]+(/versions/[0-9]+)?(/(ready|config|stats|infer|generate|generate_stream))?)",
        r"/v2/models/[^/?]+/trace/setting",
        r"/v2/repository(/[^/?]+)?/(index|models/[^/?]+/(load|unload))",
        r"/v2/(system|cuda)sharedmemory(/region/[^/?]+)?/(status|register|unregister)",
    ]
    expected = any(re.fullmatch(row, path.partition("?")[0]) for row in rows)
    router = Router()
    raw_path = path.encode("utf-8", "surrogatepass")
    for _ in range(2):
        assert (router.match(raw_path) is not None) is expected


@given(st.binary(max_size=60))
def test_any_bytes_as_a_path_give_an_answer(path: bytes) -> None:
    for raw_path in (path, b"/v2/models/" + path, b"/v2/models/m/versions/" + path + b"/infer"):
        Router().match(raw_path)
