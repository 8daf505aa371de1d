"""Servers of a fleet that are replaced, killed and added, while clients ask their gateway all the time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from python_models import CONFIG, write_model
from serve_process import GatewayProcess, ServeProcess, serve_process, write_fleet
from tritonclient.utils import InferenceServerException

MODEL = "identity"
_PAUSE_S = 0.005
"""Of a client after each answer: servers are started meanwhile, on the same cores."""

FLAGS = ("--allow-http", "false", "--allow-metrics", "false", "--drain-secs", "0.5")


class Clients:
    """Those that ask without a pause, over HTTP and gRPC.

    Attributes:
        answered: requests that were, so far.
        errors: what the others were told.
    """

    def __init__(self, gateway: GatewayProcess, count: int = 4) -> None:
        self.answered = 0
        self.errors: list[str] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        kinds = [(grpcclient, gateway.grpc_port), (httpclient, gateway.http_port)]
        self.threads = [threading.Thread(target=self._ask, args=kinds[each % 2]) for each in range(count)]

    def _ask(self, kind: Any, port: int) -> None:
        values = np.array([[1.5, 2.5]], np.float32)
        tensor = kind.InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_data_from_numpy(values)
        with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
            while not self._over.wait(_PAUSE_S):
                try:
                    answer = client.infer(MODEL, [tensor]).as_numpy("OUTPUT0")
                except InferenceServerException as error:
                    with self._lock:
                        self.errors.append(error.message())
                else:
                    with self._lock:
                        self.answered += 1
                    assert (answer == values).all()

    def more(self, count: int = 50) -> None:
        """Wait until some more are answered."""
        until = self.answered + count
        while self.answered < until and not self._over.wait(0.01):
            pass

    def stop(self) -> None:
        self._over.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_model(path, MODEL, config=CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }')
    return path


@contextmanager
def asking(gateway: GatewayProcess) -> Iterator[Clients]:
    clients = Clients(gateway)
    for thread in clients.threads:
        thread.start()
    try:
        clients.more()
        yield clients
    finally:
        clients.stop()


def started(stack: ExitStack, repository: Path, port: int = 0) -> ServeProcess:
    return stack.enter_context(serve_process(repository, *FLAGS, "--grpc-port", str(port), wait=False))


def test_servers_are_replaced_killed_and_added(repository: Path, tmp_path: Path) -> None:
    """No request fails but those that a killed server had."""
    fleet = tmp_path / "fleet.toml"
    with ExitStack() as stack:
        servers = {name: started(stack, repository) for name in "ab"}
        ports = {name: server.grpc_port for name, server in servers.items()}
        write_fleet(fleet, **ports)
        gateway = GatewayProcess(fleet)
        stack.callback(gateway.end)
        gateway.wait_for("replica b at .*: ready")
        with asking(gateway) as clients:
            # One is replaced.
            servers["a"].process.send_signal(signal.SIGTERM)
            assert servers["a"].wait() == 0
            clients.more()
            servers["a"] = started(stack, repository, ports["a"])
            gateway.wait_for(r"(?s)(replica a at \S+ is connected.*){2}")
            clients.more()
            assert clients.errors == []
            # The other one is killed.
            servers["b"].process.kill()
            while 'state="lost"} 1' not in gateway.metrics():
                clients.more(1)
            clients.more()
            assert len(clients.errors) <= len(clients.threads)
            assert all("replica at 127.0.0.1" in error or "connection" in error for error in clients.errors)
            killed = len(clients.errors)
            # Another one is added, and the killed one leaves.
            added = started(stack, repository)
            write_fleet(fleet, a=ports["a"], c=added.grpc_port)
            gateway.wait_for("replica c at .* is connected")
            servers["a"].process.send_signal(signal.SIGTERM)
            assert servers["a"].wait() == 0
            clients.more()
            assert len(clients.errors) == killed
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.wait() == 0
