"""A library that a model does not need is not imported: some take seconds, and hundreds of megabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from repository_models import link_models

PROGRAM = """
import sys
import trio
from pathlib import Path
from trireme.actors import InferenceServer
from trireme.engine.options import ServerOptions

async def main():
    async with InferenceServer(ServerOptions(model_repository=(Path(sys.argv[1]),))) as server:
        assert server.model_ready("simple")
    print(sorted({name.partition(".")[0] for name in sys.modules}))

trio.run(main)
"""
HEAVY = {"torch", "cupy", "tensorrt", "openvino", "tensorflow"}


def test_a_server_of_onnx_models_imports_no_other_framework(tmp_path: Path) -> None:
    """Neither for finding GPUs nor for placing a model without instance groups, nor for other backends' sake."""
    command = [sys.executable, "-c", PROGRAM, str(link_models(tmp_path, "simple"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    imported = done.stdout.strip().splitlines()[-1]
    assert "'onnxruntime'" in imported
    assert not {name for name in HEAVY if f"'{name}'" in imported}
