"""What a gateway costs, and which sequences survive it, beside nginx and haproxy as plain balancers.

    python benchmarks/gateway.py [--seconds 3] [--rounds 3]

Two servers with `identity_fp32` (FP32[16], executed in place) and `running_sum`, all on the cores of this machine.
Small HTTP requests, one and sixteen at a time, to one server itself, and to both through `trireme gateway`, and through
nginx and haproxy if they are installed. Shown are medians over the rounds, and the CPU time that what stands between
takes for a request. Then fifty interleaved sequences: those are broken of which a request fails, or gets a wrong sum.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from servers import free_port

ROOT = Path(__file__).parents[1]
SEQUENCES, STEPS = 50, 10
START_S = 60.0


@dataclass
class Target:
    """Where requests go: what it is called, its port, and the process that is paid for it."""

    name: str
    port: int
    process: psutil.Process | None


@dataclass
class Measured:
    """Of one round: requests a second, and microseconds."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets = list(open_targets(stack, folder))
        for connections in (1, 16):
            rounds: dict[str, list[Measured]] = {target.name: [] for target in targets}
            for _ in range(given.rounds):
                for target in targets:
                    rounds[target.name].append(measure(target, connections, given.seconds))
            print(f"\n{connections} at a time: requests/s, p50 and p99 in us, CPU time between in us a request")
            for name, found in rounds.items():
                shown = [
                    statistics.median(getattr(each, field) for each in found) for field in Measured.__annotations__
                ]
                print(f"  {name:8} {shown[0]:8.0f} {shown[1]:8.0f} {shown[2]:8.0f} {shown[3]:8.1f}")
        print(f"\nbroken sequences, of {SEQUENCES}")
        for target in targets:
            print(f"  {target.name:8} {broken_sequences(target)}")
    return 0


def open_targets(stack: ExitStack, folder: Path) -> Iterator[Target]:
    """Start everything."""
    http, grpc = [free_port(), free_port()], [free_port(), free_port()]
    trireme = str(Path(sys.executable).with_name("trireme"))
    common = ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", "--log-info", "false"]
    loads = ["--model-control-mode", "explicit", "--load-model", "identity_fp32", "--load-model", "running_sum"]
    for http_port, grpc_port in zip(http, grpc, strict=True):
        ports = ["--http-port", str(http_port), "--grpc-port", str(grpc_port), "--allow-metrics", "false"]
        repository = ["--model-repository", str(ROOT / "model_repository"), "--front-ends", "0"]
        stack.enter_context(started([trireme, "serve", *repository, *common, *loads, *ports], http_port))
    yield Target("direct", http[0], None)
    fleet = folder / "fleet.toml"
    fleet.write_text("".join(f'[replicas.r{port}]\naddress = "127.0.0.1:{port}"\n' for port in grpc))
    port = free_port()
    ports = ["--http-port", str(port), "--grpc-port", str(free_port()), "--allow-metrics", "false"]
    process = stack.enter_context(started([trireme, "gateway", "--fleet", str(fleet), *common, *ports], port))
    yield Target("gateway", port, psutil.Process(process.pid))
    for name, write, command in (
        ("nginx", write_nginx, ["nginx", "-c"]),
        ("haproxy", write_haproxy, ["haproxy", "-f"]),
    ):
        if shutil.which(name):
            port = free_port()
            config = folder / f"{name}.conf"
            config.write_text(write(port, http, folder))
            process = stack.enter_context(started([*command, str(config)], port))
            yield Target(name, port, psutil.Process(process.pid))


def write_nginx(port: int, servers: Sequence[int], folder: Path) -> str:
    backends = " ".join(f"server 127.0.0.1:{each};" for each in servers)
    return f"""
daemon off; master_process off; error_log {folder}/nginx.log; pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    keepalive_requests 10000000;
    upstream servers {{ {backends} keepalive 64; keepalive_requests 10000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://servers; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""


def write_haproxy(port: int, servers: Sequence[int], _folder: Path) -> str:
    backends = "\n".join(f"    server s{each} 127.0.0.1:{each}" for each in servers)
    return f"""
global
    nbthread 1
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 5s
    http-reuse always
frontend all
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    balance roundrobin
{backends}
"""


@contextmanager
def started(command: Sequence[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process, once it says through this port that it is ready."""
    process = subprocess.Popen(command)
    try:
        until_s = time.monotonic() + START_S
        while True:
            try:
                if Connection(port).ask(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 200:
                    break
            except OSError:
                pass
            if process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"not ready: {' '.join(command)}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()


class Connection:
    """One HTTP connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += self._receive()
        return int(head[9:12]), body

    def _receive(self) -> bytes:
        data = self._socket.recv(65_536)
        if not data:
            raise OSError("the connection was closed")
        return data


def infer_request(model: str, datatype: str, values: np.ndarray[Any, Any], **parameters: Any) -> bytes:
    """An inference with a binary input and a binary output."""
    name = "INPUT0" if model == "identity_fp32" else "INPUT"
    tensor = {
        "name": name,
        "shape": values.shape,
        "datatype": datatype,
        "parameters": {"binary_data_size": values.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True, **parameters}}).encode()
    return (
        (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(head) + values.nbytes}\r\n"
            f"Inference-Header-Content-Length: {len(head)}\r\n\r\n"
        ).encode()
        + head
        + values.tobytes()
    )


def measure(target: Target, connections: int, seconds: float) -> Measured:
    """Ask without a pause, on so many connections."""
    request = infer_request("identity_fp32", "FP32", np.zeros((1, 16), np.float32))
    times: list[list[float]] = [[] for _ in range(connections)]
    until_s = time.perf_counter() + seconds

    def ask(mine: list[float]) -> None:
        connection = Connection(target.port)
        began_s = time.perf_counter()
        while began_s < until_s:
            status, _ = connection.ask(request)
            assert status == 200
            now_s = time.perf_counter()
            mine.append(now_s - began_s)
            began_s = now_s

    before_s = cpu_s(target)
    threads = [threading.Thread(target=ask, args=(mine,)) for mine in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used_s = cpu_s(target) - before_s
    all_times = sorted(each for mine in times for each in mine)
    count = len(all_times)
    return Measured(
        count / seconds, all_times[count // 2] * 1e6, all_times[count * 99 // 100] * 1e6, used_s / count * 1e6
    )


def cpu_s(target: Target) -> float:
    if target.process is None:
        return 0.0
    used = target.process.cpu_times()
    return used.user + used.system


def broken_sequences(target: Target) -> int:
    """Ask for the steps of many sequences in a drawn order, on four connections."""
    chance = random.Random(7)
    connections = [Connection(target.port) for _ in range(4)]
    values = {key: [chance.randrange(100) for _ in range(STEPS)] for key in range(1, SEQUENCES + 1)}
    order = [key for key in values for _ in range(STEPS)]
    chance.shuffle(order)
    sums: dict[int, list[int]] = {key: [] for key in values}
    steps = dict.fromkeys(values, 0)
    for key in order:
        step = steps[key]
        steps[key] += 1
        flags = {"sequence_id": key, "sequence_start": step == 0, "sequence_end": step == STEPS - 1}
        value = np.array([[values[key][step]]], np.int32)
        status, body = chance.choice(connections).ask(infer_request("running_sum", "INT32", value, **flags))
        sums[key].append(int(np.frombuffer(body[-4:], np.int32)[0]) if status == 200 else -1)
    return sum(sums[key] != list(accumulate(each)) for key, each in values.items())


if __name__ == "__main__":
    raise SystemExit(main())
