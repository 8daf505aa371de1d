"""The server under fuzz, from outside: its ports, its canary, its complaints, and what it holds."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from fuzz_server import MODELS

PATIENCE_S = 15.0
"""Whatever takes longer is taken for a hang."""

SERVER = Path(__file__).with_name("fuzz_server.py")
COMPLAINT = re.compile(
    r"Traceback|unexpected failure|Internal Server Error|internal error|unfinished|CRITICAL|front end \d+ has ended"
)
_CANARY = {
    "inputs": [
        {"name": "A", "datatype": "INT32", "shape": [4], "data": [1, 2, 3, 4]},
        {"name": "B", "datatype": "INT32", "shape": [4], "data": [5, 6, 7, 8]},
    ],
    "outputs": [{"name": "OUT_B"}],
}


class Finding(AssertionError):
    """Something that must not happen."""


class Target:
    """A running ``fuzz_server.py``.

    Args:
        by_front_end: a process is between it and its clients.

    Attributes:
        http_port, grpc_port: on the loopback interface.
        log: the last lines that it has written.
    """

    def __init__(self, repository: Path, by_front_end: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), str(repository), *["by_front_end"][: int(by_front_end)]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        assert self._process.stdin
        assert self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.log: deque[str] = deque(maxlen=2_000)
        self._complaints: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        first = self._stdout.readline()
        assert first, "\n".join(self.log)
        ports = json.loads(first)
        self.http_port: int = ports["http"]
        self.grpc_port: int = ports["grpc"]

    def _read_log(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self.log.append(line.rstrip())
            if COMPLAINT.search(line):
                self._complaints.append(line.rstrip())

    def connect(self, port: int) -> socket.socket:
        connected = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def report(self) -> dict[str, int]:
        """What it holds now."""
        return self._ask("report")

    def _ask(self, what: str) -> Any:
        self._stdin.write(f"{what}\n")
        self._stdin.flush()
        line = self._stdout.readline()
        if not line:
            raise Finding("the server is gone\n" + "\n".join(self.log))
        return json.loads(line)

    @property
    def resident_mib(self) -> float:
        return psutil.Process(self._process.pid).memory_info().rss / 2**20

    def check_canary(self) -> None:
        """The server still answers, and answers right."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=PATIENCE_S)
        try:
            connection.request("POST", "/v2/models/canary/infer", json.dumps(_CANARY))
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200 or json.loads(body)["outputs"][0]["data"] != [5, 6, 7, 8]:
                raise Finding(f"the canary is told {answer.status} {body!r}")
        except (OSError, http.client.HTTPException) as error:
            raise Finding(f"the canary is told nothing: {error!r}") from error
        finally:
            connection.close()

    def check_log(self) -> None:
        """Nothing unexpected was logged."""
        if self._complaints:
            raise Finding("in the log:\n" + "\n".join(list(self.log)[-60:]))

    def check_holds(self, before: dict[str, int]) -> None:
        """It comes back to holding no more than it did.

        Args:
            before: what `holds` said then.
        """
        self.holds()
        deadline_s = time.monotonic() + PATIENCE_S
        pause = threading.Event()
        while any((now := self.report())[what] > before[what] for what in before):
            if time.monotonic() > deadline_s:
                raise Finding(f"it held {before}, and now {now}\n" + "\n".join(self._ask("stacks")))
            pause.wait(0.05)

    def holds(self) -> dict[str, int]:
        """What it holds with all models, and no regions."""
        self.post("/v2/systemsharedmemory/unregister")
        for name in MODELS:
            self.post(f"/v2/repository/models/{name}/load")
        return self.report()

    def post(self, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=PATIENCE_S)
        connection.request("POST", path)
        connection.getresponse().read()
        connection.close()

    def end(self) -> None:
        """Stop it; it must do so by itself."""
        self._stdin.close()
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_S)
        self._stdout.close()
        if self._process.stderr:
            self._process.stderr.close()
        if code:
            raise Finding(f"the server ended with {code}\n" + "\n".join(self.log))
        if code is None:
            raise Finding("the server does not stop\n" + "\n".join(self.log))


@contextmanager
def fuzz_target(repository: Path, by_front_end: bool = False) -> Iterator[Target]:
    """See `Target`; the folder must be empty."""
    target = Target(repository, by_front_end)
    try:
        target.check_canary()
        yield target
    except BaseException:
        with suppress(Finding):  # the first one counts
            target.end()
        raise
    target.end()


def converse(target: Target, port: int, pieces: list[bytes], *, abrupt: bool = False, ends: bool = True) -> bytes:
    """Say `pieces`, then that nothing follows, and read to the end.

    Args:
        abrupt: leave at once instead, in the rudest manner.
        ends: say that nothing follows: a client that does so before it has its answer is taken for gone.

    Raises:
        Finding: the server does not come to an end.
    """
    heard: list[bytes] = []
    with target.connect(port) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            if abrupt:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                return b""
            if ends:
                connection.shutdown(socket.SHUT_WR)
        except OSError:  # it has closed already; what it said is still there
            pass
        try:
            while data := connection.recv(65_536):
                heard.append(data)
        except TimeoutError:
            raise Finding(f"no end, after {b''.join(heard)[-300:]!r}") from None
        except OSError:
            pass
    return b"".join(heard)


def described(value: Any) -> str:
    """What was sent, for a report."""
    text = repr(value)
    return text if len(text) < 6_000 else f"{text[:3_000]} … {text[-3_000:]}"
