"""The comparison with LitServe and BentoML serves the programs that docs/comparison.md shows."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

import comparison

PAGE = comparison.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("contestant", comparison.CONTESTANTS, ids=lambda each: each.title)
def test_a_program_is_on_the_page(contestant: comparison.Contestant) -> None:
    text = comparison.programs()[f"{contestant.program}.py"]
    ast.parse(text)
    command = contestant.command(Path("bin"), 8123)
    assert any(word.startswith(contestant.program) for word in command)
    assert "8123" in command
    assert f"| {contestant.title} | {comparison.code_lines(text)} |" in PAGE, "the table has another number of lines"


@pytest.mark.parametrize("contestant", comparison.CONTESTANTS, ids=lambda each: each.title)
def test_a_request_is_that_of_the_page(contestant: comparison.Contestant) -> None:
    assert f"localhost:8000{contestant.call.path} " in PAGE
    assert f"-d '{json.dumps(json.loads(contestant.call.body))}'" in PAGE
