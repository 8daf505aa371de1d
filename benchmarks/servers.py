"""Servers as processes of their own, for the benchmarks: Trireme, and a peer to compare it with."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0

IDENTITY_MODEL_PY = '''"""Gives back its input, without touching it."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in inputs]
'''


@dataclass(frozen=True)
class Server:
    """A running server. Its ports are on the loopback interface.

    Attributes:
        grpc_port: None if it does not serve gRPC.
    """

    name: str
    process: psutil.Process
    http_port: int
    metrics_port: int
    grpc_port: int | None = None

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        assert self.grpc_port is not None, "the server was not told to serve gRPC"
        return f"127.0.0.1:{self.grpc_port}"

    def get(self, path: str, *, metrics: bool = False) -> bytes:
        """The body of a GET that must be answered with 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port if metrics else self.http_port)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise SystemExit(f"{self.name}: GET {path} was answered with {response.status}: {body.decode()}")
        return body

    def statistics(self, model: str) -> dict[str, Any]:
        """The statistics of the only version of a model."""
        (record,) = json.loads(self.get(f"/v2/models/{model}/stats"))["model_stats"]
        return record

    def cpu_s(self) -> float:
        """CPU seconds that the server and its child processes have used so far."""
        total = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def is_live(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=1)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def trireme(
    repository: Path, *flags: str, grpc: bool = False, program: Sequence[str] | None = None, name: str = "Trireme"
) -> Iterator[Server]:
    """`trireme serve` from the environment of this interpreter.

    Args:
        program: starts it, if that is another one.
        name: what tables call it.
    """
    command = program or (str(Path(sys.executable).with_name("trireme")), "serve")
    with _serving(name, [*command, "--model-repository", str(repository), *flags], grpc) as server:
        yield server


@contextmanager
def triton(command: str, repository: Path, *flags: str, grpc: bool = False) -> Iterator[Server]:
    """The real Triton.

    Args:
        command: starts it; tritonserver's flags are put behind it.
        repository: models that it can serve.
    """
    with _serving("Triton", [*shlex.split(command), "--model-repository", str(repository), *flags], grpc) as server:
        yield server


@contextmanager
def _serving(name: str, command: list[str], grpc: bool) -> Iterator[Server]:
    http_port, metrics_port = free_port(), free_port()
    grpc_port = free_port() if grpc else None
    command += ["--http-address", "127.0.0.1", "--http-port", str(http_port), "--metrics-port", str(metrics_port)]
    command += ["--grpc-address", "127.0.0.1", "--grpc-port", str(grpc_port)] if grpc else ["--allow-grpc", "false"]
    with tempfile.TemporaryFile() as log:
        # A group of its own: a wrapper script, or a backend's processes, end with it.
        try:
            started = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            raise SystemExit(f"cannot run {name}: {error}") from error
        try:
            server = Server(name, psutil.Process(started.pid), http_port, metrics_port, grpc_port)
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while not server.is_live():
                if started.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise SystemExit(f"{name} does not start: {shlex.join(command)}\n{log.read().decode()}")
                time.sleep(0.1)
            yield server
        finally:
            _stop(started)


def _stop(started: subprocess.Popen[bytes]) -> None:
    started.terminate()
    try:
        started.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def write_identity(repository: Path, name: str, dims: int, *, max_batch_size: int) -> None:
    """A python-backend model that gives back FP32[dims]: one instance, dynamic batching if it batches at all."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(IDENTITY_MODEL_PY)
    (repository / name / "config.pbtxt").write_text(identity_config(name, "python", dims, max_batch_size))


def identity_config(name: str, backend: str, dims: int, max_batch_size: int) -> str:
    """config.pbtxt of an identity model of FP32[dims]."""
    batching = "dynamic_batching { }\n" if max_batch_size else ""
    return (
        f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {max_batch_size}\n'
        f'input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ {dims} ] }}\n'
        f'output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ {dims} ] }}\n'
        f"instance_group {{ kind: KIND_CPU count: 1 }}\n{batching}"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def machine() -> dict[str, Any]:
    """What numbers cannot be read without."""
    return {"cores": os.cpu_count(), "load_average": [round(load, 2) for load in os.getloadavg()]}
