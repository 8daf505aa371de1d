"""What `trireme plan` chooses beside what NVIDIA's Model Analyzer does, for the same model on the same machine.

    python benchmarks/plan_analyzer.py --analyzer model-analyzer --perf-analyzer perf_analyzer [--rate 600]

The model of `plan_choice.py`. Ours is `trireme profile` and `trireme plan` with a log of Poisson arrivals; Model
Analyzer's is its quick search with the same bound of p99, among as many instances and rows, of which the setting with
the highest throughput that keeps the bound is taken. It starts `trireme tritonserver` for each setting and asks with
perf_analyzer. Once it only comes back to settings that it has measured, which it may do without end, it is interrupted.
Then both settings are served, and the log is played against each, several times in turns. Printed are the settings,
what finding them took, and their goodputs.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from plan_choice import NAME, inputs_of, write_log, write_model
from servers import free_port

from trireme.foresight.search.players import PlanInputs, read_ground
from trireme.foresight.search.proof import prove
from trireme.foresight.search.settings import present_setting

INSTANCES, ROWS = 4, 16
_KNOWN, _MEASURES = "Existing measurement found", "Profiling "
_ENOUGH = 200
"""Settings that were measured already, one after the other: it finds nothing new."""


def main() -> int:
    """Have both choose, and measure what they chose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--analyzer", default="model-analyzer", help="the command that starts it")
    parser.add_argument("--perf-analyzer", default="perf_analyzer", help="the program")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=600.0)
    parser.add_argument("--p99-ms", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return _compare(given, Path(folder))


def _compare(given: argparse.Namespace, folder: Path) -> int:
    log, began, ours = folder / "log.jsonl", folder / "models", folder / "ours"
    write_model(began)
    write_log(log, given.rate, given.seconds)
    shutil.copytree(began, ours)
    plan_s = _plan(given, log, ours)
    theirs, analyzer_s = _analyze(given, began, folder)
    shutil.copy(ours / f"{NAME}.profile.json", theirs)
    choices = {"trireme plan": (ours, plan_s), "Model Analyzer": (theirs, analyzer_s)}
    found = {name: inputs_of(repository, log, f"p99<{given.p99_ms}ms") for name, (repository, _) in choices.items()}
    goodputs: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(given.rounds):
        for name, inputs in found.items():
            goodputs[name].append(_goodput(inputs, given.seconds))
    for name, inputs in found.items():
        each = "; ".join(f"{value:.1f}" for value in sorted(goodputs[name]))
        print(f"{name:>15}, {choices[name][1]:.0f} s: goodput {each}/s of {given.rate:g}/s: {_setting(inputs)}")
    return 0


def _plan(given: argparse.Namespace, log: Path, repository: Path) -> float:
    began = time.monotonic()
    trireme = [sys.executable, "-m", "trireme"]
    subprocess.run([*trireme, "profile", NAME, "--repository", repository], check=True)
    bounds = ["--objective", f"p99<{given.p99_ms}ms", "--maximise", "goodput", "--instances", str(INSTANCES)]
    subprocess.run([*trireme, "plan", repository, "--log", log, *bounds, "--write"], check=True)
    return time.monotonic() - began


def _analyze(given: argparse.Namespace, repository: Path, folder: Path) -> tuple[Path, float]:
    """A repository with its choice, and how long that took."""
    program = folder / "tritonserver"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trireme tritonserver "$@"\n')
    program.chmod(0o755)
    began = time.monotonic()
    words = _words(given, repository, program, folder)
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as search:
        assert search.stdout is not None
        again, took = 0, 0.0
        for line in search.stdout:
            again = again + 1 if _KNOWN in line else 0 if _MEASURES in line else again
            took = took if again else time.monotonic() - began
            if not again:
                print(line, end="")
            elif again == _ENOUGH:
                search.send_signal(signal.SIGINT)
    if again >= _ENOUGH:  # it leaves its measurements, but no tables: another run that searches nothing writes those
        searching = words.index("--run-config-search-mode")
        extra = ["--run-config-search-disable", "--concurrency", "2", "--output-model-repository-path", "again"]
        subprocess.run([*words[:searching], *extra], check=True, cwd=folder)
    with (folder / "export" / "results" / "metrics-model-inference.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["Satisfies Constraints"] == "Yes"]
    for row in rows:
        print({name: value for name, value in row.items() if value})
    best = max(rows, key=lambda row: float(row["Throughput (infer/sec)"]))["Model Config Path"]
    chosen = folder / "theirs" / NAME
    shutil.copytree(folder / "out" / best, chosen, symlinks=False)
    text = (chosen / "config.pbtxt").read_text()
    (chosen / "config.pbtxt").write_text(text.replace(f'"{best}"', f'"{NAME}"'))
    return chosen.parent, took


def _words(given: argparse.Namespace, repository: Path, program: Path, folder: Path) -> Sequence[str]:
    (folder / "export").mkdir()
    http, grpc, metrics = free_port(), free_port(), free_port()
    words = [given.analyzer, "profile", "--model-repository", str(repository), "--profile-models", NAME]
    words += ["--triton-launch-mode", "local", "--triton-server-path", str(program)]
    words += ["--perf-analyzer-path", shutil.which(given.perf_analyzer) or given.perf_analyzer]
    words += ["--output-model-repository-path", str(folder / "out"), "--export-path", str(folder / "export")]
    words += ["--checkpoint-directory", str(folder / "checkpoints"), "--client-protocol", "http"]
    words += ["--triton-http-endpoint", f"127.0.0.1:{http}", "--triton-grpc-endpoint", f"127.0.0.1:{grpc}"]
    words += ["--triton-metrics-url", f"http://127.0.0.1:{metrics}/metrics"]
    words += ["--latency-budget", str(given.p99_ms), "--run-config-search-mode", "quick"]
    words += ["--run-config-search-max-instance-count", str(INSTANCES)]
    return [*words, "--run-config-search-max-model-batch-size", str(ROWS)]


def _setting(inputs: PlanInputs) -> str:
    return str(present_setting({model.config.name: model.config for model in read_ground(inputs).models}))


def _goodput(inputs: PlanInputs, seconds: float) -> float:
    ground = read_ground(inputs)
    setting = present_setting({model.config.name: model.config for model in ground.models})
    return prove(inputs, ground, "", setting, seconds=seconds, plays=1).goodput


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
