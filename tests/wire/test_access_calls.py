"""The table of calls and callers: who may what, and that HTTP/1.1, HTTP/2, gRPC and streams say the same."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import trio
from grpc_stub import MESSAGES, OpenStream, infer_request, stub_for
from http2_client import Http2Client
from ruled_server import RuledServer, key_of, ruled_server, rules_text

from trireme.api.cli.main import main
from trireme.api.metrics.collector import ServerCollector
from trireme.engine.errors import RefusalReason
from trireme.engine.metrics.families import HostReadings
from trireme.engine.metrics.page import write_text
from trireme.engine.options import ControlMode

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
        method: empty if there is none such over gRPC.
        may: who may make it.
        lacks: what the others lack.
        verb: if it is neither GET nor POST.
        lacking: what single callers lack, if that is something else.
    """

    path: str
    body: Any
    method: str
    request: Callable[[], Any]
    may: frozenset[str]
    lacks: str
    verb: str = ""
    lacking: Mapping[str, str] = {}

    @property
    def http(self) -> tuple[str, str, bytes | None]:
        """Method, path and body."""
        body = None if self.body is None else json.dumps(self.body).encode()
        return self.verb or ("GET" if body is None else "POST"), f"/v2{self.path}", body


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


def route_change(path: str, body: Any, name: str, change: Any, may: str, verb: str = "", **lacking: str) -> Call:
    """Over gRPC a load or an unload with one parameter: a document is set."""

    def request() -> Any:
        if isinstance(change, dict):
            load = MESSAGES.RepositoryModelLoadRequest(model_name=name)
            load.parameters["route"].string_param = json.dumps(change)
            return load
        unload = MESSAGES.RepositoryModelUnloadRequest(model_name=name)
        unload.parameters[change].bool_param = True
        return unload

    method = "RepositoryModelLoad" if isinstance(change, dict) else "RepositoryModelUnload"
    return Call(path, body, method, request, frozenset(may.split()), f"'manage' on model '{name}'", verb, lacking)


READERS = "reader keeper admins every"
KEEPERS = "keeper admins every"
ADMINS = "admins every"
TO_PLAIN, TO_QUEUED = {"targets": {"plain": 100}}, {"targets": {"queued": 100}}
OTHERS = "'manage' on model 'queued'"
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
    "routes": Call("/routes", None, "", tuple, frozenset(READERS.split()), "'read' on any model"),
    "route": call("/routes/plr", None, "ModelConfig", READERS, "'read' on model 'plr'", name="plr"),
    "other route": call("/routes/r", None, "ModelConfig", ADMINS, "'read' on model 'r'", name="r"),
    "set route": route_change("/routes/plr", TO_PLAIN, "plr", TO_PLAIN, KEEPERS, "PUT"),
    "load route": route_change(
        "/repository/models/plr/load", {"parameters": {"route": json.dumps(TO_PLAIN)}}, "plr", TO_PLAIN, KEEPERS
    ),
    "set faulty route": route_change("/routes/plr", {"targets": {}}, "plr", {"targets": {}}, KEEPERS, "PUT"),
    "set other route": route_change("/routes/r", TO_PLAIN, "r", TO_PLAIN, ADMINS, "PUT"),
    "set route to other": route_change("/routes/ply", TO_QUEUED, "ply", TO_QUEUED, ADMINS, "PUT", keeper=OTHERS),
    "stop rollout": route_change("/routes/plr/stop", {}, "plr", "stop_rollout", KEEPERS),
    "stop rollout to other": route_change("/routes/ply/stop", {}, "ply", "stop_rollout", ADMINS, keeper=OTHERS),
    "unload rollout": route_change(
        "/repository/models/plr/unload", {"parameters": {"stop_rollout": True}}, "plr", "stop_rollout", KEEPERS
    ),
    "unload route": route_change(
        "/repository/models/plr/unload", {"parameters": {"route": True}}, "plr", "route", KEEPERS
    ),
    "remove route": route_change("/routes/plr", None, "plr", "route", KEEPERS, "DELETE"),
    "remove other route": route_change("/routes/r", None, "r", "route", ADMINS, "DELETE"),
    "remove route to other": route_change("/routes/ply", None, "ply", "route", ADMINS, "DELETE", keeper=OTHERS),
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
                lacks = each.lacking.get(caller, each.lacks)
                outcome = ("denied", f"caller '{caller}' does not have the right {lacks}")
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
        connection.request(*each.http, dict(credentials(caller)))
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
            number = await client.begin(*each.http, headers=credentials(caller))
            answer = await client.finish(number)
            table[name, caller] = of_http(answer.status, bytes(answer.body))
        await client.stream.aclose()

    trio.run(ask_all)
    return table


def over_grpc(server: RuledServer) -> Table:
    table: Table = {}
    with stub_for(f"127.0.0.1:{server.grpc_port}") as stub:
        for name, each, caller in rows():
            if not each.method:
                continue
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
    kept = len(CALLS)
    if ask is over_streams:
        kept = 2
    elif ask is over_grpc:
        kept = sum(bool(each.method) for each in CALLS.values())
    assert len(found) == kept * len(CALLERS)
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


ROUTE_LINES = [
    ("reader", "PUT /v2/routes/{route}", "RepositoryModelLoad", "plr", "refused"),
    ("keeper", "PUT /v2/routes/{route}", "RepositoryModelLoad", "plr", "allowed"),
    ("keeper", "PUT /v2/routes/{route}", "RepositoryModelLoad", "ply", "allowed"),
    ("keeper", "PUT /v2/routes/{route}", "RepositoryModelLoad", "queued", "refused"),
    ("admins", "PUT /v2/routes/{route}", "RepositoryModelLoad", "ply", "allowed"),
    ("keeper", "POST /v2/routes/{route}/stop", "RepositoryModelUnload", "plr", "allowed"),
    ("keeper", "DELETE /v2/routes/{route}", "RepositoryModelUnload", "ply", "allowed"),
    ("keeper", "DELETE /v2/routes/{route}", "RepositoryModelUnload", "queued", "refused"),
    ("every", "DELETE /v2/routes/{route}", "RepositoryModelUnload", "ply", "allowed"),
]
"""Caller, call over HTTP, call over gRPC, model, outcome."""


@pytest.mark.parametrize(("protocol", "ask"), [("http", over_http1), ("http", over_http2), ("grpc", over_grpc)])
def test_changes_of_routes_are_in_the_audit_log(
    server: RuledServer, protocol: str, ask: Callable[[RuledServer], Table]
) -> None:
    """Each has a line for the route's name, and one for each model that the caller may not manage. Looking has none."""
    before = len(server.audit.lines)
    ask(server)
    lines = server.audit.lines[before:]
    found = {(each["caller"], each["call"], each["model"], each["outcome"]) for each in lines}
    wanted = {
        (caller, call_of_http if protocol == "http" else method, model, outcome)
        for caller, call_of_http, method, model, outcome in ROUTE_LINES
    }
    assert wanted <= found
    assert {(each["protocol"], each["address"]) for each in lines} == {(protocol, "127.0.0.1")}
    reasons = {each["reason"] for each in lines if each["caller"] == "keeper"}
    assert "caller 'keeper' does not have the right 'manage' on model 'queued'" in reasons
    looked = [each for each in lines if each["call"].startswith(("GET /v2/routes", "ModelConfig"))]
    assert {each["outcome"] for each in looked} == {"refused"}


def test_routes_do_not_change_where_models_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in mode NONE without a file of routes: 503 and UNAVAILABLE, and the command says the same."""
    said = (
        "routes cannot be changed while this server runs, expected --routes, or explicit or on-demand as "
        "--model-control-mode"
    )
    monkeypatch.setenv("TRIREME_API_KEY", key_of("every"))
    none: dict[str, Any] = {"model_control_mode": ControlMode.NONE, "startup_models": ()}
    changes = {name: each for name, each in CALLS.items() if "rout" in name or "rollout" in name}
    with ruled_server(tmp_path, RULES, **none) as server, stub_for(f"127.0.0.1:{server.grpc_port}") as stub:
        url = f"127.0.0.1:{server.http_port}"
        connection = http.client.HTTPConnection(url, timeout=60)
        for name in changes.keys() - {"routes", "route", "other route", "set faulty route"}:
            connection.request(*changes[name].http, dict(credentials("every")))
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())) == (503, {"error": said}), name
            with pytest.raises(grpc.RpcError) as caught:
                getattr(stub, changes[name].method)(changes[name].request(), metadata=credentials("every"), timeout=60)
            failed: Any = caught.value
            assert (failed.code(), failed.details()) == (grpc.StatusCode.UNAVAILABLE, said), name
        connection.close()
        for words in (("set", "r", "--target", "plain=100"), ("remove", "r"), ("stop", "r")):
            assert main(["route", *words, "--url", url]) == 1
            assert capsys.readouterr().err == f"trireme route: {said}\n"
        assert main(["route", "list", "--url", url]) == 0
        assert capsys.readouterr().out == "there are no routes\n"
