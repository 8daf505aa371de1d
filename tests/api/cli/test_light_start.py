"""A plain start with an ONNX model imports nothing for what it does not serve, threads do not wait long for the
interpreter, and code that only the start needed is not kept in memory."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository_models import link_models

from trireme.api.cli.interpreter import code_mappings

UNUSED = {
    *("opentelemetry", "pynvml", "rich", "re2", "redis", "prometheus_client"),
    *("asyncio", "concurrent", "grpclib.server", "h2", "html", "http.server", "tarfile", "urllib.request"),
    *("trireme.front_ends", "trireme.python_backend", "trireme.apps"),
    *("trireme.api.cli.findings", "trireme.engine.config.mistakes", "trireme.clients"),
}

SERVE = """
import os, signal, sys
from trireme.api.cli import serve
from trireme.api.cli.main import main

def stop():
    os.kill(os.getpid(), signal.SIGTERM)

def resident_kib():
    # of the code of ONNX Runtime
    with open("/proc/self/smaps") as file:
        mappings = file.read().split("VmFlags:")  # each ends with its flags
    code = [each for each in mappings if " r-xp " in each and "onnxruntime_pybind11_state" in each]
    return sum(int(each.partition("Rss:")[2].split()[0]) for each in code)

give_back = serve.return_code  # the last step of the start
def last_step():
    before = resident_kib()
    give_back()
    print("code", before, resident_kib())
    stop()
serve.return_code = last_step
flags = ["--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0", "--metrics-port=0"]
flags += ["--front-ends=0"]  # on any machine
assert main(["serve", f"--model-repository={sys.argv[1]}", *flags]) == 0
print("switch", sys.getswitchinterval())
print("telemetry", os.environ.get("ORT_DISABLE_TELEMETRY"))
print("modules", sorted(sys.modules))
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
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    repository = link_models(tmp_path / "models", "simple")
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(repository)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "Started Metrics Service" in done.stdout
    # The server's log may write between these lines.
    said = dict(re.findall(r"^(code|switch|telemetry|modules) (.+)$", done.stdout, re.MULTILINE))
    before, after = map(int, said["code"].split())
    assert after < before / 4
    assert float(said["switch"]) == pytest.approx(0.0005)
    assert said["telemetry"] == "1"
    imported = said["modules"]
    assert "'onnxruntime'" in imported
    assert not {name for name in UNUSED if f"'{name}'" in imported}


SMAPS = """\
1000-3000 r--p 00000000 fe:00 77                 /lib/a.so
Rss:                   8 kB
Anonymous:             0 kB
3000-8000 r-xp 00002000 fe:00 77                 /lib/a.so
Rss:                  20 kB
Anonymous:             0 kB
8000-9000 rw-p 00007000 fe:00 77                 /lib/a.so
Anonymous:             4 kB
9000-b000 r-xp 00000000 fe:00 78                 /lib/changed when it was loaded.so
Anonymous:             4 kB
c000-d000 r-xp 00000000 00:00 0                  [vdso]
Anonymous:             0 kB
d000-e000 rwxp 00000000 fe:00 79                 /tmp/compiled
Anonymous:             0 kB
e000-f000 r-xp 00000000 00:00 0
Anonymous:             0 kB
10000-12000 r-xp 00000000 00:2f 80               /memfd:x (deleted)
Anonymous:             0 kB
"""


def test_only_code_that_files_have_is_given_back() -> None:
    assert list(code_mappings(SMAPS.splitlines(keepends=True))) == [(0x3000, 0x5000), (0x10000, 0x2000)]
