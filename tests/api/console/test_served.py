"""The console of a whole `trireme serve`: with access rules, with front ends, and switched off."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repository_models import link_models
from ruled_server import key_of, rules_text
from serve_process import PATIENCE_S, ServeProcess, serve_process

OWN = {"X-Trireme-Console": "1"}


@contextmanager
def asked(
    server: ServeProcess, method: str, path: str, body: Any = None, headers: Mapping[str, str] = OWN
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), dict(headers))
        yield connection.getresponse()
    finally:
        connection.close()


def ask(server: ServeProcess, method: str, path: str, body: Any = None, headers: Mapping[str, str] = OWN) -> tuple:
    """Status and JSON."""
    with asked(server, method, path, body, headers) as response:
        text = response.read()
        return response.status, json.loads(text) if text else None


def frames(server: ServeProcess, headers: Mapping[str, str] = OWN) -> Generator[dict[str, Any], None, None]:
    with asked(server, "GET", "/console/stream", None, headers) as response:
        assert response.status == 200
        event = b""
        for line in response:
            if line.startswith(b"event: "):
                event = line.split()[1]
            elif line.startswith(b"data: ") and event == b"frame":
                yield json.loads(line[6:])


def kinds(tree: Mapping[str, Any]) -> list[str]:
    return [tree["kind"], *(kind for child in tree["children"] for kind in kinds(child))]


def test_it_is_off_if_it_is_not_wanted(tmp_path: Path) -> None:
    with serve_process(link_models(tmp_path, "simple"), "--console", "off") as server:
        for path in ("/console", "/console/stream", "/console/console.js"):
            assert ask(server, "GET", path) == (200, None)


def test_with_front_ends_in_processes_of_their_own(tmp_path: Path) -> None:
    with serve_process(link_models(tmp_path, "simple"), "--front-ends", "2") as server:
        watching = frames(server)
        first = next(watching)
        there = kinds(first["tree"])
        assert there.count("front end") == 2
        assert [*dict.fromkeys(there)] == ["server", "front end", "repository", "model", "scheduler", "instance"]
        rows = [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "data": [1] * 16} for name in ("INPUT0", "INPUT1")
        ]
        assert ask(server, "POST", "/console/v2/models/simple/infer", {"inputs": rows})[0] == 200
        assert server.ask("POST", "/v2/models/simple/infer", {"inputs": rows})[0] == 200
        while next(watching)["models"][0]["success"] < 2:
            pass
        status, settings = ask(server, "POST", "/console/v2/logging", {"log_verbose_level": 1})
        assert (status, settings["log_verbose_level"]) == (200, 1)
        watching.close()


def test_streams_of_a_decoupled_model_are_noted(tmp_path: Path) -> None:
    with serve_process(link_models(tmp_path, "repeat_int32")) as server:
        watching = frames(server)
        next(watching)
        body = {"IN": [1, 2], "DELAY": [0, 0], "WAIT": 0}
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
        connection.request("POST", "/v2/models/repeat_int32/generate_stream", json.dumps(body))
        assert connection.getresponse().read().count(b"data: ") == 2
        connection.close()
        streams = next(found for frame in watching if (found := frame["models"][0]["streams"]))
        ((instance, start, end, failed),) = streams
        assert (instance.startswith("repeat_int32_0"), failed) == (True, False)
        assert 0 < start < end
        watching.close()


def test_access_rules_hold(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        rules_text(reader='read = ["*"]', user='infer = ["simple"]', keeper='manage = ["*"]', boss='admin = ["*"]')
    )
    flags = ("--access-config", str(rules), "--model-control-mode", "explicit", "--load-model", "simple")
    with serve_process(link_models(tmp_path / "models", "simple"), *flags) as server:
        assert ask_page(server) == 200, "the page says nothing of the server"
        assert ask(server, "GET", "/console/stream")[0] == 401

        def as_caller(name: str) -> dict[str, str]:
            return {**OWN, "Authorization": f"Bearer {key_of(name)}"}

        assert ask(server, "GET", "/console/stream", None, as_caller("user"))[0] == 403
        watching = frames(server, as_caller("reader"))
        assert next(watching)["models"][0]["name"] == "simple"
        watching.close()
        load, log = "/console/v2/repository/models/simple/load", "/console/v2/logging"
        assert [ask(server, "POST", load, {}, as_caller(name))[0] for name in ("reader", "keeper")] == [403, 200]
        assert [ask(server, "POST", log, {}, as_caller(name))[0] for name in ("keeper", "boss")] == [403, 200]
        infer = "/console/v2/models/simple/infer"
        assert ask(server, "POST", infer, {"inputs": []}, as_caller("reader"))[0] == 403
        assert ask(server, "POST", infer, {"inputs": []}, as_caller("user"))[0] == 400, "which is allowed, and wrong"


def ask_page(server: ServeProcess) -> int:
    with asked(server, "GET", "/console", None, {}) as response:
        return response.status
