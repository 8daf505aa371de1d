"""Large tensors: how many bytes a second, and what a request costs the server.

What `large_http.py` and `large_grpc.py` have in common. An identity model of FP32[1048576]: 4 MiB go in and 4 MiB come
out, with one request in flight on each connection. Trireme serves it on ONNX Runtime, the real Triton on its python
backend, in turn. The client is this process; its threads copy as little as can be.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from onnx import TensorProto, helper, save_model
from rich.console import Console
from rich.table import Table
from servers import Server, identity_config, machine, trireme, triton, write_identity

MODEL = "identity_large"
MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """One server, measured once. Mebibytes count both ways; CPU time is the server's."""

    server: str
    connections: int
    requests: int
    mib_per_s: float
    p50_ms: float
    cpu_ms: float


class Client(ABC):
    """One connection on which the same request is sent again and again."""

    data: bytes

    def __init__(self) -> None:
        self.times_s: list[float] = []

    @abstractmethod
    def ask(self) -> bytes | memoryview:
        """One request; the response, which the next one may overwrite. It ends with the output tensor."""

    @abstractmethod
    def close(self) -> None: ...

    def check(self) -> None:
        if not bytes(self.ask()).endswith(self.data):
            raise SystemExit("the answer is not what was sent")

    def keep_asking(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            self.ask()
            self.times_s.append(time.monotonic() - began_s)


Connect = Callable[[Server, bytes], Client]
"""Makes a client of a server that sends these bytes."""


def measure(server: Server, connections: int, connect: Connect, options: argparse.Namespace) -> Run:
    clients = [connect(server, payload(options.elements)) for _ in range(connections)]
    for client in clients:
        client.check()
    cpu_before_s = server.cpu_s()
    began_s = time.monotonic()
    threads = [threading.Thread(target=each.keep_asking, args=(began_s + options.seconds,)) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.monotonic() - began_s
    cpu_s = server.cpu_s() - cpu_before_s
    times_s = [each for client in clients for each in client.times_s]
    for client in clients:
        client.close()
    requests = len(times_s)
    moved_mib = 2 * 4 * options.elements * requests / MIB
    p50_ms = statistics.median(times_s) * 1000
    return Run(server.name, connections, requests, moved_mib / wall_s, p50_ms, cpu_s / requests * 1000)


def payload(elements: int) -> bytes:
    """FP32 numbers, half of whose bytes are noise."""
    return os.urandom(elements * 2) + bytes(elements * 2)


def write_identity_for_trireme(repository: Path, elements: int) -> None:
    version = repository / MODEL / "1"
    version.mkdir(parents=True)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [elements]) for name in ("INPUT0", "OUTPUT0")]
    graph = helper.make_graph([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], MODEL, tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save_model(model, str(version / "model.onnx"))
    one_thread = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'
    config = identity_config(MODEL, "onnxruntime", elements, max_batch_size=0) + one_thread
    (repository / MODEL / "config.pbtxt").write_text(config)


def show(console: Console, runs: list[Run], protocol: str) -> None:
    table = Table(title=f"identity over {protocol}, raw tensors, medians")
    for heading in ("connections", "server", "MiB/s", "p50 ms", "server CPU ms/request"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for connections, name in dict.fromkeys((run.connections, run.server) for run in runs):
        same = [run for run in runs if (run.connections, run.server) == (connections, name)]
        values = [statistics.median(getattr(run, field) for run in same) for field in ("mib_per_s", "p50_ms", "cpu_ms")]
        table.add_row(str(connections), name, f"{values[0]:,.0f}", f"{values[1]:.2f}", f"{values[2]:.2f}")
    console.print(table)


def compare(description: str | None, protocol: str, connect: Connect) -> None:
    """Read the options, measure both servers in turn, print and write what came out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton-command", default=os.environ.get("TRITON_COMMAND"), help="or $TRITON_COMMAND")
    parser.add_argument("--elements", type=int, default=MIB, help="FP32 numbers in the tensor")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--output", type=Path, help="write every run there, as JSON")
    options = parser.parse_args()
    console = Console()
    before = machine()
    with ExitStack() as stack:
        ours = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_identity_for_trireme(ours, options.elements)
        grpc = protocol != "HTTP"
        servers = [stack.enter_context(trireme(ours, grpc=grpc))]
        if options.triton_command:
            theirs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_identity(theirs, MODEL, options.elements, max_batch_size=0)
            servers.append(stack.enter_context(triton(options.triton_command, theirs, grpc=grpc)))
        runs = [
            measure(server, connections, connect, options)
            for connections in options.connections
            for _ in range(options.alternations)
            for server in servers
        ]
    show(console, runs, protocol)
    console.print(f"{before['cores']} cores; load average {before['load_average'][0]} before")
    if options.output:
        result = {"machine": {"before": before, "after": machine()}, "runs": [asdict(run) for run in runs]}
        options.output.write_text(json.dumps(result, indent=1) + "\n")
