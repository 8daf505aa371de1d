"""The page of a gateway: its replicas, how they are, and where their consoles are."""

from __future__ import annotations

import http.client
import re
from pathlib import Path

from repository_models import link_models
from ruled_server import key_of, rules_text
from serve_process import PATIENCE_S, GatewayProcess, serve_process

HOSTILE = 'http://there:8002/console?"><script>'


def ask(gateway: GatewayProcess, method: str, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.metrics_port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def rows_of(page: str) -> dict[str, str]:
    """What each replica's row says, by its name."""
    return dict(re.findall(r'<tr><th scope="row">(\w+)</th>(.*)</tr>', page))


def test_the_page_of_a_gateway(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    with serve_process(link_models(tmp_path / "models", "simple")) as replica:
        console = f"http://127.0.0.1:{replica.metrics_port}/console"
        fleet.write_text(
            f'[replicas.up]\naddress = "127.0.0.1:{replica.grpc_port}"\nconsole = "{console}"\n'
            f"[replicas.down]\naddress = \"127.0.0.1:1\"\nconsole = '{HOSTILE}'\n"
        )
        with GatewayProcess(fleet) as gateway:
            gateway.wait_for("Started Metrics Service")
            status, headers, page = ask(gateway, "GET", "/console")
            assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "1 of 2 can take requests" in page
            rows = rows_of(page)
            assert list(rows) == ["up", "down"]
            up, down = rows["up"], rows["down"]
            assert '<span class="pill good">ready</span>' in up
            assert f'<td>simple</td><td><a href="{console}">' in up
            assert '<span class="pill wait">joining</span> ' in down
            assert "<script" not in page
            assert "&quot;&gt;&lt;script&gt;" in down
            assert ask(gateway, "GET", "/console/console.css")[0] == 200
            assert ask(gateway, "GET", "/console/")[:2][0] == 308
            assert ask(gateway, "POST", "/console")[0] == 405
            status, _, text = ask(gateway, "GET", "/console/stream")
            assert (status, "each replica has a console of its own" in text) == (404, True)
            assert "trireme_fleet_replica_state" in ask(gateway, "GET", "/metrics")[2], "as before"


def test_access_rules_hold_for_it(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").touch()
    (tmp_path / "rules.toml").write_text(rules_text(reader='read = ["*"]'))
    with GatewayProcess(tmp_path / "fleet.toml", "--access-config", str(tmp_path / "rules.toml")) as gateway:
        gateway.wait_for("Started Metrics Service")
        assert ask(gateway, "GET", "/console")[0] == 401
        status, _, page = ask(gateway, "GET", "/console", Authorization=f"Bearer {key_of('reader')}")
        assert (status, "There are none." in page) == (200, True)
