"""Clients of a gateway that ask without a pause, whatever becomes of its replicas."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from python_models import CONFIG, write_model
from serve_process import GatewayProcess
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


def write_identity(repository: Path) -> None:
    """The model that they ask for."""
    write_model(
        repository, MODEL, config=CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
    )
