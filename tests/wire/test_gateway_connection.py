"""What goes from a gateway to its replicas beside requests: TLS, tokens, and headers of clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from authority import Authority
from otlp_receiver import Receiver, receiving
from python_models import CONFIG, write_model
from ruled_server import key_of, rules_text
from serve_process import PATIENCE_S, GatewayProcess, ServeProcess, ask, serve_process, write_fleet

IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
ROUTE = """
    [routes.either]
    targets = { one = 50, two = 50 }
    sticky = "header:X-User"
"""
USERS = [f"user {number}" for number in range(12)]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=b,c=d"}


class Secured(NamedTuple):
    """A server that is reached over TLS only, by callers with keys, and sends its traces to a collector."""

    server: ServeProcess
    authority: Authority
    folder: Path
    receiver: Receiver

    def gateway(self, key: str = "gateway", authority: Authority | None = None) -> GatewayProcess:
        """One with this caller's key, that trusts this authority, or else the server's."""
        (self.folder / "token").write_text(f"{key_of(key)}\n")
        root = (authority or self.authority).root
        lines = ("[connection]", 'token-file = "token"', f'ca-file = "{root}"')
        write_fleet(self.folder / "fleet.toml", *lines, a=f"localhost:{self.server.grpc_port}")
        return GatewayProcess(self.folder / "fleet.toml")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    for name in ("one", "two"):
        write_model(folder / "models", name, config=CONFIG + IN_PROCESS)
    rules, routes = folder / "rules.toml", folder / "routes.toml"
    rules.write_text(rules_text(gateway='infer = ["*"]\nread = ["*"]', stranger='infer = ["*"]'))
    routes.write_text(ROUTE)
    with receiving() as receiver:
        traces = ("mode=opentelemetry", "rate=1000000", "level=TIMESTAMPS", f"opentelemetry,url={receiver.url}")
        flags = (
            *("--access-config", str(rules), "--routes", str(routes), "--allow-http", "false"),
            *("--grpc-use-ssl", "true", "--grpc-server-cert", str(authority.certificate)),
            *("--grpc-server-key", str(authority.key), "--allow-metrics", "false"),
            *(word for each in (*traces, "opentelemetry,bsp_schedule_delay=50") for word in ("--trace-config", each)),
        )
        with serve_process(folder / "models", *flags, wait=False) as server:
            yield Secured(server, authority, folder, receiver)


@pytest.fixture(scope="module")
def gateway(secured: Secured) -> Iterator[GatewayProcess]:
    with secured.gateway() as running:
        running.wait_for("replica a at .*: ready")
        yield running


def clients(gateway: GatewayProcess) -> list[tuple[Any, Any]]:
    http = httpclient.InferenceServerClient(f"127.0.0.1:{gateway.http_port}", network_timeout=PATIENCE_S)
    return [(httpclient, http), (grpcclient, grpcclient.InferenceServerClient(f"127.0.0.1:{gateway.grpc_port}"))]


def given(kind: Any) -> list[Any]:
    return [kind.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))]


def model_of(result: Any) -> str:
    response = result.get_response()
    return response["model_name"] if isinstance(response, dict) else response.model_name


def test_a_route_that_is_sticky_by_a_header_sees_it(gateway: GatewayProcess) -> None:
    """Whichever protocol it came by: for each user it is the same model, and not the same one for all."""
    found: dict[str, set[str]] = {user: set() for user in USERS}
    for kind, client in clients(gateway):
        with closing(client):
            for user in USERS * 2:
                found[user].add(model_of(client.infer("either", given(kind), headers={"x-user": user})))
    assert [len(models) for models in found.values()] == [1] * len(USERS)
    assert set.union(*found.values()) == {"one", "two"}


def test_a_client_s_span_goes_on_to_the_replica(secured: Secured, gateway: GatewayProcess) -> None:
    """Though the gateway traces nothing itself."""
    for kind, client in clients(gateway):
        with closing(client):
            client.infer("one", given(kind), headers=dict(CONTEXT))
        roots = [span for span in secured.receiver.spans() if span.name == "InferRequest"]
        assert [(span.trace_id, span.parent_id, span.state) for span in roots] == [(TRACE, SPAN, "a=b,c=d")]


@pytest.mark.parametrize(
    ("key", "text"), [("nobody", "the API key is not known"), ("stranger", "does not have the right 'read'")]
)
def test_a_token_that_does_not_do_is_told(secured: Secured, key: str, text: str) -> None:
    with secured.gateway(key) as gateway:
        gateway.wait_for("replica a at .* gets no requests: it does not tell what it serves: .*" + text)
        assert ask(gateway.http_port, "GET", "/v2/health/ready")[0] == 400
        status, error = ask(gateway.http_port, "POST", "/v2/models/one/infer", {"inputs": []})
        assert (status, error) == (503, {"error": "no replica of the fleet has told yet what it serves"})
        status, error = ask(gateway.http_port, "POST", "/v2/repository/index")
        assert status in (401, 403)
        assert text in error["error"]


def test_a_certificate_of_another_authority_is_told(secured: Secured) -> None:
    other = secured.folder / "other"
    other.mkdir()
    with secured.gateway(authority=Authority(other)) as gateway:
        gateway.wait_for("replica a at .* is not connected: TLS with the replica failed: .*certificate verify failed")
        status, error = ask(gateway.http_port, "POST", "/v2/repository/index")
        assert (status, error) == (503, {"error": "no replica of the fleet is connected"})
