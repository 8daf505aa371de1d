"""What a shadow costs those whose requests are copied: latency of the real ones, with a shadow of 100 % and without.

    python benchmarks/shadow.py [--rounds 7] [--seconds 0.3] [--loads 1 16]

One process serves the shipped `identity_fp32` (FP32[16], executed in place) and `digits` network behind a route each.
In turns the route has a shadow, a second copy of the model, and has none. The client is a process of its own: one
request in flight, sixteen, and an open loop at a third of what sixteen reach, in which latency counts from the moment
when a request was due. Shown are medians over the rounds, the ratios of each pair of turns, and how many requests were
copied. Run on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import trio
from tritonclient.grpc import service_pb2

from trireme.actors import InferenceServer
from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
from trireme.api.grpc.service import GrpcService
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.sockets.service import ServiceOptions
from trireme.engine.options import ControlMode, ServerOptions

ROOT = Path(__file__).parents[1]
LOADS = ("1", "16", "open loop")
INPUTS = {"identity_fp32": ("INPUT0", [1, 16]), "digits": ("IMAGE", [1, 8, 8])}
POOL = 64
"""Connections of the open loop."""


def copy_models(target: Path) -> None:
    """Each model twice, under its name and as its shadow."""
    for name in INPUTS:
        for copy in (name, f"{name}_shadow"):
            shutil.copytree(ROOT / "model_repository" / name, target / copy)
            config = target / copy / "config.pbtxt"
            config.write_text(config.read_text().replace(f'name: "{name}"', f'name: "{copy}"'))


@asynccontextmanager
async def serving(repository: Path) -> AsyncIterator[tuple[InferenceServer, dict[str, int]]]:
    options = ServerOptions(
        model_repository=(repository,), model_control_mode=ControlMode.EXPLICIT, startup_models=("*",)
    )
    async with InferenceServer(options) as server, trio.open_nursery() as nursery:
        here = ("127.0.0.1:0",)
        by_grpc, by_http = GrpcApplication(server, GrpcOptions()), HttpApplication(server, HttpOptions())
        (grpc_port,) = await nursery.start(GrpcService(by_grpc.services, GrpcServiceOptions(here)).serve)
        (http_port,) = await nursery.start(HttpService(by_http, ServiceOptions(here)).serve)
        yield server, {"HTTP": http_port, "gRPC": grpc_port}
        nursery.cancel_scope.cancel()


# ---- the client's process: a line says protocol, port, model, requests in flight, rate (0: closed loop), seconds ----


def data_of(model: str) -> np.ndarray:
    return np.random.default_rng(1).uniform(0, 16, INPUTS[model][1]).astype(np.float32)


class HttpLoad:
    """Requests over one connection each."""

    def __init__(self, port: int, model: str) -> None:
        name, shape = INPUTS[model]
        tensor = {"name": name, "shape": shape, "datatype": "FP32", "data": data_of(model).ravel().tolist()}
        body = json.dumps({"inputs": [tensor]})
        head = f"POST /v2/models/r_{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = (head + body).encode()
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._free: list[socket.socket] = []
        for _ in range(POOL):
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(client, selectors.EVENT_READ)
            self._free.append(client)

    def run(self, in_flight: int, rate: float, seconds: float) -> list[float]:
        began, times, due = {}, [], Arrivals(rate)
        start = now = time.perf_counter()
        while now < start + seconds or began:
            if now < start + seconds:
                if rate:
                    while self._free and due.next_s <= now - start:
                        client = self._free.pop()
                        began[client] = start + due.take()
                        client.sendall(self._request)
                else:
                    while len(began) < in_flight:
                        client = self._free.pop()
                        began[client] = time.perf_counter()
                        client.sendall(self._request)
            wait = max(0.0, start + due.next_s - time.perf_counter()) if rate else None
            for key, _ in self._selector.select(wait):
                client: Any = key.fileobj
                if not client.recv(65_536).startswith(b"HTTP/1.1 200"):
                    raise SystemExit("refused")
                times.append(time.perf_counter() - began.pop(client))
                self._free.append(client)
            now = time.perf_counter()
        return times


class Arrivals:
    """Of an open loop, at random."""

    def __init__(self, rate: float) -> None:
        self._rate, self._draw, self.next_s = rate, random.Random(2), 0.0

    def take(self) -> float:
        due_s, self.next_s = self.next_s, self.next_s + self._draw.expovariate(self._rate)
        return due_s


class GrpcLoad:
    """Requests over one channel."""

    def __init__(self, port: int, model: str) -> None:
        name, shape = INPUTS[model]
        request = service_pb2.ModelInferRequest(model_name=f"r_{model}")  # type: ignore[attr-defined]
        request.inputs.add(name=name, datatype="FP32", shape=shape)
        request.raw_input_contents.append(data_of(model).tobytes())
        self._request = request.SerializeToString()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    def run(self, in_flight: int, rate: float, seconds: float) -> list[float]:
        times: list[float] = []
        if rate:
            return self._open(rate, seconds, times)
        end_s = time.perf_counter() + seconds
        if in_flight == 1:
            while (began := time.perf_counter()) < end_s:
                self._call(self._request)
                times.append(time.perf_counter() - began)
            return times
        threads = threading.Semaphore(0)

        def go() -> None:
            began = time.perf_counter()
            future = self._call.future(self._request)

            def done(_future: Any) -> None:
                now = time.perf_counter()
                times.append(now - began)
                if now < end_s:
                    go()
                else:
                    threads.release()

            future.add_done_callback(done)

        for _ in range(in_flight):
            go()
        for _ in range(in_flight):
            threads.acquire()
        return times

    def _open(self, rate: float, seconds: float, times: list[float]) -> list[float]:
        due, start, futures = Arrivals(rate), time.perf_counter(), []
        while due.next_s < seconds:
            wait = start + due.next_s - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            began = start + due.take()
            future = self._call.future(self._request)
            future.add_done_callback(lambda _future, began=began: times.append(time.perf_counter() - began))
            futures.append(future)
        for future in futures:
            future.result()
        return times


def client() -> None:
    loads: dict[tuple[str, str], Any] = {}
    for line in sys.stdin:
        protocol, port, model, in_flight, rate, seconds = json.loads(line)
        if (protocol, model) not in loads:
            loads[protocol, model] = (HttpLoad if protocol == "HTTP" else GrpcLoad)(port, model)
        times = sorted(loads[protocol, model].run(in_flight, rate, seconds))
        print(json.dumps([len(times), times[len(times) // 2], times[int(len(times) * 0.99)]]), flush=True)


# ---- the measurement ----


@dataclass
class Turns:
    """Of one case: p50 and p99 of each turn, seconds, without and with a shadow."""

    p50: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    p99: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    requests: int = 0
    copies: int = 0

    def ratio(self, figures: dict[bool, list[float]]) -> float:
        return statistics.median(on / off for off, on in zip(figures[False], figures[True], strict=True))


@contextmanager
def client_process() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, __file__, "--client"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


async def measure(rounds: int, seconds: float, chosen: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy_models(Path(folder))
        async with serving(Path(folder)) as (server, ports):
            with client_process() as process:
                for model in INPUTS:
                    for protocol, port in ports.items():
                        await _measure_case(server, process, (protocol, port, model), rounds, seconds, chosen)


async def _measure_case(
    server: InferenceServer,
    process: subprocess.Popen[str],
    what: tuple[str, int, str],
    rounds: int,
    seconds: float,
    chosen: Sequence[str],
) -> None:
    protocol, _, model = what
    await _route(server, model, False)
    await _ask(process, *what, 16, 0, seconds)
    count, _, _ = await _ask(process, *what, 16, 0, seconds)
    loads = {"1": (1, 0.0), "16": (16, 0.0), "open loop": (0, count / seconds / 3)}
    for name, (in_flight, rate) in loads.items():
        if name not in chosen:
            continue
        turns = Turns()
        for number in range(rounds):
            for on in (False, True) if number % 2 else (True, False):
                await _route(server, model, on)
                count, p50_s, p99_s = await _ask(process, *what, in_flight, rate, seconds)
                turns.p50[on].append(p50_s)
                turns.p99[on].append(p99_s)
                if on:
                    shadow = server.routes.status(f"r_{model}")[0]["state"]["shadow"]
                    assert not shadow["differs"] + shadow["failed"] + shadow["timed_out"], shadow
                    turns.requests += count
                    turns.copies += shadow["agrees"]
        p50_us, p99_us = (statistics.median(each[False]) * 1e6 for each in (turns.p50, turns.p99))
        print(
            f"{model:14} {protocol:5} {name:10} p50 {p50_us:6.0f} µs x {turns.ratio(turns.p50):.3f}   "
            f"p99 {p99_us:6.0f} µs x {turns.ratio(turns.p99):.3f}   {turns.copies} of {turns.requests} copied",
            flush=True,
        )


async def _route(server: InferenceServer, model: str, shadowed: bool) -> None:
    route: dict[str, Any] = {"targets": {model: 100}}
    if shadowed:
        route["shadow"] = {"target": f"{model}_shadow", "percent": 100}
    await server.management.set_route(f"r_{model}", route)


async def _ask(process: subprocess.Popen[str], *words: Any) -> tuple[int, float, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(words) + "\n")
    process.stdin.flush()
    answer = await trio.to_thread.run_sync(process.stdout.readline)
    if not answer:
        raise SystemExit("the client has failed")
    count, p50_s, p99_s = json.loads(answer)
    return count, p50_s, p99_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS, help="requests in flight")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client()
    else:
        trio.run(measure, options.rounds, options.seconds, options.loads)


if __name__ == "__main__":
    main()
