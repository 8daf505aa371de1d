"""`trireme serve` in a process of its own, whose work is measured."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from ..clients.target import LoadProtocol, LoadTarget
from ..engine.errors import UnavailableError
from ..engine.options import ServerOptions
from ..engine.profiles import Way

_START_S = 120.0
_FRONT_END = "trireme.api.cli.front_end"
"""In the command line of a front end."""
_PROCESS_TIME = 2
"""Of the numbers that Linux has for clocks of another process (`clock_getcpuclockid`): processor time, ended threads'
too."""

_PROTOCOLS = {
    Way.HTTP: LoadProtocol.HTTP,
    Way.JSON: LoadProtocol.JSON,
    Way.GRPC: LoadProtocol.GRPC,
    Way.STREAM: LoadProtocol.STREAM,
}


class ServedModels:
    """`trireme serve` in a process of its own, on free ports of this machine.

    Args:
        flags: more of its flags.
        front_ends: processes that read and write for it.
    """

    def __init__(self, options: ServerOptions, flags: Sequence[str] = (), front_ends: int = 0) -> None:
        self.front_ends = front_ends
        words = [sys.executable, "-m", "trireme", "serve", "--front-ends", str(front_ends)]
        for each in options.model_repository:
            words += ["--model-repository", str(each)]
        for name in ("http", "grpc", "metrics"):
            words += [f"--{name}-port", "0"]
        words += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", *flags]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self.process = subprocess.Popen(words, stdout=self._log, stderr=subprocess.STDOUT)
        self.http_port = self.grpc_port = 0

    def __enter__(self) -> ServedModels:
        with contextlib.ExitStack() as undo:
            undo.callback(self.__exit__)  # also after Ctrl-C: nothing is to be left
            self._wait_for_start()
            undo.pop_all()
        return self

    def _wait_for_start(self) -> None:
        limit_s = time.monotonic() + _START_S
        while time.monotonic() < limit_s and self.process.poll() is None:
            text = self._written()
            http_port = re.search(r"Started HTTPService at 127\.0\.0\.1:(\d+)", text)
            grpc_port = re.search(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)", text)
            if http_port and grpc_port:
                self.http_port, self.grpc_port = int(http_port[1]), int(grpc_port[1])
                return
            time.sleep(0.02)
        text = self._written()
        raise UnavailableError(f"the server to be measured did not start:\n{text[-2000:]}")

    def __exit__(self, *_error: object) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
        self.process.wait()
        self._log.close()

    def _written(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def target(self, way: Way) -> LoadTarget:
        """Where clients find it."""
        protocol = _PROTOCOLS[way]
        return LoadTarget("127.0.0.1", self.http_port if protocol.is_http else self.grpc_port, protocol)

    def loop_s(self) -> float:
        """Processor seconds of the event loop's thread so far."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat")
        try:
            return int(path.read_text().split()[0]) / 1e9
        except OSError as error:
            raise UnavailableError(f"the kernel does not tell what the event loop uses: {error}") from error

    def front_ends_s(self) -> float:
        """Processor seconds of all front ends so far."""
        if not self.front_ends:
            return 0.0
        found = [each.pid for each in psutil.Process(self.process.pid).children() if _FRONT_END in each.cmdline()]
        try:
            return sum(time.clock_gettime(~pid << 3 | _PROCESS_TIME) for pid in found)
        except OSError as error:
            raise UnavailableError(f"the kernel does not tell what a front end uses: {error}") from error

    def statistics(self, model: str) -> dict[str, Any]:
        """Of the only version of a model."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        try:
            connection.request("GET", f"/v2/models/{model}/stats")
            return json.loads(connection.getresponse().read())["model_stats"][0]
        finally:
            connection.close()
