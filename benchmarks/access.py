"""What access rules cost a small request: CPU time of the server, with and without them.

    python benchmarks/access.py [--rounds 40] [--requests 1000]

First the steps that a request takes because of the rules, by themselves. Then one process serves the shipped
`identity_fp32` (FP32[16]) three times: for clients that present nothing (`[anonymous]`); with an API key; with an API
key whose caller has all three limits. In turns, each server goes by its rules and as if it had none: so neither the
server makes a difference, nor the request, whose head is longer with a key. The client is a process of its own with one
connection a server; one request is in flight over HTTP, and eight over gRPC and in a stream. Run on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import trio
from tritonclient.grpc import service_pb2

from trireme.actors import InferenceServer
from trireme.actors.access_gate import LocalAccess
from trireme.api.access import AccessChecks, Identity
from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
from trireme.api.grpc.service import GrpcService
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.sockets.service import ServiceOptions
from trireme.engine.access.callers import Right
from trireme.engine.access.control import AccessControl
from trireme.engine.access.credentials import NO_CREDENTIAL, Credential, CredentialKind
from trireme.engine.access.keys import make_key
from trireme.engine.access.rules import read_rules
from trireme.engine.clock import SystemClock
from trireme.engine.options import ControlMode, ServerOptions

MODEL = "identity_fp32"
ROOT = Path(__file__).parents[1]
IN_FLIGHT = 8
INFER = Right.INFER
KEY, _DIGEST = make_key("bench", "s" * 64, bytes(16))
_CALLER = f'[[callers]]\nname = "bench"\ninfer = ["identity*"]\nkeys = [{{ id = "bench", hash = "{_DIGEST}" }}]\n'
_LIMITS = "[callers.limits]\nrequests-per-second = 1e9\nin-flight = 1000\nbytes-per-second = 1e12\n"


@dataclass(frozen=True)
class Case:
    """A server: its access file, and the key that its client presents."""

    name: str
    rules: str
    key: str = ""


CASES = (
    Case("anonymous", '[anonymous]\ninfer = ["identity*"]\n'),
    Case("API key", _CALLER, KEY),
    Case("API key, three limits", _CALLER + _LIMITS, KEY),
)


@dataclass(frozen=True)
class Served:
    """A running server: its ports by protocol, and what its front ends ask for rules."""

    ports: dict[str, int]
    contexts: tuple[Any, ...]
    checks: tuple[AccessChecks | None, ...]

    def rule(self, on: bool) -> None:
        """Go by the rules, or as without them; gRPC still looks up the caller when a call begins (0.05 µs)."""
        for context, checks in zip(self.contexts, self.checks, strict=True):
            context.access = checks if on else None


@asynccontextmanager
async def serving(case: Case) -> AsyncIterator[Served]:
    clock = SystemClock(trio.lowlevel.current_clock().current_time)
    access = LocalAccess(AccessControl(read_rules(case.rules, case.name), os.urandom(32), clock.now_s()), clock)
    options = ServerOptions(
        model_repository=(ROOT / "model_repository",),
        model_control_mode=ControlMode.EXPLICIT,
        startup_models=(MODEL,),
    )
    async with InferenceServer(options, access=access) as server, trio.open_nursery() as nursery:
        here = ("127.0.0.1:0",)
        by_grpc, by_http = GrpcApplication(server, GrpcOptions()), HttpApplication(server, HttpOptions())
        (grpc_port,) = await nursery.start(GrpcService(by_grpc.services, GrpcServiceOptions(here)).serve)
        (http_port,) = await nursery.start(HttpService(by_http, ServiceOptions(here)).serve)
        contexts = (by_grpc._context, by_http._context)
        ports = {"HTTP": http_port, "gRPC": grpc_port, "stream": grpc_port}
        yield Served(ports, contexts, tuple(each.access for each in contexts))
        nursery.cancel_scope.cancel()


# ---- the client's process: a line says which protocol, port, key, and how many requests ----


def ask_http(port: int, key: str, count: int, connections: dict[Any, Any]) -> None:
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16}]})
    header = f"X-API-Key: {key}\r\n" if key else ""
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\n{header}"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    client = connections.get(port)
    if client is None:
        client = connections[port] = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(count):
        client.sendall(request)
        answer = client.recv(65_536)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(answer.decode())


def grpc_request() -> bytes:
    request = service_pb2.ModelInferRequest(model_name=MODEL)  # type: ignore[attr-defined]
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(bytes(64))
    return request.SerializeToString()


def ask_grpc(port: int, key: str, count: int, connections: dict[Any, Any]) -> None:
    data = grpc_request()
    channel = connections.get(port)
    if channel is None:
        channel = connections[port] = grpc.insecure_channel(f"127.0.0.1:{port}")
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    metadata = (("x-api-key", key),) if key else ()
    for _ in range(count // IN_FLIGHT):
        for future in [call.future(data, metadata=metadata) for _ in range(IN_FLIGHT)]:
            future.result()


def ask_stream(port: int, key: str, count: int, connections: dict[Any, Any]) -> None:
    data = grpc_request()
    found = connections.get((port, "stream"))
    if found is None:
        messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        channel = connections[port, "channel"] = grpc.insecure_channel(f"127.0.0.1:{port}")
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = call(iter(messages.get, None), metadata=(("x-api-key", key),) if key else ())
        found = connections[port, "stream"] = messages, answers
    messages, answers = found
    for _ in range(count // IN_FLIGHT):
        for _ in range(IN_FLIGHT):
            messages.put(data)
        for _ in range(IN_FLIGHT):
            answer = next(answers)
        text = service_pb2.ModelStreamInferResponse.FromString(answer).error_message  # type: ignore[attr-defined]
        if text:
            raise SystemExit(text)


ASK = {"HTTP": ask_http, "gRPC": ask_grpc, "stream": ask_stream}


def client() -> None:
    connections: dict[Any, Any] = {}
    for line in sys.stdin:
        protocol, port, key, count = json.loads(line)
        ASK[protocol](port, key, count, connections)
        print(count, flush=True)


# ---- the measurement ----


@contextmanager
def client_process() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, __file__, "--client"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


async def cost_us(process: subprocess.Popen[str], protocol: str, port: int, key: str, count: int) -> float:
    """CPU time of this process a request, in microseconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    before_s = time.process_time()
    process.stdin.write(json.dumps([protocol, port, key, count]) + "\n")
    process.stdin.flush()
    if not await trio.to_thread.run_sync(process.stdout.readline):
        raise SystemExit("the client has failed")
    return (time.process_time() - before_s) / count * 1e6


class NoShare:
    """Stands for a request's share of the budget, which it has without rules, too."""

    def release(self, nbytes: int) -> None:
        pass


def steps() -> None:
    """Who it is, whether it may, and its limits, for a head that was seen before."""
    clock = SystemClock()
    for case in CASES:
        control = AccessControl(read_rules(case.rules, case.name), bytes(32), clock.now_s())
        gate = LocalAccess(control, clock)
        checks = AccessChecks(gate, "http", print)
        identity = Identity(Credential(CredentialKind.API_KEY, case.key.encode()) if case.key else NO_CREDENTIAL)
        control.identify(identity.credential, 0.0, 0.0)
        share: Any = NoShare()

        def request(
            checks: AccessChecks = checks, identity: Identity = identity, gate: LocalAccess = gate, share: Any = share
        ) -> None:
            caller = checks.known(identity)
            assert caller is not None
            assert caller.may(INFER, MODEL)
            gate.admit(caller, 64, share).release(64)

        times = timeit.repeat(request, number=20_000, repeat=15)
        print(f"steps {case.name:22} {min(times) / 20_000 * 1e6:7.2f} µs a request")


async def measure(rounds: int, requests: int) -> None:
    async with AsyncExitStack() as stack:
        servers = [(case, await stack.enter_async_context(serving(case))) for case in CASES]
        with client_process() as process:
            for protocol in ASK:
                figures: dict[str, list[tuple[float, float]]] = {case.name: [] for case in CASES}
                for number in range(-1, rounds):
                    for case, server in servers:
                        costs: dict[bool, float] = {}
                        for on in (False, True) if number % 2 else (True, False):
                            server.rule(on)
                            costs[on] = await cost_us(process, protocol, server.ports[protocol], case.key, requests)
                        if number >= 0:  # the first round warms up
                            figures[case.name].append((costs[False], costs[True]))
                show(protocol, figures)


def show(protocol: str, figures: dict[str, list[tuple[float, float]]]) -> None:
    for name, pairs in figures.items():
        base = statistics.median(without for without, _ in pairs)
        more = statistics.median(ruled - without for without, ruled in pairs)
        print(f"{protocol:6} {name:22} {base:7.1f} µs a request without rules, {more:+5.1f} µs with them")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=1000, help="of a round")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client()
    else:
        steps()
        trio.run(measure, options.rounds, options.requests)


if __name__ == "__main__":
    main()
