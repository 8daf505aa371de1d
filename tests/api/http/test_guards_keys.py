"""Requests that need a key (docs/reference/http.md#restricted-apis)."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
from gated_server import gated_server
from http_fakes import FakeServer, HttpClient, HttpReply, fp32_request
from http_sockets import Responses, connect, serving, tell

from trireme.actors import InferenceServer
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import Exchange, HttpOptions
from trireme.api.http.routes import ROUTES as HTTP_ROUTES
from trireme.api.request_parameters import RESTRICTABLE, Restriction
from trireme.engine.options import ServerOptions

REFUSAL = "This API is restricted, expecting header 'Admin-Key'"
KEY = {"Admin-Key": "se=cret"}
PATHS = {
    "health": ("GET", "/v2/health/live"),
    "metadata": ("GET", "/v2"),
    "inference": ("POST", "/v2/models/identity/infer"),
    "shared-memory": ("GET", "/v2/systemsharedmemory/status"),
    "model-config": ("GET", "/v2/models/identity/config"),
    "model-repository": ("POST", "/v2/repository/index"),
    "statistics": ("GET", "/v2/models/stats"),
    "trace": ("GET", "/v2/trace/setting"),
    "logging": ("GET", "/v2/logging"),
}


ROUTES = {
    "health": [
        "GET /v2/health/live",
        "GET /v2/health/ready",
        "GET /v2/models/m/ready",
        "GET /v2/models/m/versions/1/ready",
    ],
    "metadata": ["GET /v2", "GET /v2/models/m", "GET /v2/models/m/versions/1"],
    "inference": [
        f"POST /v2/models/m{version}/{verb}"
        for version in ("", "/versions/1")
        for verb in ("infer", "generate", "generate_stream")
    ],
    "shared-memory": [
        f"{method} /v2/{kind}sharedmemory{region}/{verb}"
        for kind in ("system", "cuda")
        for region in ("", "/region/r")
        for method, verb in (("GET", "status"), ("POST", "register"), ("POST", "unregister"))
    ],
    "model-config": ["GET /v2/models/m/config", "GET /v2/models/m/versions/1/config"],
    "model-repository": [
        "POST /v2/repository/index",
        "POST /v2/repository/r/index",
        "POST /v2/repository/models/m/load",
        "POST /v2/repository/models/m/unload",
        "POST /v2/repository/r/models/m/load",
        "POST /v2/repository/r/models/m/unload",
        "GET /v2/routes",
        *(f"{method} /v2/routes/r" for method in ("GET", "PUT", "DELETE")),
        "POST /v2/routes/r/stop",
    ],
    "statistics": ["GET /v2/models/stats", "GET /v2/models/m/stats", "GET /v2/models/m/versions/1/stats"],
    "trace": [f"{method} /v2{model}/trace/setting" for method in ("GET", "POST") for model in ("", "/models/m")],
    "logging": ["GET /v2/logging", "POST /v2/logging"],
}
"""The table of docs/reference/http.md#routes."""


def restricting(*categories: str) -> tuple[Restriction, ...]:
    return (Restriction(categories, "Admin-Key", "se=cret"),)


def is_refused(reply: HttpReply) -> bool:
    if reply.status != 403:
        return False
    assert (reply.media, reply.error) == ("text/plain", REFUSAL)
    return True


def test_every_category_has_an_example_here() -> None:
    assert set(PATHS) == set(RESTRICTABLE)


@pytest.mark.parametrize("category", RESTRICTABLE)
async def test_only_the_category_named_needs_the_key(category: str) -> None:
    client = HttpClient(FakeServer(), restrictions=restricting(category))
    for other, (method, path) in PATHS.items():
        assert is_refused(await client.ask(method, path)) is (other == category)
        assert not is_refused(await client.ask(method, path, headers=KEY))


@pytest.mark.parametrize("category", RESTRICTABLE)
async def test_a_category_covers_all_of_its_routes_and_no_other(category: str) -> None:
    client = HttpClient(FakeServer(), restrictions=restricting(category))
    for owner, routes in ROUTES.items():
        for route in routes:
            method, path = route.split()
            assert is_refused(await client.ask(method, path)) is (owner == category), route


def test_there_are_no_other_routes() -> None:
    paths = [route.split()[1].encode() for routes in ROUTES.values() for route in routes]
    assert {route.category for route in HTTP_ROUTES} == set(ROUTES)
    for route in HTTP_ROUTES:
        assert any(route.pattern.fullmatch(path) for path in paths), route.pattern.pattern


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, False),
        ({"Admin-Key": "se=cret"}, True),
        ({"ADMIN-key": "se=cret"}, True),
        ({"Admin-Key": "Se=cret"}, False),
        ({"Admin-Key": "se=cret2"}, False),
        ({"Admin-Key": ""}, False),
        ({"triton-grpc-protocol-Admin-Key": "se=cret"}, False),
        ({"admin-key": "wrong", "Admin-Key": "se=cret"}, False),
        ({"admin-key": "se=cret", "Admin-Key": "wrong"}, True),
    ],
)
async def test_the_name_in_whatever_case_and_the_very_same_value(headers: dict[str, str], passes: bool) -> None:
    """Of several headers with that name the first counts."""
    client = HttpClient(FakeServer(), restrictions=restricting("health"))
    reply = await client.ask("GET", "/v2/health/live", headers=headers)
    assert reply.status == (200 if passes else 403)
    assert is_refused(reply) is not passes


async def test_the_key_is_looked_at_before_the_method_the_version_and_the_body() -> None:
    client = HttpClient(FakeServer(), restrictions=restricting("health", "inference"))
    assert is_refused(await client.post("/v2/health/live"))
    assert (await client.ask("HEAD", "/v2/health/live")).status == 403
    assert is_refused(await client.get("/v2/models/identity/versions/99999999999999999999/ready"))
    assert is_refused(await client.post("/v2/models/identity/infer", b"{"))
    assert is_refused(await client.get("/v2/models/identity/infer"))
    assert (await client.ask("POST", "/v2/health/live", headers=KEY)).status == 405
    assert (await client.get("/v2/health/nothing")).status == 404


async def test_a_refused_inference_never_reaches_the_server() -> None:
    client = HttpClient(FakeServer(), restrictions=restricting("inference"))
    assert is_refused(await client.infer(fp32_request()))
    assert client.server.submitted == []
    assert (await client.infer(fp32_request(), headers=KEY)).status == 200
    assert len(client.server.submitted) == 1


async def test_categories_may_need_different_keys() -> None:
    client = HttpClient(
        FakeServer(), restrictions=(Restriction(("health",), "one", "1"), Restriction(("metadata",), "two", "2"))
    )
    assert (await client.ask("GET", "/v2/health/live", headers={"one": "1"})).status == 200
    reply = await client.ask("GET", "/v2", headers={"one": "1"})
    assert reply.error == "This API is restricted, expecting header 'two'"


# Over sockets, with a real server behind.


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[HttpService]:
    """Restricts health and inference; has no models."""
    async with InferenceServer(ServerOptions(model_repository=(tmp_path,))) as server:
        application = HttpApplication(server, HttpOptions(restrictions=restricting("health", "inference")))
        async with serving(application) as running:
            yield running


async def test_http_1(service: HttpService) -> None:
    body = b'{"error":"%b"}' % REFUSAL.encode()
    answer = await tell(
        service,
        b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\naDmIn-KeY:  se=cret \r\nConnection: close\r\n\r\n",
    )
    refused, _, rest = answer.partition(b"\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"Content-Type: text/plain" in refused
    assert rest.startswith(body + b"HTTP/1.1 200 OK\r\n")


async def test_inference_with_the_key_is_answered_without_a_task_and_without_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restriction, of inference or of something else, does not switch the fast way off."""
    long_way: list[bytes] = []
    call = HttpApplication.__call__

    async def seen(self: HttpApplication, exchange: Exchange) -> None:
        long_way.append(exchange.path)
        await call(self, exchange)

    monkeypatch.setattr(HttpApplication, "__call__", seen)
    text = b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[1]}]}'
    request = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b"
    for category, key, status in (
        ("inference", b"", 403),
        ("inference", b"Admin-Key: wrong\r\n", 403),
        ("inference", b"Admin-Key: se=cret\r\n", 200),
        ("logging", b"", 200),
    ):
        directory = tmp_path / f"{category}{len(key)}"
        options = HttpOptions(restrictions=restricting(category))
        async with gated_server(directory, front=options) as gated, await connect(gated.http) as stream:
            gated.gate.set()
            responses = Responses(stream)
            await stream.send_all(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
            await responses.next()
            long_way.clear()
            await stream.send_all(request % (key, len(text), text))
            assert (await responses.next()).status == status
            assert len(long_way) == (status == 403)


@pytest.mark.parametrize("given", [b"se=cret", b"se=cre", b"se=crett", b"", None])
def test_keys_are_compared_in_constant_time(given: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    compare = hmac.compare_digest

    def note(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", note)
    (restriction,) = restricting("health")
    assert restriction.admits(given) is (given == b"se=cret")
    assert compared == ([] if given is None else [given])


async def test_http_1_refuses_before_it_has_the_body(service: HttpService) -> None:
    answer = await tell(
        service,
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\n{",
    )
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")


@pytest.mark.parametrize(
    ("key", "status"), [([], 403), ([("admin-key", "wrong")], 403), ([("admin-key", "se=cret")], 200)]
)
async def test_http_2(service: HttpService, key: list[tuple[str, str]], status: int) -> None:
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    peer.initiate_connection()
    target = [(":method", "GET"), (":path", "/v2/health/live"), (":scheme", "http"), (":authority", "x")]
    peer.send_headers(1, target + key, end_stream=True)
    seen: dict[str, str] = {}
    body = b""
    async with await connect(service) as stream:
        await stream.send_all(peer.data_to_send())
        async for data in stream:
            events = peer.receive_data(data)
            for event in events:
                if isinstance(event, h2.events.ResponseReceived):
                    seen = {_text(name): _text(value) for name, value in event.headers or ()}
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data or b""
            if any(isinstance(event, h2.events.StreamEnded) for event in events):
                break
    assert int(seen[":status"]) == status
    assert seen["content-type"] == "text/plain"
    assert body == (b"" if status == 200 else b'{"error":"%b"}' % REFUSAL.encode())


def _text(raw: str | bytes) -> str:
    return raw if isinstance(raw, str) else raw.decode()
