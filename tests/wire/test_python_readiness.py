"""`is_ready` of Python models, as clients see it: over HTTP and gRPC, for a model and for the server."""

from __future__ import annotations

import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from python_models import CONFIG, IDENTITY, write_model

PATIENCE_S = 30.0
IN_PROCESS = CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
TWO = CONFIG + "instance_group { count: 2 }"
ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 8
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
    output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
    ensemble_scheduling { step [{
        model_name: "false" model_version: -1
        input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
    }] }
"""


def saying(body: str, kind: str = "def") -> str:
    """A model that is an identity, and says this."""
    return f"""{IDENTITY}
        def initialize(self, args):
            self.name = args["model_instance_name"]
            self.directory = args["model_repository"]

        {kind} is_ready(self):
            import asyncio, os, time
            {body}
"""


WAITING = """with open(self.directory + "/asked", "a") as asked:
                asked.write("x")
            with open(self.directory + "/gate") as gate:
                return gate.read() == "open"
"""
"""Opening a FIFO waits for who writes to it."""

BUSY = saying("return True").replace(
    "responses = []",
    """directory = requests[0].inputs()[0].as_numpy()[0, 0] == 1 and self.directory
            if directory:
                with open(directory + "/busy", "w"):
                    pass
                with open(directory + "/gate") as gate:
                    gate.read()
            responses = []""",
)

SAID = {
    "true": (saying("return True"), CONFIG, True),
    "false": (saying("return False"), CONFIG, False),
    "raising": (saying('raise ValueError("not today")'), CONFIG, False),
    "exiting": (saying("raise SystemExit(3)"), CONFIG, False),
    "number": (saying("return 1"), CONFIG, False),
    "nothing": (saying("pass"), CONFIG, False),
    "later": (saying("await asyncio.sleep(0); return True", "async def"), CONFIG, True),
    "never": (saying("await asyncio.sleep(0); return False", "async def"), CONFIG, False),
    "one_of_two": (saying('return self.name.endswith("_0")'), TWO, False),
    "both": (saying("return True"), TWO, True),
    "silent": (IDENTITY, CONFIG, True),
    "inside": (saying("return True"), IN_PROCESS, True),
    "inside_false": (saying("return False"), IN_PROCESS, False),
}


class Clients:
    """Both protocols' clients of a server."""

    def __init__(self, server: Any) -> None:
        self.server = server

    def ready(self, model: str, protocol: str) -> bool:
        library, url = (http_client, self.server.url) if protocol == "http" else (grpc_client, self.server.grpc_url)
        with library.InferenceServerClient(url, **self._patience(protocol)) as client:
            return client.is_model_ready(model) if model else client.is_server_ready()

    def _patience(self, protocol: str) -> dict[str, float]:
        return {"network_timeout": PATIENCE_S, "connection_timeout": PATIENCE_S} if protocol == "http" else {}

    def infer(self, model: str, value: float = 0.0) -> float:
        with grpc_client.InferenceServerClient(self.server.grpc_url) as client:
            tensor = grpc_client.InferInput("INPUT0", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
            result = client.infer(model, [tensor], client_timeout=PATIENCE_S)
            assert result is not None
            array = result.as_numpy("OUTPUT0")
            assert array is not None
            return array[0, 0]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, serve: Any) -> Iterator[Clients]:
    repository = tmp_path_factory.mktemp("models")
    for name, (code, config, _) in SAID.items():
        write_model(repository, name, code, config)
    write_model(repository, "ensemble", "", ENSEMBLE)
    with serve(repository) as server:
        yield Clients(server)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", SAID)
def test_a_model_is_as_ready_as_it_says_and_answers_all_the_same(clients: Clients, protocol: str, model: str) -> None:
    for _ in range(2):
        assert clients.ready(model, protocol) is SAID[model][2]
        assert clients.infer(model, 7) == 7


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_ensemble_is_as_ready_as_its_members(clients: Clients, protocol: str) -> None:
    assert clients.ready("ensemble", protocol) is False
    assert clients.infer("ensemble", 7) == 7


def test_why_not_is_not_told_over_http(clients: Clients) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{clients.server.url}/v2/models/false/ready", timeout=PATIENCE_S)
    assert (caught.value.code, caught.value.read()) == (400, b'{"error":"Model version not ready"}')


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("says", "strict", "ready"), [("True", True, True), ("False", True, False), ("False", False, True)]
)
def test_the_server_is_as_ready_as_its_models_if_readiness_is_strict(
    tmp_path: Path, serve: Any, protocol: str, says: str, strict: bool, ready: bool
) -> None:
    write_model(tmp_path, "m", saying(f"return {says}"))
    with serve(tmp_path, strict_readiness=strict) as server:
        assert Clients(server).ready("", protocol) is ready


def test_checks_share_a_call_and_one_that_took_too_long_ends_for_the_next_one(tmp_path: Path, serve: Any) -> None:
    directory = write_model(tmp_path, "m", saying(WAITING))
    os.mkfifo(directory / "gate")
    asked = directory / "asked"
    with serve(tmp_path) as server, ThreadPoolExecutor(4) as pool:
        clients = Clients(server)
        (check,) = server.server._repository.find("m").own_checks()
        check._limit_s = 0.2
        assert [*pool.map(clients.ready, ["m"] * 4, ["http", "grpc"] * 2)] == [False] * 4
        assert clients.infer("m", 3) == 3, "while the model still thinks"
        check._limit_s = PATIENCE_S
        later = [pool.submit(clients.ready, "m", protocol) for protocol in ("http", "grpc")]
        wait_until(lambda: asked.exists() and asked.read_text())
        assert asked.read_text() == "x"
        open_for_good(directory / "gate")
        assert [answer.result(PATIENCE_S) for answer in later] == [True, True]


@pytest.mark.parametrize("config", [CONFIG, IN_PROCESS])
def test_an_instance_that_executes_is_asked_too(tmp_path: Path, serve: Any, config: str) -> None:
    directory = write_model(tmp_path, "m", BUSY, config)
    os.mkfifo(directory / "gate")
    with serve(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        clients = Clients(server)
        answer = pool.submit(clients.infer, "m", 1)
        wait_until((directory / "busy").exists)
        assert clients.ready("m", "http")
        assert clients.ready("m", "grpc")
        assert not answer.done()
        (directory / "gate").write_text("")
        assert answer.result(PATIENCE_S) == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_one_that_dies_meanwhile_is_not_ready_and_comes_back(tmp_path: Path, serve: Any, protocol: str) -> None:
    body = """
            mark = self.directory + "/died"
            if not os.path.exists(mark):
                open(mark, "w").close()
                os._exit(1)
            return True
"""
    write_model(tmp_path, "m", saying(body))
    with serve(tmp_path) as server:
        clients = Clients(server)
        assert clients.ready("m", protocol) is False
        wait_until(lambda: clients.ready("m", protocol))


def open_for_good(gate: Path) -> None:
    """Let through what waits at the FIFO, and all that comes after that."""
    with gate.open("w") as held:
        gate.unlink()
        gate.write_text("open")
        held.write("open")


def wait_until(condition: Callable[[], object]) -> None:
    """For what is not announced."""
    pause = threading.Event()
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        pause.wait(0.02)
