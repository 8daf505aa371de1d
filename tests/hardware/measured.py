"""Measurements by scripts of ``benchmarks/``, whose figures become those of a group."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hardware import need, need_torch

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
SECONDS = "6"


def resnet(figures: dict[str, Any], *flags: str) -> None:
    """Run `gpu_resnet.py`."""
    need_torch()
    for package in ("psutil", "rich"):
        need(package)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "gpu"
        command = [sys.executable, str(BENCHMARKS / "gpu_resnet.py"), "--seconds", SECONDS, "--output", str(output)]
        subprocess.run([*command, *flags], check=True)
        figures.update(json.loads(output.with_suffix(".json").read_text()))
