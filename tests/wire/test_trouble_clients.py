"""Many clients at once, half of them wrong: each gets the answer to its own request, and the counts add up."""

from __future__ import annotations

import http.client
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from repository_models import link_models
from serve_process import PATIENCE_S, ServeProcess, serve_process

CLIENTS = 64
REQUESTS = 50

Outcome = str
"""``success``, ``fail`` (accepted, then failed by the model) or ``refused``; with the model's name."""


class Client:
    """One keep-alive connection; each of its methods makes a request of one kind and checks the answer.

    Every request carries numbers and an ID of its own, so an answer to another request is noticed.
    """

    def __init__(self, port: int, number: int) -> None:
        self.random = random.Random(number)
        self.number = number
        self.sent = 0
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def post(self, model: str, head: dict[str, Any] | bytes, data: bytes = b"") -> tuple[int, Any, bytes]:
        """Status, JSON and binary data of the answer."""
        self.sent += 1
        text = head if isinstance(head, bytes) else json.dumps(head).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))} if data else {}
        self.connection.request("POST", f"/v2/models/{model}/infer", text + data, headers)
        response = self.connection.getresponse()
        body = response.read()
        length = int(response.headers.get("Inference-Header-Content-Length", len(body)))
        return response.status, json.loads(body[:length]), body[length:]

    def numbers(self, count: int) -> list[int]:
        return [self.random.randrange(1_000_000) for _ in range(count)]

    def sum_as_json(self) -> tuple[str, Outcome]:
        a, b = self.numbers(16), self.numbers(16)
        name = f"{self.number}/{self.sent}"
        pairs = (("INPUT0", a), ("INPUT1", b))
        inputs = [{"name": i, "datatype": "INT32", "shape": [1, 16], "data": data} for i, data in pairs]
        status, answer, _ = self.post("simple", {"id": name, "inputs": inputs})
        assert (status, answer["id"]) == (200, name)
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert outputs["OUTPUT0"] == [x + y for x, y in zip(a, b, strict=True)]
        assert outputs["OUTPUT1"] == [x - y for x, y in zip(a, b, strict=True)]
        return "simple", "success"

    def identity_in_binary(self) -> tuple[str, Outcome]:
        rows = self.random.randint(1, 4)
        values = np.array(self.numbers(16 * rows), np.float32)
        form = {"binary_data_size": values.nbytes}
        head = {
            "id": f"{self.number}/{self.sent}",
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [rows, 16], "parameters": form}],
            "parameters": {"binary_data_output": True},
        }
        status, answer, data = self.post("identity_fp32", head, values.tobytes())
        assert (status, answer["id"]) == (200, head["id"])
        assert answer["outputs"][0]["shape"] == [rows, 16]
        assert data == values.tobytes()
        return "identity_fp32", "success"

    def wrong_shape(self) -> tuple[str, Outcome]:
        wrong = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 15], "data": self.numbers(15)}
        status, answer, _ = self.post("identity_fp32", {"inputs": [wrong]})
        assert status == 400
        assert "unexpected shape for input 'INPUT0'" in answer["error"]
        return "identity_fp32", "refused"

    def no_such_model(self) -> tuple[str, Outcome]:
        name = f"model_{self.number}_{self.sent}"
        status, answer, _ = self.post(name, {"inputs": []})
        assert (status, answer) == (404, {"error": f"Request for unknown model: '{name}' is not found"})
        return "nobody", "refused"

    def no_json(self) -> tuple[str, Outcome]:
        status, answer, _ = self.post("simple", b'{"inputs": [')
        assert status == 500
        assert answer["error"].startswith("failed to parse the request JSON buffer: ")
        return "simple", "refused"

    def no_text(self) -> tuple[str, Outcome]:
        """BYTES that are not UTF-8: accepted, and failed by the backend."""
        data = b"\x02\x00\x00\x00\xff\xfe"
        form = {"binary_data_size": len(data)}
        head = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "parameters": form}]}
        status, answer, _ = self.post("simple_identity", head, data)
        assert status == 400
        assert "INPUT0" in answer["error"]
        return "simple_identity", "fail"

    def text(self) -> tuple[str, Outcome]:
        word = f"{self.number}/{self.sent} äöü"
        head = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 2], "data": [word, ""]}]}
        status, answer, _ = self.post("simple_identity", head)
        assert (status, answer["outputs"][0]["data"]) == (200, [word, ""])
        return "simple_identity", "success"

    def run(self) -> Counter[tuple[str, Outcome]]:
        """All requests of one client, in a random order of kinds; how often each outcome was had."""
        kinds: list[Callable[[], tuple[str, Outcome]]] = [
            self.sum_as_json,
            self.identity_in_binary,
            self.identity_in_binary,
            self.wrong_shape,
            self.no_such_model,
            self.no_json,
            self.no_text,
            self.text,
        ]
        try:
            return Counter(self.random.choice(kinds)() for _ in range(REQUESTS))
        finally:
            self.connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    models = ("simple", "identity_fp32", "simple_identity")
    with serve_process(link_models(tmp_path_factory.mktemp("models"), *models)) as server:
        yield server


def test_nothing_is_lost_and_nothing_is_mixed_up(server: ServeProcess) -> None:
    port = server.http_port
    with ThreadPoolExecutor(CLIENTS) as threads:
        outcomes = sum(threads.map(lambda number: Client(port, number).run(), range(CLIENTS)), Counter())
    assert outcomes.total() == CLIENTS * REQUESTS

    metrics = server.metrics()
    counted = 0
    for model in ("simple", "identity_fp32", "simple_identity"):
        (record,) = server.ask("GET", f"/v2/models/{model}/stats")[1]["model_stats"]
        statistics = record["inference_stats"]
        counted += statistics["success"]["count"] + statistics["fail"]["count"]
        assert statistics["success"]["count"] == outcomes[model, "success"] > 0
        assert statistics["fail"]["count"] == outcomes[model, "fail"]
        assert f'nv_inference_request_success{{model="{model}",version="1"}} {outcomes[model, "success"]}\n' in metrics
        assert f'nv_inference_pending_request_count{{model="{model}",version="1"}} 0\n' in metrics
        batches = {entry["batch_size"]: entry["compute_infer"]["count"] for entry in record["batch_stats"]}
        assert sum(batches.values()) == record["execution_count"]
    failed = outcomes["simple_identity", "fail"]
    reasons = [
        line for line in metrics.splitlines() if line.startswith('nv_inference_request_failure{model="simple_identity"')
    ]
    assert sum(int(line.rpartition(" ")[2]) for line in reasons) == failed > 0
    refused = sum(count for (_, outcome), count in outcomes.items() if outcome == "refused")
    assert counted + refused == CLIENTS * REQUESTS
    assert "Traceback" not in server.log
