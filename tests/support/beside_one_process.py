"""Two servers of the same models, one with front ends in processes of their own, and what a client can tell of each."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from python_models import CONFIG, IDENTITY, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process
from slow_model import write_gated_model

MODELS = Path(__file__).parents[2] / "model_repository"
KEY = "a-key-that-is-nowhere-else"
BUDGET_BYTES = 16 << 20
FLAGS = (
    *("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=1"),
    *("--http-restricted-api", f"logging:admin-key={KEY}", "--grpc-restricted-protocol", f"logging:admin-key={KEY}"),
    *("--trace-config", "level=OFF", "--max-inflight-bytes", str(BUDGET_BYTES)),
)
COUNT = 2

QUEUE = """
    dynamic_batching {
        default_queue_policy {
            timeout_action: REJECT default_timeout_microseconds: 3600000000 allow_timeout_override: true
            max_queue_size: 1
        }
    }
"""
IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
FLOOD = """
    import triton_python_backend_utils as pb_utils
    import numpy as np


    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().flat[0])
                sender = request.get_response_sender()
                text = np.array([b"a" * 65_536], np.object_)
                for said in range(1, count + 1):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
                    with open({said}, "w") as file:
                        file.write(str(said))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FLOOD_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [{ name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }]
    output [{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }]
"""
NAMES = ("request_success", "request_failure", "count", "exec_count", "pending_request_count")
COUNTED = re.compile(rf"^((?:nv_inference_(?:{'|'.join(NAMES)})|trireme_refused_total)\{{.*\}}) (\S+)$", re.MULTILINE)


@dataclass
class Pair:
    """Both servers.

    Attributes:
        one: all in one process.
        many: with `COUNT` front ends.
        gate: the model `gated` goes on when it is there.
        said: how many answers the model `flood` has given is written there.
        traces: where the first traces of each server go.
    """

    one: ServeProcess
    many: ServeProcess
    gate: Path
    said: Path
    traces: dict[ServeProcess, Path]

    def same(self, of: Callable[[ServeProcess], Any]) -> Any:
        """What holds of both, which must be the same."""
        expected, found = of(self.one), of(self.many)
        assert found == expected
        return found


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    """Both, with the models `identity` (OUTPUT0 FP32[n] is INPUT0), `gated` (the same, one at a time, one may wait),
    `flood` (so many answers as its input COUNT says), `running_sum` and `simple_string_dyna_sequence`."""
    repository, said = folder / "models", folder / "said"
    for name in ("running_sum", "simple_string_dyna_sequence"):
        shutil.copytree(MODELS / name, repository / name)
    write_model(repository, "identity", IDENTITY, CONFIG + IN_PROCESS)
    gate = write_gated_model(repository)
    with (repository / "gated" / "config.pbtxt").open("a") as config:
        config.write(QUEUE)
    write_model(repository, "flood", FLOOD.replace("{said}", repr(str(said))), FLOOD_CONFIG + IN_PROCESS)
    with ExitStack() as stack:
        servers, traces = [], {}
        for count in (0, COUNT):
            file = folder / f"traces-{count}"
            flags = ("--front-ends", str(count), "--trace-config", f"triton,file={file}", *FLAGS)
            server = stack.enter_context(serve_process(repository, *flags, wait=False))
            servers.append(server)
            traces[server] = file.with_name(f"{file.name}.0")
        for server in servers:
            server.wait_for("Started Metrics Service")
        yield Pair(servers[0], servers[1], gate, said, traces)


def counters(server: ServeProcess) -> Counter[str]:
    """Requests, executions and refusals that the metrics count."""
    return Counter({name: int(float(value)) for name, value in COUNTED.findall(server.metrics())})


def counted(server: ServeProcess, action: Callable[[], Any]) -> dict[str, int]:
    """By how much an action makes them grow."""
    before = counters(server)
    action()
    with callers(server) as connections:  # what each front end has refused is told before what it asks now
        for caller in connections:
            assert caller.ask("GET", "/v2/models/identity/stats")[0] == 200
    return {name: count - before[name] for name, count in counters(server).items() if count != before[name]}


def pids(server: ServeProcess) -> list[int]:
    """Of the front ends of a server."""
    found = []
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread, or a process, that has just ended
            for pid in (task / "children").read_text().split():
                with suppress(FileNotFoundError, ProcessLookupError):
                    if b"front_end" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(int(pid))
    return found


def inflight(server: ServeProcess) -> tuple[float, float]:
    """Requests and bytes that the budget counts."""
    text = server.metrics()
    requests, nbytes = (
        re.search(rf"^trireme_inflight_{what} (\S+)", text, re.MULTILINE) for what in ("requests", "bytes")
    )
    assert requests
    assert nbytes
    return float(requests[1]), float(nbytes[1])


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Ask until something is so."""
    over = threading.Event()
    for _ in range(int(patience_s / 0.05)):
        if condition():
            return
        over.wait(0.05)
    raise AssertionError("it has not come about")


class Caller:
    """A connection of its own, over HTTP.

    Args:
        host: this end's address.

    Attributes:
        pid: of the process that serves it.
    """

    def __init__(self, server: ServeProcess, host: str = "127.0.0.1") -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", server.http_port, timeout=PATIENCE_S, source_address=(host, 0)
        )
        assert self.ask("GET", "/v2/health/live")[0] == 200  # it has been accepted
        self.pid = self._holder([server.process.pid, *pids(server)])

    def _holder(self, processes: list[int]) -> int:
        """The process that has the other end of the connection."""
        theirs, ours = self._connection.sock.getpeername()[1], self._connection.sock.getsockname()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            if (int(words[1][-4:], 16), int(words[2][-4:], 16)) == (theirs, ours):
                held = f"socket:[{words[9]}]"
                return next(pid for pid in processes if held in _open_files(pid))
        raise AssertionError("there is no such connection")

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer; None for an empty body."""
        self.begin(method, path, body, **headers)
        return self.answer()

    def begin(self, method: str, path: str, body: Any = None, **headers: str) -> None:
        """Send a request."""
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)

    @property
    def sock(self) -> socket.socket:
        """The connection's socket."""
        return self._connection.sock

    def answer(self) -> tuple[int, Any]:
        """See `ask`."""
        response = self._connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else None

    def close(self) -> None:
        self._connection.close()


def _open_files(pid: int) -> set[str]:
    found = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


@contextmanager
def callers(server: ServeProcess, host: str = "127.0.0.1") -> Iterator[list[Caller]]:
    """A connection to each front end, from an address: the system spreads them as it likes, so some are tried."""
    with ExitStack() as stack:
        by_pid: dict[int, Caller] = {}
        wanted = len(pids(server)) or 1
        for _ in range(400):
            caller = Caller(server, host)
            stack.callback(caller.close)
            by_pid.setdefault(caller.pid, caller)
            if len(by_pid) == wanted:
                break
        assert len(by_pid) == wanted
        yield list(by_pid.values())
