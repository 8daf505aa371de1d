"""A plain start imports nothing for traces, GPUs or terminals, and its threads do not wait long for the interpreter."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

UNUSED = {"opentelemetry", "pynvml", "rich", "re2", "redis"}

SERVE = """
import os, signal, sys
from trireme.api.cli import serve
from trireme.api.cli.main import main

def stop():
    os.kill(os.getpid(), signal.SIGTERM)

settle = serve.settle_memory  # the last step of the start
serve.settle_memory = lambda: (settle(), stop())
flags = ["--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0", "--metrics-port=0"]
assert main(["serve", f"--model-repository={sys.argv[1]}", *flags]) == 0
print(sys.getswitchinterval())
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""


def _without_gpu_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return True
    return False


@pytest.mark.skipif(not _without_gpu_driver(), reason="with a GPU's driver, NVML is asked for GPUs")
def test_a_plain_start(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "Started Metrics Service" in done.stdout
    interval_s, imported = done.stdout.strip().splitlines()[-2:]
    assert float(interval_s) == pytest.approx(0.0005)
    assert "'trio'" in imported
    assert not {name for name in UNUSED if f"'{name}'" in imported}
