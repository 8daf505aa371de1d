"""Servers as processes of their own, for the benchmarks: Trireme, and a peer to compare it with."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.01
MARK = "TRIREME_BENCHMARK"
"""In the environment of every server, with this process's number first: its processes are found by it, whichever of
them has started them."""

IDENTITY_MODEL_PY = '''"""Gives back its input, without touching it."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in inputs]
'''


class FailedError(SystemExit):
    """A server or a client did not do what it must. It ends a script that does not catch it, with its message."""


Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
"""By name: datatype and shape, without the batch dimension."""

BATCHING = "dynamic_batching { }\n"


@dataclass(frozen=True)
class Server:
    """A running server. Its ports are on the loopback interface.

    Attributes:
        grpc_port: None if it does not serve gRPC.
        started_s: when its process was started, by ``time.monotonic``.
        ready_s: how long it took from there to be ready.
    """

    name: str
    process: psutil.Process
    http_port: int
    metrics_port: int
    grpc_port: int | None = None
    started_s: float = 0.0
    ready_s: float = 0.0

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
            raise FailedError(f"{self.name}: GET {path} was answered with {response.status}: {body.decode()}")
        return body

    def statistics(self, model: str) -> dict[str, Any]:
        """The statistics of the only version of a model."""
        (record,) = json.loads(self.get(f"/v2/models/{model}/stats"))["model_stats"]
        return record

    def processes(self) -> list[psutil.Process]:
        """The server's own process and those that it has started."""
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU seconds that the server and its child processes have used so far."""
        total = 0.0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory_bytes(self) -> int:
        """Memory of all its processes; what several share counts once."""
        total = 0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total

    def is_running(self) -> bool:
        return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each of its processes."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

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
    with _serving_v2(name, [*command, "--model-repository", str(repository), *flags], grpc) as server:
        yield server


@contextmanager
def triton(command: str, repository: Path, *flags: str, grpc: bool = False) -> Iterator[Server]:
    """The real Triton.

    Args:
        command: starts it; tritonserver's flags are put behind it.
        repository: models that it can serve.
    """
    with _serving_v2("Triton", [*shlex.split(command), "--model-repository", str(repository), *flags], grpc) as server:
        yield server


@contextmanager
def _serving_v2(name: str, command: list[str], grpc: bool) -> Iterator[Server]:
    """A server that takes tritonserver's flags."""
    http_port, metrics_port = free_port(), free_port()
    grpc_port = free_port() if grpc else None
    command += ["--http-address", "127.0.0.1", "--http-port", str(http_port), "--metrics-port", str(metrics_port)]
    command += ["--grpc-address", "127.0.0.1", "--grpc-port", str(grpc_port)] if grpc else ["--allow-grpc", "false"]
    with serving(name, command, http_port, metrics_port, grpc_port) as server:
        yield server


@contextmanager
def serving(
    name: str,
    command: Sequence[str],
    http_port: int,
    metrics_port: int = 0,
    grpc_port: int | None = None,
    *,
    is_ready: Callable[[Server], bool] = lambda server: server.is_live(),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[Server]:
    """A server that has been told its ports, until the end of the block. None of its processes is left then.

    Args:
        is_ready: whether it serves; asked again and again.
        environment: added to this process's own.
        folder: where it runs, if not here.

    Raises:
        FailedError: it cannot be started, or is not ready in time.
    """
    mark = f"{os.getpid()}-{secrets.token_hex(8)}"
    variables = {**os.environ, **(environment or {}), MARK: mark}
    # A server that is installed in place would compile itself at every start.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as log:
        started_s = time.monotonic()
        # A group of its own: a signal from the terminal reaches this process alone, which stops it.
        try:
            started = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=variables, cwd=folder
            )
        except OSError as error:
            raise FailedError(f"cannot run {name}: {error}") from error
        try:
            server = Server(name, psutil.Process(started.pid), http_port, metrics_port, grpc_port, started_s)
            deadline_s = started_s + START_TIMEOUT_S
            while not is_ready(server):
                if started.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise FailedError(f"{name} does not start: {shlex.join(command)}\n{log.read().decode().strip()}")
                time.sleep(POLL_S)
            yield replace(server, ready_s=time.monotonic() - started_s)
        finally:
            _stop(started, mark)


def _stop(started: subprocess.Popen[bytes], mark: str) -> None:
    for process in _marked(mark):  # some may have been suspended, and would not see that they must end
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    started.terminate()
    try:
        started.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    for process in [*_marked(mark), *_of_session(started.pid)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def stop_all() -> None:
    """Kill what is left of all servers that this process has started."""
    for process in _marked(f"{os.getpid()}-"):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _of_session(leader: int) -> list[psutil.Process]:
    """Processes of a session whose leader has ended: some write a title over their environment, and lose the mark."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found


def _marked(start: str) -> list[psutil.Process]:
    """Processes whose mark begins so."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(MARK, "").startswith(start):
                found.append(process)
    return found


def write_identity(repository: Path, name: str, dims: int, *, max_batch_size: int) -> None:
    """A python-backend model that gives back FP32[dims]: one instance, dynamic batching if it batches at all."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(IDENTITY_MODEL_PY)
    (repository / name / "config.pbtxt").write_text(identity_config(name, "python", dims, max_batch_size))


def identity_config(name: str, backend: str, dims: int, max_batch_size: int) -> str:
    """config.pbtxt of an identity model of FP32[dims]."""
    return model_config(
        name, backend, max_batch_size, {"INPUT0": ("FP32", (dims,))}, {"OUTPUT0": ("FP32", (dims,))}
    ) + (BATCHING if max_batch_size else "")


def model_config(
    name: str, backend: str, max_batch_size: int, inputs: Tensors, outputs: Tensors, *, instances: int = 1
) -> str:
    """config.pbtxt of a model on the CPU."""
    lines = [f'name: "{name}"', f'backend: "{backend}"', f"max_batch_size: {max_batch_size}"]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor, (datatype, dims) in tensors.items():
            shape = ", ".join(map(str, dims))
            lines.append(f'{kind} {{ name: "{tensor}" data_type: TYPE_{datatype} dims: [ {shape} ] }}')
    return "\n".join([*lines, f"instance_group {{ kind: KIND_CPU count: {instances} }}", ""])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def machine() -> dict[str, Any]:
    """What numbers cannot be read without."""
    return {"cores": os.cpu_count(), "load_average": [round(load, 2) for load in os.getloadavg()]}
