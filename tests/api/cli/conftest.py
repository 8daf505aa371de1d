"""`trireme serve` in a process of its own."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PATIENCE_S = 120.0
"""How long a process may live; only a broken one gets there."""

_COMMAND = (sys.executable, "-c", "import sys; from trireme.api.cli.main import main; sys.exit(main())")


@dataclass
class ServeProcess:
    """A running `trireme serve`.

    Attributes:
        lines: what it has written to stdout, as far as it was read.
    """

    process: subprocess.Popen[str]
    stderr_file: Path
    lines: list[str] = field(default_factory=list)

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read stdout up to the first line in which `pattern` is found."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line matches {pattern!r}:\n{self.stdout}\n{self.stderr}")

    def ports(self) -> tuple[int, int]:
        """Wait for the end of the start; the ports of HTTP and of metrics."""
        http = self.read_until(r"Started HTTPService at 127\.0\.0\.1:(\d+)")
        metrics = self.read_until(r"Started Metrics Service at 127\.0\.0\.1:(\d+)")
        return int(http[1]), int(metrics[1])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Read stdout to its end; the exit code."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().splitlines()
        return self.process.wait()

    @property
    def stdout(self) -> str:
        return "\n".join(self.lines)

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text()


StartServe = Callable[..., ServeProcess]

_ON_LOOPBACK = (
    "--http-address=127.0.0.1",
    "--grpc-address=127.0.0.1",
    "--http-port=0",
    "--grpc-port=0",
    "--metrics-port=0",
    "--front-ends=0",
)


@pytest.fixture
def start_serve(tmp_path: Path) -> Iterator[StartServe]:
    """Starts `trireme serve` on free loopback ports with further words of command line; `console` is a terminal."""
    started: list[tuple[ServeProcess, threading.Timer]] = []

    def start(
        *words: str, on_loopback: bool = True, environment: dict[str, str] | None = None, console: int | None = None
    ) -> ServeProcess:
        place = _ON_LOOPBACK if on_loopback else ()
        stderr_file = tmp_path / f"stderr{len(started)}"
        with stderr_file.open("w") as stderr:
            process = subprocess.Popen(
                [*_COMMAND, "serve", *place, *words],
                stdout=subprocess.PIPE if console is None else console,
                stderr=stderr if console is None else console,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        watchdog = threading.Timer(PATIENCE_S, process.kill)
        watchdog.start()
        served = ServeProcess(process, stderr_file)
        started.append((served, watchdog))
        return served

    yield start
    for served, watchdog in started:
        watchdog.cancel()
        served.process.kill()
        served.process.communicate()


@pytest.fixture
def repository(tmp_path: Path, repository_root: Path) -> Path:
    """A repository with one model, ``simple``."""
    path = tmp_path / "models"
    shutil.copytree(repository_root / "model_repository" / "simple", path / "simple")
    return path


@pytest.fixture
def make_slow(repository_root: Path, tmp_path: Path) -> Callable[[float], Path]:
    """Makes a repository with ``slow``, which holds every request back for a time before it answers."""

    def make(delay_s: float) -> Path:
        source = repository_root / "model_repository" / "identity_fp32"
        model = tmp_path / "slow_models" / "slow"
        shutil.copytree(source / "1", model / "1")
        (model / "config.pbtxt").write_text(
            'backend: "onnxruntime"\n'
            "max_batch_size: 4\n"
            'input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }\n'
            'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }\n'
            f"dynamic_batching {{ preferred_batch_size: 4 max_queue_delay_microseconds: {round(delay_s * 1e6)} }}\n"
        )
        return model.parent

    return make
