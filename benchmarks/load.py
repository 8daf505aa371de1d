"""perf_analyzer, run unmodified, and what it reports."""

from __future__ import annotations

import csv
import enum
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servers import FailedError, Server

ATTEMPTS = 3
"""How often perf_analyzer is started again when it hangs."""


class HungError(Exception):
    """perf_analyzer did not end in time."""


@dataclass(frozen=True)
class Report:
    """What perf_analyzer says.

    Attributes:
        throughput: inferences a second.
        p50_us, p99_us: latency as the client sees it.
        counts: its own and those that it read from the server, by the names in its printed summary.
    """

    throughput: float
    p50_us: float
    p99_us: float
    counts: Mapping[str, int]


class Protocol(enum.Enum):
    """How requests reach the server."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    GRPC_STREAM = "gRPC streams"


def run_perf_analyzer(
    command: str,
    server: Server,
    model: str,
    concurrency: int,
    *flags: str,
    protocol: Protocol = Protocol.HTTP,
    timeout_s: float = 300.0,
) -> Report:
    """Put load on a model.

    Args:
        command: starts perf_analyzer; its flags are put behind it.
        concurrency: requests in flight.

    Raises:
        HungError: it does not end within `timeout_s`.
        FailedError: it cannot be run, or fails; its output is shown.
    """
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "report.csv"
        words = [*shlex.split(command), "-m", model, *_how(server, protocol), "-f", str(table)]
        words += ["--concurrency-range", str(concurrency), *flags]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise HungError(f"perf_analyzer did not end within {timeout_s:g} s") from error
        except OSError as error:
            raise FailedError(f"cannot run perf_analyzer; say where it is with --perf-analyzer: {error}") from error
        if done.returncode != 0 or not table.exists():
            raise FailedError(f"perf_analyzer failed:\n{done.stderr}{done.stdout}\n{shlex.join(words)}")
        with table.open(newline="") as file:
            (row,) = list(csv.DictReader(file))
    counts = {
        name.lower(): int(count) for name, count in re.findall(r"^ +(.* count): (\d+)", done.stdout, re.MULTILINE)
    }
    return Report(float(row["Inferences/Second"]), float(row["p50 latency"]), float(row["p99 latency"]), counts)


def _how(server: Server, protocol: Protocol) -> list[str]:
    if protocol is Protocol.HTTP:
        return ["-i", "http", "-u", server.url]
    streaming = ["--streaming"] if protocol is Protocol.GRPC_STREAM else []
    return ["-i", "grpc", "-u", server.grpc_url, *streaming]
