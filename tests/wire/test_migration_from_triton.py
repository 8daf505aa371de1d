"""docs/migrating-from-triton.md: its program finds what differs, and its table has all flags.

Besides, no server of a guide warns of its flags.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, steps
from repository_models import link_models

from trireme.api.cli.command import build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import parse

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("migrating-from-triton.md", "migrating-from-torchserve.md", "production.md")

ASKED = ("metadata", "configuration", "answer")

DICE = """
import random
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        thrown = lambda: pb_utils.Tensor("THROWN", np.array([random.random()], np.float32))
        return [pb_utils.InferenceResponse([thrown()]) for _ in requests]
"""
DICE_CONFIG = """
backend: "python"
parameters { key: "EXECUTION" value { string_value: "in_process" } }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "THROWN" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def test_the_comparison_finds_what_differs(tmp_path: Path, serve: Any) -> None:
    """And nothing else: one server twice, of which one model never answers the same."""
    models = link_models(tmp_path / "models", "running_sum", "simple_string")
    (models / "dice" / "1").mkdir(parents=True)
    (models / "dice" / "config.pbtxt").write_text(DICE_CONFIG)
    (models / "dice" / "1" / "model.py").write_text(DICE)
    (program,) = blocks(DOCS / "migrating-from-triton.md", "python")
    with serve(models) as server:
        command = [sys.executable, "-c", program, server.url, server.url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    same = [f"{name}: {what} agrees" for name in ("dice", "running_sum", "simple_string") for what in ASKED]
    assert told == [line if line != "dice: answer agrees" else "dice: answer differs" for line in same]


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_are_understood(guide: str) -> None:
    """As they stand, and without a warning but that the server is open to the network."""
    said = (step.text for step in steps((DOCS / guide).read_text()) if step.kind == "command")
    commands = [shlex.split(text) for text in said if text.startswith("trireme serve")]
    assert len(commands) == 1
    warnings = [line for words in commands for line in build_command(parse(words[2:], FLAGS), {}).warnings]
    assert [line for line in warnings if not line.startswith("clients that reach")] == []


def test_flags_that_do_nothing_are_in_the_table() -> None:
    """Those that are refused, and those that are warned about."""
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|$", (DOCS / "migrating-from-triton.md").read_text(), re.MULTILINE)
    told = {name: text for names, text in rows for name in re.findall(r"`--([a-z-]+)", names)}
    assert told.keys() <= FLAGS.keys()
    without_effect = {name: flag for name, flag in FLAGS.items() if flag.missing}
    assert {name for name, flag in without_effect.items() if flag.tolerated} == {
        name for name, text in told.items() if text.startswith("a warning")
    }
    assert {name for name, flag in without_effect.items() if not flag.tolerated} == {
        name for name, text in told.items() if text.startswith("refused")
    }
