"""Python models whose processes are killed all the time: is every request answered, and is nothing left over?

Trireme serves Python models of three kinds (one that answers, one that asks it, a decoupled one) to clients that never
stop asking, while every instance's process is killed with SIGKILL, again and again: in each round each instance once,
then all are waited for. Counted are the answers; and processes, threads, descriptors, maps of shared memory and the
entries of /dev/shm, before the first and after the last kill, with no clients and instances that are just up.

    python benchmarks/kill_python.py [--rounds 100]

Exits with 1 if a request was not answered, or was answered wrongly, or if anything is left.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import tritonclient.http as triton
from rich.console import Console
from rich.table import Table
from servers import IDENTITY_MODEL_PY, Server, trireme
from tritonclient.utils import InferenceServerException

CHAIN_MODEL_PY = '''"""Has another model answer."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(request).exec() for request in requests]

    def ask(self, request):
        return pb_utils.InferenceRequest(
            model_name="identity", inputs=request.inputs(), requested_output_names=["OUTPUT0"], trace=request.trace()
        )
'''

STREAM_MODEL_PY = '''"""Gives back its input ten times, from a thread."""

import threading

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(), request.inputs()[0])).start()

    def answer(self, sender, tensor):
        for _ in range(10):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''

CONFIG = """
backend: "python"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
dynamic_batching { }
"""

MODELS = {
    "identity": (IDENTITY_MODEL_PY, "instance_group [{ kind: KIND_CPU count: 2 }]", 2),
    "chain": (CHAIN_MODEL_PY, "instance_group [{ kind: KIND_CPU count: 1 }]", 1),
    "stream": (STREAM_MODEL_PY, "model_transaction_policy { decoupled: true }", 1),
}
"""Code, the rest of the configuration, and how many instances that is."""

INSTANCES = sum(count for _, _, count in MODELS.values())
LARGE = 1 << 18
"""Elements of the large requests: 1 MiB, which goes through shared memory."""

FLAGS = (
    "--restart-limit",
    "1000000",
    "--restart-window-secs",
    "0.01",
    "--log-error",
    "false",
    "--log-warning",
    "false",
)
PATIENCE_S = 60.0
BETWEEN_KILLS_S = 0.03


def write_models(repository: Path) -> None:
    for name, (code, rest, _) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(code)
        (repository / name / "config.pbtxt").write_text(CONFIG + rest)


class Clients:
    """Threads that ask, one after the other, until told to stop.

    Attributes:
        outcomes: how often what came of a request, by model.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._stopping = False
        self.outcomes: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def asking(self) -> Iterator[None]:
        asks: list[Callable[[], None]] = [self._stream, self._stream]
        asks += [lambda: self._infer("identity", 16)] * 4 + [lambda: self._infer("chain", 16)] * 2
        asks += [lambda: self._infer("identity", LARGE), lambda: self._infer("chain", LARGE)]
        threads = [threading.Thread(target=self._keep, args=(ask,), daemon=True) for ask in asks]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping = True
            for thread in threads:
                thread.join(2 * PATIENCE_S)

    def _keep(self, ask: Callable[[], None]) -> None:
        while not self._stopping:
            ask()

    def _count(self, model: str, outcome: str) -> None:
        with self._lock:
            self.outcomes[model, outcome] += 1

    def _infer(self, model: str, elements: int) -> None:
        """Ask ten times on one connection."""
        values = np.random.default_rng().random((1, elements), np.float32)
        tensor = triton.InferInput("INPUT0", values.shape, "FP32").set_data_from_numpy(values)
        kind = f"{model}, {values.nbytes:,} bytes"
        with triton.InferenceServerClient(self._server.url, network_timeout=PATIENCE_S) as client:
            for _ in range(10):
                try:
                    result = client.infer(model, [tensor]).as_numpy("OUTPUT0")
                    self._count(kind, "answered" if result is not None and np.array_equal(result, values) else "wrong")
                except InferenceServerException as error:
                    self._count(kind, "error" if error.status() is not None else "unanswered")
                except Exception:  # noqa: BLE001 - whatever the client's library makes of a lost connection
                    self._count(kind, "unanswered")

    def _stream(self) -> None:
        kind = "stream, 10 events"
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=PATIENCE_S)
        try:
            connection.request("POST", "/v2/models/stream/generate_stream", json.dumps({"INPUT0": [1.5]}))
            told = connection.getresponse().read().decode()
            whole = told.count('"OUTPUT0":1.5') == 10
            self._count(kind, "answered" if whole else "error" if "is not healthy" in told else "wrong")
        except (OSError, http.client.HTTPException):
            self._count(kind, "unanswered")
        finally:
            connection.close()


def instances(server: Server) -> list[psutil.Process]:
    """The processes of Python models that are alive."""
    found = []
    for child in server.process.children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_for_all(server: Server) -> list[psutil.Process]:
    """All instances, when they execute."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        lines = server.get("/metrics", metrics=True).decode().splitlines()
        counts = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("trireme_instance_count{")]
        alive = instances(server)
        if sum(counts) == len(alive) == INSTANCES:
            return alive
        time.sleep(0.02)
    raise SystemExit(f"not all of {INSTANCES} instances are there after {PATIENCE_S:g} s")


def kill_each(server: Server) -> int:
    """One round; how many were killed."""
    victims = wait_for_all(server)
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
        time.sleep(BETWEEN_KILLS_S)
    for victim in victims:
        victim.wait(PATIENCE_S)
    return len(victims)


def holdings(server: Server) -> dict[str, int]:
    """What the server has, when every instance has just been started again."""
    kill_each(server)
    wait_for_all(server)
    process = server.process
    samples: list[dict[str, int]] = []
    for _ in range(20):  # a connection of ours, or a descriptor that is just being passed, does not count
        time.sleep(0.1)
        samples.append(
            {
                "processes": len(process.children(recursive=True)),
                "descriptors": process.num_fds(),
                "maps of shared memory": maps_of(process.pid).count("/memfd:"),
                "entries of /dev/shm": len(unheld_entries(process.pid)),
                "threads": process.num_threads(),
            }
        )
    return {name: min(sample[name] for sample in samples) for name in samples[0]}


def maps_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has gone, or is another user's
        return ""


def unheld_entries(server: int) -> set[str]:
    """Entries of /dev/shm that no process but the server maps: others are of other programs."""
    folder = Path("/dev/shm")
    entries = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    others = "".join(maps_of(pid) for pid in psutil.pids() if pid != server)
    return {name for name in entries if f"{folder}/{name}" not in others}


def report(kills: int, outcomes: Counter[tuple[str, str]], before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Print the tables; what is wrong."""
    columns = ("answered", "error", "wrong", "unanswered")
    answers = Table("requests", *columns, title=f"{kills:,} processes killed")
    wrong: list[str] = []
    for kind in sorted({kind for kind, _ in outcomes}):
        counts = [outcomes[kind, column] for column in columns]
        answers.add_row(kind, *[f"{count:,}" for count in counts])
        wrong += [f"{kind}: {count:,} {column}" for column, count in zip(columns[2:], counts[2:], strict=True) if count]
        if not counts[0]:
            wrong.append(f"{kind}: none was answered")
    left = Table("the server's", "before", "after")
    for name, count in before.items():
        left.add_row(name, str(count), str(after[name]))
        if name != "threads" and after[name] > count:  # which trio keeps for some seconds
            wrong.append(f"{name}: {after[name] - count} more than before")
    console = Console(width=100)
    console.print(answers)
    console.print(left)
    return wrong


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="how often each instance is killed (default: 100)")
    rounds = parser.parse_args(arguments).rounds
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        with trireme(Path(folder), *FLAGS) as server:
            wait_for_all(server)
            before = holdings(server)
            clients = Clients(server)
            kills = 0
            with clients.asking():
                for _ in range(rounds):
                    kills += kill_each(server)
                wait_for_all(server)
            after = holdings(server)
            wrong = report(kills, clients.outcomes, before, after)
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
