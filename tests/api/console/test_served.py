"""The console of a whole `trireme serve`: with access rules, with front ends, and switched off."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from python_models import write_model
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


GATED = """
    import pathlib, threading, time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.gate = pathlib.Path(args["model_repository"], "gate")

        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                if pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]:
                    failed = pb_utils.InferenceResponse(error=pb_utils.TritonError("no"))
                    sender.send(failed, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                else:
                    threading.Thread(target=self.answer, args=(sender,)).start()

        def answer(self, sender):
            while not self.gate.exists():
                time.sleep(0.01)
            output = pb_utils.Tensor("OUT", np.array([7], np.int32))
            sender.send(pb_utils.InferenceResponse([output]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
GATED_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }]
    output [{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }]
"""


def until_there(watching: Iterator[dict[str, Any]], *endings: tuple[bool, str]) -> list[list[Any]]:
    """The requests of the first frame that has these, whether they are open and with what result, in any order."""
    for each in watching:
        requests = each["models"][0]["requests"]
        if sorted((end is None, result) for _, _, end, result, _ in requests) == sorted(endings):
            return requests
    raise AssertionError("the stream has ended")


def test_streams_are_told_of_while_they_are_open_and_when_they_end(tmp_path: Path) -> None:
    """The batch of this one is over long before it has its answer."""
    model = write_model(tmp_path, "gated", GATED, GATED_CONFIG)
    with serve_process(tmp_path) as server:
        watching = frames(server)
        assert next(watching)["models"][0]["batching"]["decoupled"] is True
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
        connection.request("POST", "/v2/models/gated/generate_stream", json.dumps({"IN": 0}))
        ((received, start, _, _, instance),) = until_there(watching, (True, ""))
        assert (0 < received <= start, instance) == (True, "gated_0")
        assert server.ask("POST", "/v2/models/gated/generate", {"IN": 1})[0] == 400
        until_there(watching, (True, ""), (False, "failed: backend"))
        assert until_there(watching, (True, ""))[0][:2] == [received, start], "as before"
        (model / "gate").touch()
        assert b'"OUT":7' in connection.getresponse().read()
        connection.close()
        (ended,) = until_there(watching, (False, ""))
        assert ended[:2] == [received, start]
        assert ended[2] > start
        watching.close()


def test_a_request_that_is_refused_is_told_of(tmp_path: Path) -> None:
    with serve_process(link_models(tmp_path, "simple")) as server:
        watching = frames(server)
        next(watching)
        assert server.ask("POST", "/v2/models/simple/infer", {"inputs": []})[0] == 400
        ((_, start, _, _, instance),) = until_there(watching, (False, "refused: invalid"))
        assert (start, instance) == (None, "")
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
