"""A Ray cluster of one node that a test starts, and pages that are read beside one: in the environment with Ray."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from documents import ROOT, Reader, Step
from serve_process import PATIENCE_S

BIN = ROOT / ".venv-ray" / "bin"
_STARTED = re.compile(r"ray start --address='([\d.]+:\d+)'")
_LISTENING = re.compile(r"\b(HTTPService|GRPCInferenceService) at ([\d.]+:(\d+))")
_PAGE_PORTS = {"HTTPService": "8000", "GRPCInferenceService": "8001"}
_PAGE_HOST = "10.0.0.1"


class RayHead:
    """What `ray start --head` starts, on a free port; all of it ends with `end`.

    Attributes:
        address: for `--address` and RAY_ADDRESS.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # paths of sockets have to be short
        self._process = subprocess.Popen(
            [
                *(BIN / "ray", "start", "--head", "--block", "--port=0"),
                *("--num-cpus=4", "--include-dashboard=false", "--disable-usage-stats"),
                f"--temp-dir={self._directory.name}",
            ],
            env={**os.environ, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        said: list[str] = []
        for line in self._process.stdout:
            said.append(line)
            started = _STARTED.search(line)
            if started is not None:
                self.address = started[1]
                return
        self.end()
        raise AssertionError(f"Ray did not start:\n{''.join(said)}")

    def __enter__(self) -> RayHead:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """End Ray, and with it everything that runs on it. Ray itself sees to its processes, also if it is killed."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.read()  # up to its end: then no process of Ray is left that could write
        self._process.stdout.close()
        self._directory.cleanup()


class ClusterReader(Reader):
    """Reads a page for which `ray start --head` starts a cluster, which stays until the page has `ray stop`, or ends.

    Gateways are on free ports; in outputs and commands they are where the page has them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.programs = BIN
        self._head: RayHead | None = None
        self._gateway_ports: dict[str, int] = {}

    def __exit__(self, *error: object) -> None:
        self._stop_ray()
        super().__exit__(*error)

    def _stop_ray(self) -> None:
        if self._head is not None:
            self._head.end()
            self._head = None

    def _run(self, step: Step, where: str) -> str:
        words = shlex.split(step.text, comments=True)
        if words[:2] == ["ray", "start"]:
            assert self._head is None, f"{where}: there is a cluster already"
            self._head = RayHead()
            self.environment["RAY_ADDRESS"] = self._head.address
            return ""
        if words[:2] == ["ray", "stop"]:
            self._stop_ray()
            return ""
        return self._with_page_addresses(super()._run(step, where))

    def _ports(self) -> dict[str, int]:
        return super()._ports() | self._gateway_ports

    def _with_ports(self, text: str) -> str:
        free = re.sub(r"^(http|grpc)-port = \d+", r"\1-port = 0", text, flags=re.MULTILINE)
        return super()._with_ports(free)

    def _with_page_addresses(self, output: str) -> str:
        for title, address, port in _LISTENING.findall(output):
            self._gateway_ports[_PAGE_PORTS[title]] = int(port)
            output = output.replace(address, f"{_PAGE_HOST}:{_PAGE_PORTS[title]}")
        return output
