"""The machine, the commit, and whether something else keeps the machine busy."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

import psutil

WANTED_FILES = 1 << 15
BUSY_LOAD = 0.25
"""Of each core: a load average above it disturbs the figures."""


def machine() -> dict[str, Any]:
    """What figures cannot be read without."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def load_average() -> list[float]:
    return [round(load, 2) for load in os.getloadavg()]


def load_warning(load: float, cores: int) -> str | None:
    """What to tell the user if the machine is busy with something else."""
    if load <= BUSY_LOAD * cores:
        return None
    return f"The machine is busy: its load average is {load:.2f} on {cores} cores. Figures taken now mean little"


def open_files() -> int:
    """Raise the limit of files that this process and its children may have open, as far as it may; what it is then."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for limit in (max(hard, WANTED_FILES), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        except (OSError, ValueError):  # only the superuser may raise the hard limit
            continue
        return limit
    return hard


def commit(folder: Path) -> str:
    """The commit of a checkout, and whether files differ from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
