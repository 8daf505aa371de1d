"""Adaptive batching against three fixed settings, in real time: what of an open-loop load is answered in time.

    python benchmarks/adaptive_real.py [--seconds 10]

Starts `trireme serve` with a model in Python that sleeps as long as a batch costs (40 ms, and 5 ms a row: at most 133
rows a second, in batches of 16), four times: with an objective of 400 ms, and with three fixed settings. Each is sent
requests of one row over HTTP by the same plan, at 0.7 times and at 3 times what can be executed, whether the others are
answered or not. In time is what the client has after at most 500 ms, which leaves 100 ms for everything but queue and
execution.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from servers import Server, model_config, trireme

COST = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.040 + 0.005 * len(requests))
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in inputs]
"""
CAPACITY = 133.0
IN_TIME_S = 0.5
MOST_CONNECTIONS = 512

SETTINGS = {
    "objective": 'dynamic_batching { }\nparameters { key: "LATENCY_OBJECTIVE_MS" value { string_value: "400" } }\n',
    "defaults": "dynamic_batching { }\n",
    "delayed": "dynamic_batching { max_queue_delay_microseconds: 100000 }\n",
    "limited": "dynamic_batching { default_queue_policy { max_queue_size: 32 } }\n",
}
"""By the name of the model."""

_TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [_TENSOR]}).encode()


@dataclass
class Outcome:
    """What became of the requests of a load."""

    latencies_s: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0

    @property
    def in_time(self) -> int:
        return sum(latency_s <= IN_TIME_S for latency_s in self.latencies_s)


class Client:
    """Sends requests, each on a connection that is free."""

    def __init__(self, port: int, model: str) -> None:
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
        self._request = head.encode() + BODY
        self._port = port
        self._free: list[trio.SocketStream] = []
        self._room = trio.CapacityLimiter(MOST_CONNECTIONS)
        self.outcome = Outcome()

    async def ask(self) -> None:
        began = trio.current_time()
        async with self._room:
            stream = self._free.pop() if self._free else await trio.open_tcp_stream("127.0.0.1", self._port)
            await stream.send_all(self._request)
            status = await self._answer(stream)
            self._free.append(stream)
        if status == 200:
            self.outcome.latencies_s.append(trio.current_time() - began)
        elif status == 503:
            self.outcome.refused += 1
        else:
            self.outcome.failed += 1

    async def _answer(self, stream: trio.SocketStream) -> int:
        """Read one answer, and give back its status."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive_some()
        head, _, body = received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
        missing = int(fields[b"content-length"]) - len(body)
        while missing > 0:
            missing -= len(await stream.receive_some())
        return int(head.split(b" ", 2)[1])

    async def close(self) -> None:
        for stream in self._free:
            await stream.aclose()


async def load(port: int, model: str, rate: float, seconds: float) -> Outcome:
    """The plan is the same for all models."""
    chance = random.Random(int(rate))
    client = Client(port, model)
    async with trio.open_nursery() as nursery:
        at_s = began = trio.current_time()
        while at_s < began + seconds:
            await trio.sleep_until(at_s)
            nursery.start_soon(client.ask)
            at_s += chance.expovariate(rate)
    await client.close()
    return client.outcome


@contextmanager
def serving() -> Iterator[Server]:
    tensor = ("FP32", (4,))
    with tempfile.TemporaryDirectory() as directory:
        for name, batching in SETTINGS.items():
            version = Path(directory) / name / "1"
            version.mkdir(parents=True)
            (version / "model.py").write_text(COST)
            config = model_config(name, "python", 16, {"INPUT0": tensor}, {"OUTPUT0": tensor}) + batching
            (version.parent / "config.pbtxt").write_text(config)
        with trireme(Path(directory)) as server:
            yield server


def main() -> None:
    parser = argparse.ArgumentParser(description="Adaptive batching beside fixed settings, in real time.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    options = parser.parse_args()
    print("| load | model | sent | in time | late | refused | p99 ms |\n|---|---|---|---|---|---|---|")
    with serving() as server:
        for times in (0.7, 3.0):
            for model in SETTINGS:
                outcome = trio.run(load, server.http_port, model, times * CAPACITY, options.seconds)
                answered = sorted(outcome.latencies_s)
                sent = len(answered) + outcome.refused + outcome.failed
                p99_ms = answered[int(0.99 * len(answered))] * 1e3 if answered else 0.0
                late = len(answered) - outcome.in_time
                cells = f"{sent} | {outcome.in_time} | {late} | {outcome.refused} | {p99_ms:.0f}"
                print(f"| {times:g} × capacity | {model} | {cells} |", flush=True)
                if outcome.failed:
                    raise SystemExit(f"{outcome.failed} requests failed")


if __name__ == "__main__":
    main()
