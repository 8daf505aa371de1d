"""What the server does with more than it can do.

    python benchmarks/overload.py [--only capacity storm bodies] [--seconds 5] [--output overload.json]
        [--batch-ms 30] [--queue-ms 200] [--apart] [--flags "--front-ends 1"]

- *capacity*: a model takes 30 ms for a batch of up to 8, so that it is the limit and not the CPU, as it is with 2 ms;
  its queue has 64 places and lets a request wait for 200 ms. A closed loop finds the peak. Then an open loop sends 1, 2
  and 5 times as many requests a second, whatever comes of them, over HTTP and gRPC. Goodput is what is answered with
  200 in a second. What is answered should take no longer than the queue's limits and a batch or two. The client, which
  takes a core at 5 times the capacity, runs on the same cores as the server; `--apart` gives the server and its model
  the first one, and the client the others.
- *storm*: 5,000 connections, as fast as they can be made; each asks once, and stays.
- *bodies*: 200 clients send 64 MiB each, all at once, to a server that may have 1 GiB in flight. They are slowed down
  at their sockets, and its memory stays within the budget. In the end they are refused: what is measured is their
  arrival.

A second client asks for small things every 4 ms during the last two. Other load on the machine makes ratios rough.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import attack_payloads as payloads
from attack import Memory, second_client
from bench.loop import TRANSPORTS
from rich.console import Console
from rich.table import Table
from servers import Server, machine, model_config, trireme, write_identity

from trireme.clients.connections import BUFFER_BYTES, SOURCES, LoadConnection

MIB = 1 << 20
WARM_UP_S = 1.0
BATCH = 8
QUEUE_PLACES = 64
FACTORS = (1.0, 2.0, 5.0)
CONNECTIONS = 300
"""Of the open loop: more than the model takes in, so that there is an idle one for each request."""

BUDGET_BYTES = 1 << 30
_MODEL_PY = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(BATCH_S)
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in inputs]
"""


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        seconds: of each load of `capacity`.
        batch_s: what its model takes for a batch.
        queue_s: how long a request may wait there.
        flags: of the server, beside those that a part needs.
        client_cores: those of the client of `capacity`; with them, the server has the first core. Empty: any.
    """

    seconds: float
    batch_s: float
    queue_s: float
    flags: tuple[str, ...] = ()
    client_cores: tuple[int, ...] = ()

    @property
    def model_py(self) -> str:
        return f"BATCH_S = {self.batch_s}\n{_MODEL_PY}"

    @property
    def queue(self) -> str:
        policy = f"max_queue_size: {QUEUE_PLACES} timeout_action: REJECT"
        policy += f" default_timeout_microseconds: {int(self.queue_s * 1e6)}"
        return f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}\n"


@dataclass
class Driven:
    """What an open or closed loop has seen.

    Attributes:
        offered: requests that were due.
        unsent: of these, those for which no connection was idle.
        good, refused: answers.
        goodput: good answers a second.
        p50_ms, p99_ms: of good answers.
    """

    offered: int = 0
    unsent: int = 0
    good: int = 0
    refused: int = 0
    goodput: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class OpenLoop:
    """Sends requests when they are due, on connections with one request each."""

    def __init__(self, port: int, transport: str, request: bytes, connections: int) -> None:
        self._request = request
        self._poller = select.epoll()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._open: dict[int, LoadConnection] = {}
        for number in range(connections):
            connection = TRANSPORTS[transport](port, number)
            self._open[connection.socket.fileno()] = connection
            self._poller.register(connection.socket, select.EPOLLIN)
        self._idle = deque(self._open.values())
        self._driven = Driven()
        self._times_ms: list[float] = []

    def run(self, rate: float, warm_up_s: float, seconds: float) -> Driven:
        """Drive.

        Args:
            rate: requests a second; 0 for a closed loop on all connections.
        """
        first_s = time.perf_counter()
        count_s, end_s = first_s + warm_up_s, first_s + warm_up_s + seconds
        due = 0
        counting = False
        while (now_s := time.perf_counter()) < end_s:
            if not counting and now_s >= count_s:
                counting, self._driven, self._times_ms = True, Driven(), []
            if rate:
                while due < (now_s - first_s) * rate:
                    due += 1
                    self._ask(now_s)
            else:
                while self._idle:
                    self._ask(now_s)
            self._hear(0.001)
        driven, times_ms = self._driven, sorted(self._times_ms)
        driven.goodput = driven.good / seconds
        if times_ms:
            driven.p50_ms, driven.p99_ms = times_ms[len(times_ms) // 2], times_ms[int(len(times_ms) * 0.99)]
        return driven

    def _ask(self, now_s: float) -> None:
        self._driven.offered += 1
        if not self._idle:
            self._driven.unsent += 1
            return
        connection = self._idle.popleft()
        connection.began_s = now_s
        connection.ask((self._request,))

    def _hear(self, patience_s: float) -> None:
        for descriptor, _ in self._poller.poll(patience_s):
            connection = self._open[descriptor]
            if not connection.receive(self._buffer):
                continue
            if connection.status:
                self._driven.refused += 1
            else:
                self._driven.good += 1
                self._times_ms.append((time.perf_counter() - connection.began_s) * 1e3)
            self._idle.append(connection)


def drive(server: Server, transport: str, rate: float, connections: int, settings: Settings) -> Driven:
    """An open loop in a process of its own."""
    port = server.http_port if transport == "http" else server.grpc_port
    told = json.dumps([port, transport, rate, connections, settings.seconds, settings.client_cores])
    done = subprocess.run([sys.executable, __file__, "--drive", told], stdout=subprocess.PIPE, check=True)
    return Driven(**json.loads(done.stdout))


def _driver(told: str) -> None:
    port, transport, rate, connections, seconds, cores = json.loads(told)
    if cores:
        os.sched_setaffinity(0, cores)
    http = transport == "http"
    request = payloads.infer_request("slow", *payloads.small_infer()) if http else payloads.grpc_small("slow")
    print(json.dumps(asdict(OpenLoop(port, transport, request, connections).run(rate, WARM_UP_S, seconds))))


@dataclass
class Outcome:
    """Of one part.

    Attributes:
        rows: what is printed, by column.
        complaints: what should not have been.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def capacity(folder: Path, settings: Settings) -> Outcome:
    """Peak, and goodput beyond it."""
    version = folder / "slow" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(settings.model_py)
    tensors = {"INPUT0": ("FP32", (16,))}, {"OUTPUT0": ("FP32", (16,))}
    (folder / "slow" / "config.pbtxt").write_text(model_config("slow", "python", BATCH, *tensors) + settings.queue)
    outcome = Outcome()
    seconds = settings.seconds
    longest_ms = (settings.queue_s + 3 * settings.batch_s) * 1e3
    with trireme(folder, *settings.flags, grpc=True) as server:
        if settings.client_cores:
            os.sched_setaffinity(0, settings.client_cores)  # to look at memory takes a tenth of a core
        for transport in TRANSPORTS:
            peak = drive(server, transport, 0.0, 4 * BATCH, settings)
            outcome.rows.append({"what": f"{transport}, closed loop", **_shown(peak, peak.goodput)})
            for factor in FACTORS:
                before_s = server.process.cpu_times()
                with Memory(server) as memory:
                    driven = drive(server, transport, factor * peak.goodput, CONNECTIONS, settings)
                more_mib = (memory.peak_bytes - memory.before_bytes) / MIB
                after_s = server.process.cpu_times()
                cpu = (after_s.user + after_s.system - before_s.user - before_s.system) / (seconds + WARM_UP_S)
                what = f"{transport}, {factor:g} times"
                row = {"what": what, **_shown(driven, peak.goodput), "memory MiB": f"{more_mib:+.0f}"}
                outcome.rows.append({**row, "server's CPU": f"{cpu:.0%}"})
                if factor > 1 and driven.goodput < 0.9 * peak.goodput:
                    outcome.complaints.append(f"{what}: goodput is {driven.goodput / peak.goodput:.0%} of the peak")
                if driven.p99_ms > longest_ms:
                    outcome.complaints.append(f"{what}: p99 is {driven.p99_ms:.0f} ms, beyond {longest_ms:.0f} ms")
        lines = server.get("/metrics", metrics=True).decode().splitlines()
    outcome.rows += [{"what": line} for line in lines if line.startswith('trireme_refused_total{model="slow"')]
    return outcome


def _shown(driven: Driven, peak: float) -> dict[str, Any]:
    return {
        "offered": driven.offered,
        "unsent": driven.unsent,
        "refused": driven.refused,
        "goodput": f"{driven.goodput:.0f}",
        "of the peak": f"{driven.goodput / max(1.0, peak):.0%}",
        "p50 ms": f"{driven.p50_ms:.0f}",
        "p99 ms": f"{driven.p99_ms:.0f}",
    }


def storm(folder: Path, settings: Settings, count: int = 5_000) -> Outcome:
    """Connections, one after the other without a pause."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    write_identity(folder, "small", 16, max_batch_size=8)
    request = payloads.http_request("GET", "/v2/health/live", [])
    failed = 0
    with trireme(folder, *settings.flags) as server, Memory(server) as memory, contextlib.ExitStack() as stack:
        seen = stack.enter_context(second_client(server.http_port))
        began_s = time.perf_counter()
        clients: list[socket.socket] = []
        for number in range(count):
            source = (f"127.0.1.{number % SOURCES + 1}", 0)
            try:
                client = stack.enter_context(
                    socket.create_connection(("127.0.0.1", server.http_port), 10, source_address=source)
                )
                client.sendall(request)
                clients.append(client)
            except OSError:
                failed += 1
        for client in clients:
            client.settimeout(10)
            try:
                failed += not client.recv(1024).startswith(b"HTTP/1.1 200")
            except OSError:
                failed += 1
        took_s = time.perf_counter() - began_s
    more_mib = (memory.peak_bytes - memory.before_bytes) / MIB
    row = {"what": f"{count} connections", "a second": f"{count / took_s:.0f}", "failed": failed}
    row |= {"memory MiB": f"{more_mib:+.0f}", "second client ms": f"{seen.longest_ms:.0f}"}
    complaints = [f"{failed} connections were not answered"] if failed else []
    if seen.failures:
        complaints.append(f"{seen.failures} requests of another client failed")
    return Outcome([row], complaints)


def bodies(folder: Path, settings: Settings, count: int = 200, mib: int = 64) -> Outcome:
    """Large bodies, all at once."""
    write_identity(folder, "small", 16, max_batch_size=8)
    write_identity(folder, "big", -1, max_batch_size=8)
    tensor: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": [1, mib * MIB // 8]}
    tensor["parameters"] = {"binary_data_size": mib * MIB}  # twice what the shape says: refused, when it has come
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = [("Inference-Header-Content-Length", str(len(head))), ("Content-Length", str(len(head) + mib * MIB))]
    start = payloads.http_request("POST", "/v2/models/big/infer", headers) + head
    flags = ("--max-inflight-bytes", str(BUDGET_BYTES), *settings.flags)
    with trireme(folder, *flags) as server, Memory(server) as memory, second_client(server.http_port) as seen:
        began_s = time.perf_counter()
        statuses = _send_all(server.http_port, start, count, mib * MIB)
        took_s = time.perf_counter() - began_s
        alive = server.is_running()
    more_mib = (memory.peak_bytes - memory.before_bytes) / MIB
    row = {"what": f"{count} times {mib} MiB", "took s": f"{took_s:.0f}", "answers": json.dumps(statuses)}
    row |= {"MiB a second": f"{count * mib / took_s:.0f}", "memory MiB": f"{more_mib:+.0f}"}
    row |= {"of the budget": f"{more_mib * MIB / BUDGET_BYTES:.0%}", "second client ms": f"{seen.longest_ms:.0f}"}
    complaints = [] if statuses == {"400": count} else [f"answers: {statuses}"]
    if more_mib * MIB > 1.1 * BUDGET_BYTES:
        complaints.append(f"{more_mib:.0f} MiB for a budget of {BUDGET_BYTES / MIB:.0f} MiB")
    if seen.failures:
        complaints.append(f"{seen.failures} requests of another client failed")
    return Outcome([row], complaints if alive else [*complaints, "the server has died"])


def _send_all(port: int, start: bytes, count: int, nbytes: int, patience_s: float = 300.0) -> dict[str, int]:
    """Clients that send at once, as fast as they may; how many got which status."""
    zeros = memoryview(bytes(MIB))
    poller = select.epoll()
    left: dict[int, tuple[socket.socket, int]] = {}
    for number in range(count):
        client = socket.create_connection(("127.0.0.1", port), 10, source_address=(f"127.0.1.{number % 100 + 1}", 0))
        client.sendall(start)
        client.setblocking(False)
        left[client.fileno()] = client, nbytes
        poller.register(client, select.EPOLLIN | select.EPOLLOUT)
    statuses: dict[str, int] = {}
    ends_s = time.perf_counter() + patience_s
    while left and time.perf_counter() < ends_s:
        for descriptor, what in poller.poll(1.0):
            client, more = left[descriptor]
            if what & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                status = _status(client)
                statuses[status] = statuses.get(status, 0) + 1
                poller.unregister(client)
                del left[descriptor]
                client.close()
            elif more:
                with contextlib.suppress(OSError):
                    left[descriptor] = client, more - client.send(zeros[:more])
            else:
                poller.modify(client, select.EPOLLIN)
    if left:
        statuses["none"] = len(left)
    return statuses


def _status(client: socket.socket) -> str:
    try:
        return client.recv(MIB).split(b" ", 2)[1].decode()
    except (OSError, IndexError):
        return "closed"


PARTS = {"capacity": capacity, "storm": storm, "bodies": bodies}


def show(outcome: Outcome) -> Iterator[Table | str]:
    """A table of rows with several columns; the others as they are."""
    full = [row for row in outcome.rows if len(row) > 1]
    names = list(dict.fromkeys(name for row in full for name in row))
    table = Table(*names)
    for row in full:
        table.add_row(*(str(row.get(name, "")) for name in names))
    yield table
    yield from (str(row["what"]) for row in outcome.rows if len(row) == 1)
    yield from (f"[red]{complaint}[/red]" for complaint in outcome.complaints)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--batch-ms", type=float, default=30.0, help="what the model of capacity takes for a batch")
    parser.add_argument("--queue-ms", type=float, default=200.0, help="how long a request may wait in its queue")
    parser.add_argument("--apart", action="store_true", help="the server of capacity has the first core to itself")
    parser.add_argument("--flags", type=shlex.split, default=[], help="of trireme serve")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive is not None:
        _driver(given.drive)
        return
    first, *others = sorted(os.sched_getaffinity(0))
    settings = Settings(
        given.seconds, given.batch_ms / 1e3, given.queue_ms / 1e3, tuple(given.flags), tuple(others) * given.apart
    )
    if given.apart:
        os.sched_setaffinity(0, {first})  # which the server inherits
    outcomes: dict[str, Outcome] = {}
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            outcomes[name] = PARTS[name](Path(folder), settings)
        for each in show(outcomes[name]):
            Console(width=160).print(each)
    if given.output is not None:
        told = {"machine": machine(), **{name: asdict(outcome) for name, outcome in outcomes.items()}}
        given.output.write_text(json.dumps(told, indent=1) + "\n")
    raise SystemExit(any(outcome.complaints for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
