"""Access rules over HTTP and gRPC: who may do what, and how often."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import trio
from authority import Authority
from grpc_stub import MESSAGES, OpenStream, infer_request, stub_for
from http2_client import Http2Client
from http_sockets import Response
from ruled_server import RuledServer, key_of, ruled_server, rules_text
from triton_messages import Stub

from trireme.api.http.app import HttpApplication
from trireme.api.http.exchange import Exchange
from trireme.engine.errors import RefusalReason

RULES = rules_text(
    infers='infer = ["plain", "queued"]',
    reader='read = ["plain"]',
    keeper='manage = ["pl*"]',
    admins='admin = ["*"]\ninfer = ["*"]',
    bounded='infer = ["*"]\n[callers.limits]\nin-flight = 1',
)
REFUSED = "caller '{}' does not have the right '{}' on {}"
UNKNOWN = "the API key is not known"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuledServer]:
    with ruled_server(tmp_path_factory.mktemp("models"), RULES) as running:
        yield running


class Page(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def error(self) -> str:
        return self.body["error"]


class Web:
    """One HTTP/1.1 connection."""

    def __init__(self, server: RuledServer) -> None:
        self.connection: http.client.HTTPConnection = http.client.HTTPConnection(
            "127.0.0.1", server.http_port, timeout=60
        )

    def ask(self, path: str, body: Any = None, caller: str = "", **headers: str) -> Page:
        given = {"X-API-Key": key_of(caller)} if caller else {}
        data = None if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        self.connection.putrequest(method, f"/v2{path}", skip_accept_encoding=True)
        for name, value in (given | headers | {"Content-Length": str(len(data or b""))}).items():
            self.connection.putheader(name, value)
        self.connection.endheaders(data)
        answer = self.connection.getresponse()
        text = answer.read()
        return Page(
            answer.status, {name.lower(): value for name, value in answer.getheaders()}, json.loads(text or b"0")
        )

    def infer(self, model: str = "plain", caller: str = "", **headers: str) -> Page:
        tensor = {"name": "IN", "shape": [1], "datatype": "FP32", "data": [1.0]}
        return self.ask(f"/models/{model}/infer", {"inputs": [tensor]}, caller, **headers)


@pytest.fixture
def web(server: RuledServer) -> Web:
    return Web(server)


@pytest.fixture
def stub(server: RuledServer) -> Iterator[Any]:
    with stub_for(f"127.0.0.1:{server.grpc_port}") as made:
        yield made


def told(call: Any, request: Any, caller: str = "", **metadata: str) -> tuple[str, str]:
    """Status and text of a call."""
    given = (("x-api-key", key_of(caller)),) if caller else ()
    try:
        call(request, metadata=(*given, *metadata.items()))
    except grpc.RpcError as error:
        return error.code().name, error.details()  # type: ignore[attr-defined]
    return "OK", ""


def test_inference_over_http(server: RuledServer, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a key was found to be is remembered: of it, only the first request and those that are refused go the long
    way."""
    long_way: list[bytes] = []
    call = HttpApplication.__call__

    async def seen(self: HttpApplication, exchange: Exchange) -> None:
        long_way.append(exchange.path)
        await call(self, exchange)

    monkeypatch.setattr(HttpApplication, "__call__", seen)
    refused = web.infer()
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert web.infer(caller="reader")[::2] == (403, {"error": REFUSED.format("reader", "infer", "model 'plain'")})
    assert web.infer("nosuch", "infers").status == 403, "that there is none is not told"
    assert web.infer("nosuch", "admins").status == 404
    assert web.infer(**{"X-API-Key": key_of("infers") + "x"})[::2] == (401, {"error": UNKNOWN})
    long_way.clear()
    for _ in range(3):
        assert web.infer(caller="infers").status == 200
    assert web.infer(Authorization=f"Bearer {key_of('infers')}").status == 200
    assert len(long_way) == 1
    counts = server.server.refusals.counts
    assert (counts[RefusalReason.UNAUTHENTICATED], counts[RefusalReason.PERMISSION_DENIED]) == (2, 2)
    assert [each["outcome"] for each in server.audit.lines] == ["refused"] * 4


def test_inference_over_grpc(server: RuledServer, stub: Any) -> None:
    request = infer_request()
    assert told(stub.ModelInfer, request)[0] == "UNAUTHENTICATED"
    assert told(stub.ModelInfer, request, **{"x-api-key": "trk_x"}) == ("UNAUTHENTICATED", UNKNOWN)
    for _ in range(2):
        assert told(stub.ModelInfer, request, "infers") == ("OK", "")
        denied = REFUSED.format("reader", "infer", "model 'plain'")
        assert told(stub.ModelInfer, request, "reader") == ("PERMISSION_DENIED", denied)
    assert told(stub.ModelInfer, request, authorization=f"Bearer {key_of('infers')}") == ("OK", "")
    assert told(stub.ModelInfer, infer_request("nosuch"), "infers")[0] == "PERMISSION_DENIED"
    assert told(stub.ModelInfer, infer_request("nosuch"), "admins")[0] == "NOT_FOUND"


def test_what_changes_the_server_needs_more_than_what_reads_it(server: RuledServer, web: Web, stub: Any) -> None:
    """The same over both protocols; the index shows what a caller may read."""
    for path, body, caller, status in (
        ("/health/ready", None, "", 200),
        ("", None, "", 401),
        ("", None, "reader", 200),
        ("", None, "infers", 403),
        ("/models/plain", None, "reader", 200),
        ("/models/many/config", None, "reader", 403),
        ("/models/stats", None, "reader", 403),
        ("/models/stats", None, "admins", 200),
        ("/repository/models/plain/load", {}, "reader", 403),
        ("/repository/models/plain/load", {}, "keeper", 200),
        ("/repository/models/many/unload", {}, "keeper", 403),
        ("/logging", None, "keeper", 403),
        ("/logging", {}, "admins", 501),  # the test has the log
        ("/systemsharedmemory/region/plain/register", {}, "keeper", 403),
    ):
        assert web.ask(path, body, caller).status == status, (path, caller)
    assert [row["name"] for row in web.ask("/repository/index", {}, "reader").body] == ["plain"]
    index = stub.RepositoryIndex(MESSAGES.RepositoryIndexRequest(), metadata=(("x-api-key", key_of("reader")),))
    assert [row.name for row in index.models] == ["plain"]
    load = MESSAGES.RepositoryModelLoadRequest
    assert told(stub.ServerReady, MESSAGES.ServerReadyRequest()) == ("OK", "")
    assert told(stub.ServerMetadata, MESSAGES.ServerMetadataRequest())[0] == "UNAUTHENTICATED"
    assert told(stub.ServerMetadata, MESSAGES.ServerMetadataRequest(), "reader")[0] == "OK"
    assert told(stub.RepositoryModelLoad, load(model_name="plain"), "keeper") == ("OK", "")
    assert told(stub.RepositoryModelLoad, load(model_name="many"), "keeper")[0] == "PERMISSION_DENIED"
    assert told(stub.LogSettings, MESSAGES.LogSettingsRequest(), "admins")[0] == "UNIMPLEMENTED"
    change = MESSAGES.LogSettingsRequest()
    change.settings["log_verbose_level"].uint32_param = 0
    denied = REFUSED.format("keeper", "admin", "all models")
    assert told(stub.LogSettings, change, "keeper") == ("PERMISSION_DENIED", denied)
    region = MESSAGES.SystemSharedMemoryRegisterRequest(name="plain", key="/x", byte_size=8)
    assert told(stub.SystemSharedMemoryRegister, region, "keeper")[0] == "PERMISSION_DENIED"
    allowed = [(each["caller"], each["model"]) for each in server.audit.lines if each["outcome"] == "allowed"]
    assert allowed == [("keeper", "plain"), ("admins", ""), ("keeper", "plain")]


def test_a_load_with_content_and_an_unload_of_others_need_the_right_on_all(
    server: RuledServer, web: Web, stub: Any
) -> None:
    """A configuration can make a model an ensemble of any other ones."""
    denied = REFUSED.format("keeper", "manage", "all models")
    load, unload = MESSAGES.RepositoryModelLoadRequest, MESSAGES.RepositoryModelUnloadRequest
    loads: dict[str, Any] = {"config": '{"max_batch_size":0}'}
    loading, unloading = load(model_name="plain"), unload(model_name="plain")
    loading.parameters["config"].string_param = loads["config"]
    unloading.parameters["unload_dependents"].bool_param = True
    path = "/repository/models/plain"
    for parameters, call, request in (
        (loads, "load", loading),
        ({"file:1/model.py": "AA=="}, "load", loading),
        ({"unload_dependents": True}, "unload", unloading),
    ):
        refused = web.ask(f"{path}/{call}", {"parameters": parameters}, "keeper")
        assert (refused.status, refused.error) == (403, denied)
        method = stub.RepositoryModelLoad if call == "load" else stub.RepositoryModelUnload
        assert told(method, request, "keeper") == ("PERMISSION_DENIED", denied)
        assert web.ask("/models/plain/ready", None, "admins").status == 200
    assert told(stub.RepositoryModelUnload, unloading, "admins") == ("OK", "")
    assert web.ask(f"{path}/unload", {"parameters": {"unload_dependents": False}}, "keeper").status == 200
    refusals = [each for each in server.audit.lines if each["outcome"] == "refused"]
    assert {each["reason"] for each in refusals} == {denied}
    assert len(refusals) == 6


def test_limits_count_a_request_until_its_final_answer(server: RuledServer, web: Web, stub: Any) -> None:
    """Over both protocols together; what is given up is given back once, and refusals hold nothing."""
    metadata = (("x-api-key", key_of("bounded")),)
    first = stub.ModelInfer.future(infer_request(script="wait:g say!", request_id="a"), metadata=metadata)
    server_began(server, "a")
    assert web.infer(caller="bounded").status == 429
    refused = web.infer(caller="bounded")
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert told(stub.ModelInfer, infer_request(), "bounded") == ("RESOURCE_EXHAUSTED", refused.error)
    large = {"name": "IN", "shape": [40_000], "datatype": "FP32", "data": [0.25] * 40_000}
    assert web.ask("/models/plain/infer", {"inputs": [large]}, "bounded").status == 429
    assert server.inflight == (1, 4), "what was refused has given its room back"
    first.cancel()
    server.script.gates["g"].set()
    wait_for(server, lambda: not any(each.in_flight for each in server.control.usages()))
    assert web.ask("/models/plain/infer", {"inputs": [large]}, "bounded").status == 200
    wait_for(server, lambda: not any(each.in_flight for each in server.control.usages()))
    assert server.inflight == (0, 0)


def test_a_stream_is_refused_when_it_opens_and_each_request_for_its_model(server: RuledServer, stub: Any) -> None:
    stream = OpenStream(stub)
    with pytest.raises(grpc.RpcError):
        stream.hear()
    assert stream.status[0] is grpc.StatusCode.UNAUTHENTICATED
    stream.half_close()
    stream = OpenStream(stub, (("x-api-key", key_of("infers")),))
    stream.say(request_id="a")
    assert stream.hear().infer_response.id == "a"
    stream.say("many", request_id="b")
    assert stream.hear().error_message == REFUSED.format("infers", "infer", "model 'many'")
    stream.say(request_id="c")
    assert stream.hear().infer_response.id == "c"
    stream.half_close()


def test_new_rules_end_nothing_and_hold_for_the_next_request(server: RuledServer, web: Web, stub: Any) -> None:
    stream = OpenStream(stub, (("x-api-key", key_of("infers")),))
    stream.say(script="wait:g say!", request_id="a")
    server_began(server, "a")
    assert web.infer(caller="infers").status == 200
    server.reload(rules_text(infers='infer = ["queued"]', reader='infer = ["*"]'))
    stream.say(request_id="b")
    server.script.gates["g"].set()
    assert stream.hear().infer_response.id == "a"
    assert stream.hear().error_message == REFUSED.format("infers", "infer", "model 'plain'")
    assert web.infer(caller="infers").status == 403
    assert web.infer(caller="reader").status == 200
    server.reload(rules_text(reader='infer = ["*"]'))
    stream.say("queued", request_id="c")
    assert stream.hear().error_message == UNKNOWN
    stream.half_close()


def server_began(server: RuledServer, request_id: str) -> None:
    wait_for(server, lambda: request_id in server.script.begun)


def wait_for(server: RuledServer, condition: Any) -> None:
    for _ in range(10_000):
        if server.call(condition):
            return
    raise AssertionError("waited in vain")


async def ask_for_configs(port: int, context: ssl.SSLContext, *models: str) -> list[Response]:
    """Over one HTTP/2 connection."""
    async with await trio.open_ssl_over_tcp_stream(
        "localhost", port, ssl_context=context, https_compatible=True
    ) as tls:
        client = Http2Client(tls)
        client.h2.initiate_connection()
        return [await client.ask("GET", f"/v2/models/{model}/config") for model in models]


def test_the_certificate_of_a_connection_tells_the_caller(tmp_path: Path) -> None:
    """Unless a key is presented. The same over HTTP/1.1, HTTP/2 and gRPC."""
    authority = Authority(tmp_path)
    issued = authority.ca.issue_cert("client@localhost")
    rules = (
        '[[callers]]\nname = "holder"\ninfer = ["plain"]\nread = ["plain"]\ncertificates = [{ email = "client@*" }]\n'
    )
    (tmp_path / "models").mkdir()
    denied = REFUSED.format("holder", "infer", "model 'many'")
    with ruled_server(tmp_path / "models", rules + RULES, authority.mutual_options) as server:
        context = authority.context()
        issued.configure_cert(context)
        web = Web(server)
        web.connection = http.client.HTTPSConnection("localhost", server.http_port, context=context, timeout=60)
        assert web.infer().status == 200
        assert web.infer("many")[::2] == (403, {"error": denied})
        assert web.infer(caller="reader").error == REFUSED.format("reader", "infer", "model 'plain'")
        context.set_alpn_protocols(["h2"])
        found = trio.run(ask_for_configs, server.http_port, context, "plain", "many")
        missing = {"error": REFUSED.format("holder", "read", "model 'many'")}
        assert [each.status for each in found] == [200, 403]
        assert json.loads(found[1].body) == missing
        with grpc.secure_channel(f"localhost:{server.grpc_port}", authority.credentials(authority.ca)) as channel:
            stub = Stub(channel)
            assert told(stub.ModelInfer, infer_request()) == ("OK", "")
            assert told(stub.ModelInfer, infer_request("many")) == ("PERMISSION_DENIED", denied)
            assert told(stub.ModelInfer, infer_request(), "reader")[0] == "PERMISSION_DENIED"
