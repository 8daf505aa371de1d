"""`make bench` as a whole, on Trireme alone, and on peers that do not work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(SCRIPTS))  # last: names there are also those of other tests

from servers import serving  # noqa: E402

PATIENCE_S = 120


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "bench", "--output", str(folder / "results"), *words]


def environment(folder: Path) -> dict[str, str]:
    """Nothing is taken from the user's cache, nor from what is installed."""
    names = {name: value for name, value in os.environ.items() if name not in {"TRITON_COMMAND", "PERF_ANALYZER"}}
    return {**names, "TRIREME_BENCH_CACHE": str(folder / "cache")}


def marked(number: int) -> list[psutil.Process]:
    """Processes of servers that the run of this process number has started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRIREME_BENCHMARK", "").startswith(f"{number}-"):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_a_peer_that_does_not_work_costs_its_cells_only(tmp_path: Path) -> None:
    words = ["--workloads", "identity-json", "identity-grpc-loop", "--alternations", "2", "--seconds", "0.02"]
    words += ["--concurrency", "16", "--peers", "triton", "--triton-command", "false", "--earlier", "false"]
    done = subprocess.run(
        command(tmp_path, *words),
        cwd=SCRIPTS,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results" / "bench.json").read_text())
    rows = ["identity FP32[16], HTTP JSON, concurrency 16", "identity FP32[16], gRPC, closed loop, concurrency 16"]
    assert [row["key"] for row in results["rows"]] == rows
    assert [(each["row"], each["peer"]) for each in results["samples"]] == [
        (row, "trireme") for row in rows for _ in "12"
    ]
    assert all(each["metrics"]["throughput"] > 0 for each in results["samples"])
    assert "does not start" in results["unavailable"]["triton"]
    assert all("does not start" in results["missing"][row]["earlier"] for row in rows)
    assert results["ended"] == "complete"
    table = (tmp_path / "results" / "bench.md").read_text()
    assert table.count("| –") >= 4


_LOSES_ITS_MARK = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
with open("child.partial", "w") as file:
    file.write(str(child.pid))
os.rename("child.partial", "child")
time.sleep(600)
"""


def test_no_process_of_a_server_is_left_though_its_environment_is_gone(tmp_path: Path) -> None:
    """Some of Ray's write a title over it."""
    file = tmp_path / "child"
    with serving("x", [sys.executable, "-c", _LOSES_ITS_MARK], 0, is_ready=lambda _: file.exists(), folder=tmp_path):
        child = psutil.Process(int(file.read_text()))
        assert child.is_running()
    child.wait(PATIENCE_S)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that would take very long."""
    words = ["--workloads", "identity-json", "--alternations", "300", "--seconds", "0.02", "--peers"]
    with subprocess.Popen(
        command(tmp_path, *words), cwd=SCRIPTS, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_an_interrupt_leaves_no_process_and_keeps_what_was_measured(
    run: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    assert run.stdout is not None
    seen = ""
    while not seen.startswith("  2/"):
        seen = run.stdout.readline()
        assert seen, "the run ended too early"
    assert marked(run.pid)
    run.send_signal(number)
    rest = run.stdout.read()
    assert run.wait(PATIENCE_S) == 130, rest
    assert marked(run.pid) == []
    results = json.loads((tmp_path / "results" / "bench.json").read_text())
    assert len(results["samples"]) >= 2
    assert results["ended"] == "it was interrupted"
    assert "it was interrupted" in (tmp_path / "results" / "bench.md").read_text()
