"""A server as a process of its own, with and without front ends, and more than it has room for: its memory stays
bounded, everybody is answered in the end, and what is refused is counted."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pytest
import tritonclient.grpc as grpcclient
from beside_one_process import inflight, pids, wait_until
from onnx import TensorProto, helper, save_model
from serve_process import PATIENCE_S, ServeProcess, serve_process, tensor

MIB = 1 << 20
BUDGET_BYTES = 16 * MIB
VALUES = MIB - 256
"""Of a body of just less than 4 MiB."""

HTTP_CLIENTS, GRPC_CLIENTS = 40, 10
MOST_MORE_BYTES = 100 * MIB
"""Of memory, for 200 MiB that come at once."""


def write_largest(folder: Path) -> None:
    """OUTPUT0 FP32[1] is the largest element of INPUT0 FP32[n]."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("INPUT0", ["rows", "elements"]), ("OUTPUT0", ["rows", 1]))
    ]
    node = helper.make_node("ReduceMax", ["INPUT0"], ["OUTPUT0"], axes=[1], keepdims=1)
    graph = helper.make_graph([node], "largest", ends[:1], ends[1:])
    (folder / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save_model(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 4\n')


@pytest.fixture(scope="module", params=["0", "1"], ids=["alone", "front-end"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServeProcess]:
    repository = tmp_path_factory.mktemp("models")
    write_largest(repository / "largest")
    flags = ("--front-ends", request.param, "--max-inflight-bytes", str(BUDGET_BYTES), "--max-address-share", "100")
    explicit = ("--model-control-mode", "explicit", "--load-model", "*")
    with serve_process(repository, *flags, *explicit) as served:
        yield served


def memory_bytes(server: ServeProcess, what: str) -> int:
    """Of the server and its front ends: ``VmRSS``, or ``VmHWM`` for the most that each has ever had."""
    total = 0
    for pid in (server.process.pid, *pids(server)):
        found = re.search(rf"^{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert found
        total += int(found[1]) << 10
    return total


def refused(server: ServeProcess, reason: str) -> float:
    """Requests and connections of no model."""
    found = re.search(rf'^trireme_refused_total{{reason="{reason}"}} (\S+)', server.metrics(), re.MULTILINE)
    assert found
    return float(found[1])


@dataclass
class Client:
    """Sends a large body on a thread of its own, and reads the answer's status."""

    server: ServeProcess
    status: int = 0

    def run(self) -> None:
        given = {"name": "INPUT0", "datatype": "FP32", "shape": [1, VALUES]}
        text = orjson.dumps({"inputs": [given | {"parameters": {"binary_data_size": 4 * VALUES}}]})
        lengths = f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + 4 * VALUES}\r\n\r\n"
        head = f"POST /v2/models/largest/infer HTTP/1.1\r\nHost: x\r\n{lengths}"
        with socket.create_connection(("127.0.0.1", self.server.http_port), PATIENCE_S) as client:
            client.sendall(head.encode() + text)
            client.sendall(bytes(4 * VALUES))
            self.status = int(client.recv(65_536).split(b" ")[1])


def test_large_bodies_and_messages_at_once(server: ServeProcess) -> None:
    small = {"inputs": [tensor("INPUT0", "FP32", [1.0])]}
    assert server.ask("POST", "/v2/models/largest/infer", small)[0] == 200
    before_bytes = memory_bytes(server, "VmRSS")
    clients = [Client(server) for _ in range(HTTP_CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    most_bytes = 0.0
    others: Counter[int] = Counter()
    messages: Counter[str] = Counter()
    arrived = threading.Semaphore(0)

    def heard(result: object, error: object) -> None:  # so tritonclient calls it
        messages["" if error is None else error.message()] += 1  # type: ignore[attr-defined]
        arrived.release()

    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
        for thread in threads:
            thread.start()
        given = [grpcclient.InferInput("INPUT0", [1, VALUES], "FP32")]
        given[0].set_data_from_numpy(np.zeros((1, VALUES), np.float32))
        for _ in range(GRPC_CLIENTS):
            grpc.async_infer("largest", given, heard)
        while any(thread.is_alive() for thread in threads):
            most_bytes = max(most_bytes, inflight(server)[1])
            others[server.ask("GET", "/v2/health/live")[0]] += 1
        for _ in range(GRPC_CLIENTS):
            assert arrived.acquire(timeout=PATIENCE_S)
    assert Counter(client.status for client in clients) == {200: HTTP_CLIENTS}
    assert all(not text or "too many requests in flight" in text for text in messages)
    assert set(others) == {200}
    assert most_bytes <= BUDGET_BYTES
    assert memory_bytes(server, "VmHWM") - before_bytes < MOST_MORE_BYTES
    wait_until(lambda: inflight(server) == (0, 0))


def test_connections_that_hold_too_much_that_is_not_complete(server: ServeProcess) -> None:
    """Together 17 MiB of heads that do not end, where there is room for 16."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 60_000
    with ExitStack() as stack:
        for _ in range(300):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port), PATIENCE_S))
            client.sendall(head)
        wait_until(lambda: refused(server, "client_bytes") >= 1)
        assert server.ask("GET", "/v2/health/live")[0] == 200


def test_a_version_that_is_not_ready(server: ServeProcess) -> None:
    assert server.ask("POST", "/v2/repository/models/largest/unload", {})[0] == 200
    small = {"inputs": [tensor("INPUT0", "FP32", [1.0])]}
    wait_until(lambda: server.ask("GET", "/v2/models/largest/ready")[0] != 200)
    status, answer = server.ask("POST", "/v2/models/largest/versions/1/infer", small)
    assert (status, answer) == (503, {"error": "Request for unknown model: 'largest' version 1 is not at ready state"})
    wait_until(lambda: refused(server, "not_ready") == 1)
