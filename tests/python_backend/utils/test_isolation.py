"""The utilities run in any interpreter that has numpy: nothing else of Trireme, and old syntax."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import trireme.python_backend.child.utils as utils

FOLDER = Path(utils.__path__[0])

ALONE = """
import json, sys
sys.path[:0] = sys.argv[1:]
before = set(sys.modules)
import utils.runner
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))))
"""


def test_nothing_of_trireme_and_no_other_library_is_loaded() -> None:
    site = Path(np.__file__).parents[1]
    command = [sys.executable, "-I", "-S", "-c", ALONE, str(FOLDER.parent), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["numpy", "utils"]


def test_syntax_is_that_of_python_3_9() -> None:
    for path in FOLDER.rglob("*.py"):
        tree = ast.parse(path.read_text(), str(path), feature_version=(3, 9))
        imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert "__future__" in imported or path.name == "__init__.py", f"{path} would evaluate its annotations"
