"""Large tensors over HTTP: how many bytes a second, and what a request costs the server.

An identity model of FP32[1048576]: 4 MiB go in and 4 MiB come out, as binary tensors, over keep-alive connections
with one request in flight on each. Trireme serves it on ONNX Runtime, the real Triton on its python backend, in turn.

    python benchmarks/large_http.py --triton-command "tritonserver" [--elements 1048576] [--connections 1 4]

The client is this process; its threads copy as little as can be. Without --triton-command, Trireme is measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from onnx import TensorProto, helper, save_model
from rich.console import Console
from rich.table import Table
from servers import Server, identity_config, machine, trireme, triton, write_identity_for_triton

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


class Client:
    """One keep-alive connection that sends the same request again and again."""

    def __init__(self, port: int, elements: int) -> None:
        data = os.urandom(elements * 2) + bytes(elements * 2)
        tensor = {
            "name": "INPUT0",
            "datatype": "FP32",
            "shape": [elements],
            "parameters": {"binary_data_size": 4 * elements},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        lines = [
            f"POST /v2/models/{MODEL}/infer HTTP/1.1",
            "Host: localhost",
            f"Inference-Header-Content-Length: {len(head)}",
            f"Content-Length: {len(head) + len(data)}",
        ]
        self.data = data
        self._request = "\r\n".join([*lines, "", ""]).encode() + head + data
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray(len(data) + 65_536)
        self.times_s: list[float] = []

    def ask(self) -> memoryview:
        """One request; the response, a view that the next one overwrites."""
        began_s = time.monotonic()
        self._socket.sendall(self._request)
        view = memoryview(self._received)
        filled = 0
        total = len(view)
        while filled < total:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise SystemExit("the server closed the connection")
            if total == len(view):
                total = self._total(bytes(view[: filled + min(count, 4096)]), len(view))
            filled += count
        self.times_s.append(time.monotonic() - began_s)
        return view[:filled]

    def _total(self, start: bytes, unknown: int) -> int:
        """Bytes of the whole response, if its head is there."""
        end = start.find(b"\r\n\r\n")
        if end < 0:
            return unknown
        status, *headers = start[:end].decode().split("\r\n")
        if " 200 " not in status:
            raise SystemExit(f"the server answered {status}: {start[end:].decode(errors='replace')}")
        lengths = [line for line in headers if line.lower().startswith("content-length:")]
        return end + 4 + int(lengths[0].partition(":")[2])

    def check(self) -> None:
        if not bytes(self.ask()).endswith(self.data):
            raise SystemExit("the answer is not what was sent")
        self.times_s.clear()

    def keep_asking(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            self.ask()

    def close(self) -> None:
        self._socket.close()


def measure(server: Server, connections: int, options: argparse.Namespace) -> Run:
    clients = [Client(server.http_port, options.elements) for _ in range(connections)]
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


def show(console: Console, runs: list[Run]) -> None:
    table = Table(title="identity over HTTP, binary tensors, medians")
    for heading in ("connections", "server", "MiB/s", "p50 ms", "server CPU ms/request"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for connections, name in dict.fromkeys((run.connections, run.server) for run in runs):
        same = [run for run in runs if (run.connections, run.server) == (connections, name)]
        values = [statistics.median(getattr(run, field) for run in same) for field in ("mib_per_s", "p50_ms", "cpu_ms")]
        table.add_row(str(connections), name, f"{values[0]:,.0f}", f"{values[1]:.2f}", f"{values[2]:.2f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        servers = [stack.enter_context(trireme(ours))]
        if options.triton_command:
            theirs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_identity_for_triton(theirs, MODEL, options.elements, max_batch_size=0)
            servers.append(stack.enter_context(triton(options.triton_command, theirs)))
        runs = [
            measure(server, connections, options)
            for connections in options.connections
            for _ in range(options.alternations)
            for server in servers
        ]
    show(console, runs)
    console.print(f"{before['cores']} cores; load average {before['load_average'][0]} before")
    if options.output:
        result = {"machine": {"before": before, "after": machine()}, "runs": [asdict(run) for run in runs]}
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
