"""`trireme serve` as a process of its own, whose log is read line by line."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_IN_ONE_PROCESS = ("--front-ends", "0")
"""However many cores there are; flags that come later count."""

PATIENCE_S = 60.0
"""How long a test waits for what must happen; only a broken test or server gets there."""


class ServeProcess:
    """A running `trireme serve`.

    Args:
        stdin: a descriptor; default is this process's own.
        open_files: how many it may have open; by default as many as this process.

    Attributes:
        stdout, stderr: the lines so far.
    """

    def __init__(
        self, repository: Path | str, *flags: str, stdin: int | None = None, open_files: int | None = None
    ) -> None:
        self.repository = Path(repository)
        self._start(["serve", "--model-repository", str(repository), *_IN_ONE_PROCESS, *flags], stdin, open_files)

    def _start(
        self,
        words: Sequence[str],
        stdin: int | None = None,
        open_files: int | None = None,
        folder: Path | None = None,
    ) -> None:
        command = [str(Path(sys.executable).with_name("trireme")), words[0]]
        command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", *words[1:]]
        if open_files is not None:
            command = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *command]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, cwd=folder)
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._more = threading.Condition()
        pipes = ((self.process.stdout, self.stdout), (self.process.stderr, self.stderr))
        self._readers = [threading.Thread(target=self._read, args=each) for each in pipes]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            with self._more:
                lines.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    @property
    def log(self) -> str:
        """All that was written, to either stream."""
        return "\n".join([*self.stdout, *self.stderr])

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in the log, as soon as it is there."""
        with self._more:
            self._more.wait_for(lambda: re.search(pattern, self.log) or self._over(), PATIENCE_S)
        match = re.search(pattern, self.log)
        assert match, f"not in the log: {pattern}\n{self.log}"
        return match

    def _over(self) -> bool:
        return not any(reader.is_alive() for reader in self._readers if reader is not threading.current_thread())

    def wait(self) -> int:
        """The exit code; all lines are there then."""
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def http_port(self) -> int:
        return int(self.wait_for(r"Started HTTPService at 127\.0\.0\.1:(\d+)")[1])

    @property
    def grpc_port(self) -> int:
        return int(self.wait_for(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)")[1])

    @property
    def metrics_port(self) -> int:
        return int(self.wait_for(r"Started Metrics Service at 127\.0\.0\.1:(\d+)")[1])

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of a request's answer; None for an empty body."""
        return ask(self.http_port, method, path, body)

    def metrics(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()


class GatewayProcess(ServeProcess):
    """A running `trireme gateway`, on free ports."""

    def __init__(self, fleet: Path, *flags: str) -> None:
        ports = [word for name in ("http", "grpc", "metrics") for word in (f"--{name}-port", "0")]
        self._start(["gateway", "--fleet", str(fleet), *ports, *flags])

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()


def write_fleet(path: Path, *lines: str, **addresses: int | str) -> None:
    """Say which replicas there are: names and gRPC ports of this machine, or addresses; after other lines of TOML."""
    new = path.with_suffix(".new")
    given = {name: f"127.0.0.1:{each}" if isinstance(each, int) else each for name, each in addresses.items()}
    new.write_text("\n".join([*lines, *(f'[replicas.{name}]\naddress = "{each}"' for name, each in given.items()), ""]))
    new.replace(path)


@contextmanager
def serve_process(
    repository: Path | str, *flags: str, wait: bool = True, stdin: int | None = None, open_files: int | None = None
) -> Iterator[ServeProcess]:
    """A `ServeProcess` on free ports unless `flags` name others; waits until all are open unless told not to."""
    ports = [
        word for name in ("--http-port", "--grpc-port", "--metrics-port") if name not in flags for word in (name, "0")
    ]
    server = ServeProcess(repository, *ports, *flags, stdin=stdin, open_files=open_files)
    try:
        if wait:
            server.wait_for("Started HTTPService")
            server.wait_for("Started Metrics Service")
        yield server
    finally:
        server.end()


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of the answer to a request on a connection of its own; None for an empty body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        text = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, text, {"Connection": "close"})
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else None
    finally:
        connection.close()


def infer(port: int, model: str, *inputs: dict[str, Any]) -> tuple[int, Any]:
    """Status and JSON of an inference's answer."""
    return ask(port, "POST", f"/v2/models/{model}/infer", {"inputs": list(inputs)})


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None) -> dict[str, Any]:
    """An input of an infer request, one row by default."""
    return {"name": name, "datatype": datatype, "shape": shape or [1, len(data)], "data": data}


def outputs_of(answer: Any) -> dict[str, list[Any]]:
    """Data of the outputs of an inference's answer, by name."""
    return {output["name"]: output["data"] for output in answer["outputs"]}
