"""Processes of their own: importing hypothesis, as other tests do, flips the very switch that these are about."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest


def run_python(*arguments: str, hash_seed: int = 0) -> str:
    """Run a Python interpreter to its end; what it wrote."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(name="run_python")
def run_python_fixture() -> Callable[..., str]:
    return run_python
