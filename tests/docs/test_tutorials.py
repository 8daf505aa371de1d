"""The tutorials do what they say: each is followed in an empty folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT, Reader, steps

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorials' commands need curl")

TUTORIALS = {page.stem: page for page in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}
QUICK = ("scikit-learn", "streaming")
"""Those that do not wait for `make test-slow`."""

NEEDS: dict[str, tuple[str, ...]] = {"hugging-face": ("torch", "transformers"), "pytorch": ("torch",)}
"""Packages that come with an extra."""


def marked_tutorials() -> Iterator[Any]:
    for name in TUTORIALS:
        missing = [each for each in NEEDS.get(name, ()) if find_spec(each) is None]
        without = pytest.mark.skipif(bool(missing), reason=f"the tutorial needs {' and '.join(missing)}")
        yield pytest.param(name, marks=[without] if name in QUICK else [pytest.mark.slow, without])


@pytest.mark.parametrize("name", list(marked_tutorials()))
def test_a_tutorial(name: str, tmp_path: Path) -> None:
    """Read in an empty folder."""
    with Reader(tmp_path) as reader:
        reader.read(TUTORIALS[name])


def test_own_models_take_five_commands() -> None:
    """As the tutorial says, and `benchmarks/stopwatch.py` measures."""
    commands = [step for step in steps(TUTORIALS["scikit-learn"].read_text()) if step.kind == "command"]
    assert len(commands) == 5
