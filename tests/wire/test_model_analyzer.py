"""NVIDIA's Model Analyzer, unmodified, measures models on `trireme tritonserver` (docs/planning.md)."""

from __future__ import annotations

import csv
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ANALYZER = os.environ.get("MODEL_ANALYZER") or shutil.which("model-analyzer")
PERF_ANALYZER = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")
MODELS = Path(__file__).parents[2] / "model_repository"
CONCURRENCY = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ANALYZER, reason="needs model-analyzer on the path, or in MODEL_ANALYZER"),
    pytest.mark.skipif(not PERF_ANALYZER, reason="needs perf_analyzer on the path, or in PERF_ANALYZER"),
]


def free_ports(count: int) -> list[int]:
    """What nobody listens on: Model Analyzer must be told before the server starts."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_it_measures_a_model_and_writes_its_tables(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "identity_fp32", tmp_path / "models" / "identity_fp32")
    wrapper = tmp_path / "tritonserver"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trireme tritonserver "$@"\n')
    wrapper.chmod(0o755)
    http_port, grpc_port, metrics_port = free_ports(3)
    words = [str(ANALYZER), "profile", "--model-repository", str(tmp_path / "models")]
    words += ["--profile-models", "identity_fp32", "--triton-launch-mode", "local"]
    words += ["--triton-server-path", str(wrapper), "--perf-analyzer-path", str(PERF_ANALYZER)]
    words += ["--output-model-repository-path", str(tmp_path / "out"), "--export-path", str(tmp_path / "export")]
    words += ["--checkpoint-directory", str(tmp_path / "checkpoints")]
    words += ["--triton-http-endpoint", f"127.0.0.1:{http_port}", "--triton-grpc-endpoint", f"127.0.0.1:{grpc_port}"]
    words += ["--triton-metrics-url", f"http://127.0.0.1:{metrics_port}/metrics"]
    words += ["--run-config-search-disable", "--concurrency", str(CONCURRENCY)]
    (tmp_path / "export").mkdir()
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "export" / "results" / "metrics-model-inference.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["Model"] for row in rows} == {"identity_fp32"}
    assert {int(row["Concurrency"]) for row in rows} == {CONCURRENCY}
    assert all(float(row["Throughput (infer/sec)"]) > 0 for row in rows)
