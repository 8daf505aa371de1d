"""The runner of the hardware tests, where there is no GPU: groups that pass, lack something, or end badly."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

PASSES = """
from hardware import main
main(lambda figures: figures.update(answer=42))
"""
FAILS = """
from hardware import main
def group(figures):
    figures["until"] = "then"
    raise ValueError("not what was expected")
main(group)
"""
LACKS = """
from hardware import main, need
main(lambda figures: need("a_library_that_nobody_has"))
"""
CRASHES = "import os, signal\nprint('so far', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)"
CRASHES_LATE = PASSES + "import os\nos._exit(3)"
HANGS = "import threading\nprint('waiting', flush=True)\nthreading.Event().wait()"
CARRIED = """
import carried_package, trireme.engine.errors
from hardware import main
main(lambda figures: figures.update(where=carried_package.WHERE))
"""


def load_runner() -> Any:
    spec = importlib.util.spec_from_file_location("hardware_run", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = load_runner()


def run(tmp_path: Path, limit_s: float = 300, **scripts: str) -> dict[str, dict[str, Any]]:
    """What the groups came to, by name; a group called hangs may take a moment."""
    folder, results, wheels = (tmp_path / name for name in ("groups", "results", "wheels"))
    folder.mkdir()
    wheels.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    limits = {name: 1 if name == "hangs" else 120 for name in scripts}
    done = runner.run_all(limits, folder, results, wheels, limit_s)
    written = {name: json.loads((results / f"{name}.json").read_text()) for name in scripts}
    summary = json.loads((results / "summary.json").read_text())
    assert summary["groups"] == list(written.values())
    assert [result.group for result in done] == list(scripts)
    return written


def test_each_group_says_what_came_of_it_and_none_keeps_the_others_from_running(tmp_path: Path) -> None:
    told = run(tmp_path, crashes=CRASHES, fails=FAILS, lacks=LACKS, late=CRASHES_LATE, hangs=HANGS, passes=PASSES)
    assert {name: (each["status"], each["reason"]) for name, each in told.items()} == {
        "crashes": ("crashed", "ended by signal SIGSEGV"),
        "fails": ("failed", "ValueError: not what was expected"),
        "lacks": (
            "skipped",
            "the package a_library_that_nobody_has is not there: No module named 'a_library_that_nobody_has'",
        ),
        "late": ("crashed", "ended with status 3, after it had passed"),
        "hangs": ("timed out", "it took longer than 1 s"),
        "passes": ("passed", ""),
    }
    assert told["passes"]["figures"] == {"answer": 42}
    assert told["fails"]["figures"] == {"until": "then"}
    assert "ValueError: not what was expected" in told["fails"]["output"]
    assert told["crashes"]["output"].startswith("so far")


def test_the_summary_has_what_is_known_so_far(tmp_path: Path) -> None:
    """Whoever ends the runner has it."""
    look = f"""
import json, pathlib
from hardware import main
summary = json.loads(pathlib.Path({str(tmp_path / "results" / "summary.json")!r}).read_text())
main(lambda figures: figures.update(before=[each["group"] for each in summary["groups"]]))
"""
    told = run(tmp_path, passes=PASSES, looks=look)
    assert told["looks"]["figures"] == {"before": ["passes"]}


def test_what_there_is_no_time_for_is_not_run(tmp_path: Path) -> None:
    told = run(tmp_path, limit_s=0, passes=PASSES)
    assert (told["passes"]["status"], told["passes"]["reason"]) == ("not run", "no time was left for it")


def test_packages_are_found_in_wheels_and_trireme_beside_them(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "carried_package-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_package/__init__.py", "WHERE = 'a wheel'")
    told = run(tmp_path, carried=CARRIED)
    assert (told["carried"]["status"], told["carried"]["figures"]) == ("passed", {"where": "a wheel"})


def test_every_group_has_a_script_and_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    """In less than ten minutes together."""
    scripts = {path.stem for path in (HERE / "groups").glob("*.py")}
    assert scripts == set(runner.GROUPS)
    command = [sys.executable, str(HERE / "run.py"), "--results", str(tmp_path), "--only", "host_callbacks", "ipc"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("host_callbacks", "ipc"):
        told = json.loads((tmp_path / f"{name}.json").read_text())
        assert told["status"] == "skipped"
        assert re.search("finds no GPU|is not there", told["reason"])


def test_a_group_that_there_is_not_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "run.py"), "--results", str(tmp_path), "--only", "imports", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "there are no groups nonsense: there are imports, host_callbacks" in done.stderr


def test_all_that_trireme_needs_is_carried_but_for_what_is_there() -> None:
    project = tomllib.loads((HERE.parent.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {re.split("[<>=!~]", each)[0] for each in [*project["dependencies"], *extras["nvml"], *extras["terminal"]]}
    carried = set((HERE / "carried.txt").read_text().split())
    assert needed - carried == {"numpy"}
