"""The table of calls and callers: who may what, and that HTTP/1.1, HTTP/2, gRPC and streams say the same."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest
import trio
from grpc_stub import MESSAGES, OpenStream, infer_request, stub_for
from http2_client import Http2Client
from ruled_server import RuledServer, key_of, ruled_server, rules_text

from trireme.api.metrics.collector import ServerCollector
from trireme.engine.errors import RefusalReason
from trireme.engine.metrics.families import HostReadings
from trireme.engine.metrics.page import write_text

RULES = rules_text(
    infers='infer = ["pl*"]',
    reader='read = ["pl*"]',
    keeper='manage = ["pl*"]',
    admins='admin = ["*"]',
    every='infer = ["*"]\nadmin = ["*"]',
)
CALLERS = ("infers", "reader", "keeper", "admins", "every", "stranger", "")
"""Of the rules; one with a key that they do not have; one without a key."""

KNOWN = frozenset(CALLERS[:5])
TENSOR = {"name": "IN", "shape": [1], "datatype": "FP32", "data": [1.0]}
QUEUED = {**TENSOR, "shape": [1, 1]}
REGION = {"key": "/no such region", "offset": 0, "byte_size": 8}


class Call(NamedTuple):
    """A call in both protocols.

    Attributes:
        body: of a POST; None for a GET.
        may: who may make it.
        lacks: what the others lack.
    """

    path: str
    body: Any
    method: str
    request: Callable[[], Any]
    may: frozenset[str]
    lacks: str


def call(path: str, body: Any, method: str, may: str, lacks: str, **fields: Any) -> Call:
    """The request of a gRPC method has its name, and these fields."""
    make = getattr(MESSAGES, f"{method}Request")
    return Call(path, body, method, lambda: make(**fields), frozenset(may.split()), lacks)


def log_change() -> Any:
    request = MESSAGES.LogSettingsRequest()
    request.settings["log_verbose_level"].uint32_param = 0
    return request


def trace_change() -> Any:
    request = MESSAGES.TraceSettingRequest()
    request.settings["trace_rate"].value.append("1000")
    return request


READERS = "reader keeper admins every"
ADMINS = "admins every"
CALLS = {
    "live": Call("/health/live", None, "ServerLive", MESSAGES.ServerLiveRequest, frozenset(CALLERS), ""),
    "metadata": call("", None, "ServerMetadata", READERS, "'read' on any model"),
    "model": call("/models/plain", None, "ModelMetadata", READERS, "'read' on model 'plain'", name="plain"),
    "config": call("/models/many/config", None, "ModelConfig", ADMINS, "'read' on model 'many'", name="many"),
    "unknown": call("/models/none", None, "ModelMetadata", ADMINS, "'read' on model 'none'", name="none"),
    "infer": Call(
        "/models/plain/infer",
        {"inputs": [TENSOR]},
        "ModelInfer",
        infer_request,
        frozenset(("infers", "every")),
        "'infer' on model 'plain'",
    ),
    "infer other": Call(
        "/models/queued/infer",
        {"inputs": [QUEUED]},
        "ModelInfer",
        lambda: infer_request("queued"),
        frozenset(("every",)),
        "'infer' on model 'queued'",
    ),
    "statistics": call(
        "/models/plain/stats", None, "ModelStatistics", READERS, "'read' on model 'plain'", name="plain"
    ),
    "all statistics": call("/models/stats", None, "ModelStatistics", ADMINS, "'read' on all models"),
    "index": call("/repository/index", {}, "RepositoryIndex", READERS, "'read' on any model"),
    "load": call(
        "/repository/models/plain/load",
        {},
        "RepositoryModelLoad",
        "keeper admins every",
        "'manage' on model 'plain'",
        model_name="plain",
    ),
    "load other": call(
        "/repository/models/queued/load",
        {},
        "RepositoryModelLoad",
        ADMINS,
        "'manage' on model 'queued'",
        model_name="queued",
    ),
    "regions": call("/systemsharedmemory/status", None, "SystemSharedMemoryStatus", ADMINS, "'read' on all models"),
    "register": call(
        "/systemsharedmemory/region/r/register",
        REGION,
        "SystemSharedMemoryRegister",
        ADMINS,
        "'manage' on all models",
        name="r",
        **REGION,
    ),
    "traces": call("/trace/setting", None, "TraceSetting", ADMINS, "'read' on all models"),
    "change traces": Call(
        "/trace/setting",
        {"trace_rate": "1000"},
        "TraceSetting",
        trace_change,
        frozenset(ADMINS.split()),
        "'admin' on all models",
    ),
    "log": call("/logging", None, "LogSettings", ADMINS, "'read' on all models"),
    "change log": Call(
        "/logging",
        {"log_verbose_level": 0},
        "LogSettings",
        log_change,
        frozenset(ADMINS.split()),
        "'admin' on all models",
    ),
}

HTTP_REFUSALS = {401: "unauthenticated", 403: "denied"}
GRPC_REFUSALS = {grpc.StatusCode.UNAUTHENTICATED: "unauthenticated", grpc.StatusCode.PERMISSION_DENIED: "denied"}
ALLOWED = ("allowed", "")
Outcome = tuple[str, str]
Table = dict[tuple[str, str], Outcome]
"""By call and caller: whether it was allowed, and the text of a refusal. What else is wrong with it does not matter."""


NEEDED = (
    "a credential is needed: an API key or a token in the header Authorization (Bearer), an API key in X-API-Key, or a "
    "client certificate"
)


def expected() -> Table:
    table: Table = {}
    for name, each in CALLS.items():
        for caller in CALLERS:
            if caller in each.may:
                outcome = ALLOWED
            elif caller in KNOWN:
                outcome = ("denied", f"caller '{caller}' does not have the right {each.lacks}")
            elif caller:
                outcome = ("unauthenticated", "the API key is not known")
            else:
                outcome = ("unauthenticated", NEEDED)
            table[name, caller] = outcome
    return table


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuledServer]:
    with ruled_server(tmp_path_factory.mktemp("models"), RULES) as running:
        yield running


def credentials(caller: str) -> list[tuple[str, str]]:
    """Every other caller has its key as a bearer token."""
    if not caller:
        return []
    bearer = CALLERS.index(caller) % 2
    return [("authorization", f"Bearer {key_of(caller)}")] if bearer else [("x-api-key", key_of(caller))]


def rows() -> Iterator[tuple[str, Call, str]]:
    return ((name, each, caller) for name, each in CALLS.items() for caller in CALLERS)


def of_http(status: int, body: bytes) -> Outcome:
    return (HTTP_REFUSALS[status], json.loads(body)["error"]) if status in HTTP_REFUSALS else ALLOWED


def over_http1(server: RuledServer) -> Table:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    table: Table = {}
    for name, each, caller in rows():
        body = None if each.body is None else json.dumps(each.body)
        method = "GET" if body is None else "POST"
        connection.request(method, f"/v2{each.path}", body, dict(credentials(caller)))
        answer = connection.getresponse()
        table[name, caller] = of_http(answer.status, answer.read())
    connection.close()
    return table


def over_http2(server: RuledServer) -> Table:
    table: Table = {}

    async def ask_all() -> None:
        client = Http2Client(await trio.open_tcp_stream("127.0.0.1", server.http_port))
        client.h2.initiate_connection()
        await client.flush()
        for name, each, caller in rows():
            body = None if each.body is None else json.dumps(each.body).encode()
            method = "GET" if body is None else "POST"
            number = await client.begin(method, f"/v2{each.path}", body, headers=credentials(caller))
            answer = await client.finish(number)
            table[name, caller] = of_http(answer.status, bytes(answer.body))
        await client.stream.aclose()

    trio.run(ask_all)
    return table


def over_grpc(server: RuledServer) -> Table:
    table: Table = {}
    with stub_for(f"127.0.0.1:{server.grpc_port}") as stub:
        for name, each, caller in rows():
            outcome = ALLOWED
            try:
                getattr(stub, each.method)(each.request(), metadata=credentials(caller), timeout=60)
            except grpc.RpcError as error:
                status: Any = error
                if status.code() in GRPC_REFUSALS:
                    outcome = GRPC_REFUSALS[status.code()], status.details()
            table[name, caller] = outcome
    return table


def over_streams(server: RuledServer) -> Table:
    """Inference alone."""
    table: Table = {}
    with stub_for(f"127.0.0.1:{server.grpc_port}") as stub:
        for name, each, caller in rows():
            if each.method != "ModelInfer":
                continue
            stream = OpenStream(stub, credentials(caller), timeout_s=60)
            stream.put(each.request())
            stream.half_close()
            try:
                text = stream.hear().error_message
            except grpc.RpcError:
                code, text = stream.status
                table[name, caller] = GRPC_REFUSALS[code], text
            else:
                table[name, caller] = ("denied", text) if text else ALLOWED
    return table


@pytest.mark.parametrize("ask", [over_http1, over_http2, over_grpc, over_streams])
def test_every_protocol_says_the_same(server: RuledServer, ask: Callable[[RuledServer], Table]) -> None:
    found = ask(server)
    wanted = expected()
    assert len(wanted) == 126
    assert len(found) == (14 if ask is over_streams else 126)
    assert found == {key: wanted[key] for key in found}


def test_callers_are_counted(server: RuledServer) -> None:
    """Those that presented no key that is known under no name."""
    over_http1(server)
    usages = {usage.name: usage for usage in server.control.usages()}
    page = server.call(lambda: write_text(ServerCollector(server.server, HostReadings).collect()))
    for name, usage in usages.items():
        assert f'trireme_caller_requests_total{{caller="{name}"}} {usage.requests}' in page
    assert usages["every"].requests >= 17
    unknown = server.control.unidentified[RefusalReason.UNAUTHENTICATED]
    assert f'trireme_caller_refused_total{{caller="",reason="unauthenticated"}} {unknown}' in page
    assert server.server.refusals.counts[RefusalReason.UNAUTHENTICATED] == unknown >= 2 * 17


@pytest.mark.parametrize(
    ("caller", "target", "lacks"),
    [
        ("keeper", "plain", ""),
        ("keeper", "queued", "'manage' on model 'queued'"),
        ("reader", "plain", "'manage' on model 'plx'"),
        ("admins", "queued", ""),
    ],
)
def test_who_sets_a_route_needs_the_right_on_its_targets_too(
    server: RuledServer, caller: str, target: str, lacks: str
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    document = json.dumps({"targets": {target: 100}})
    said = f"caller '{caller}' does not have the right {lacks}" if lacks else ""
    connection.request("PUT", "/v2/routes/plx", document, dict(credentials(caller)))
    answer = connection.getresponse()
    found = json.loads(answer.read())
    assert (answer.status, found.get("error", "")) == ((403, said) if lacks else (200, ""))
    load = MESSAGES.RepositoryModelLoadRequest(model_name="plx")
    load.parameters["route"].string_param = document
    with stub_for(f"127.0.0.1:{server.grpc_port}") as stub:
        if lacks:
            with pytest.raises(grpc.RpcError, match="does not have the right 'manage'"):
                stub.RepositoryModelLoad(load, metadata=credentials(caller), timeout=60)
        else:
            stub.RepositoryModelLoad(load, metadata=credentials(caller), timeout=60)
            connection.request("DELETE", "/v2/routes/plx", headers=dict(credentials(caller)))
            assert connection.getresponse().status == 200
    connection.close()
