"""The groups of hardware tests, for who runs pytest where there is a GPU (`make test-gpu` needs no pytest)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GROUPS = sorted(path.stem for path in (HERE / "groups").glob("*.py"))


@pytest.mark.gpu
@pytest.mark.parametrize("group", GROUPS)
def test_group(tmp_path: Path, group: str) -> None:
    command = [sys.executable, str(HERE / "run.py"), "--results", str(tmp_path), "--only", group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    told = json.loads((tmp_path / f"{group}.json").read_text())
    if told["status"] == "skipped":
        pytest.skip(told["reason"])
    assert told["status"] == "passed", f"{told['reason']}\n{told['output']}\n{done.stderr}"
