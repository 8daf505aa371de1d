"""What needs a GPU, group by group, each in a fresh process with a time limit; results are JSON.

    python3 tests/hardware/run.py --results results

It needs nothing but the standard library, and no network. What the groups need beyond what the machine's own Python has
is taken from wheels (`carry.sh` collects them): they are unpacked into a temporary folder, and so is Trireme, as links.

Rules:
 1. Each group writes ``NAME.json``: a status, why, and figures. ``summary.json`` has all of them so far.
 2. A group that lacks a library, or a GPU, is skipped, and says what is missing. One that fails, crashes or takes too
    long does not keep the others from running; the exit status is 1 then.
 3. All groups together end within ``--limit-s``: what there is no time for is "not run".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = ("engine", "python_backend", "actors", "api", "proto", "simulations")
TAIL_CHARACTERS = 4000

GROUPS = {
    "imports": 60,
    "host_callbacks": 60,
    "copies": 60,
    "instances": 90,
    "captures": 120,
    "sick": 90,
    "exported": 120,
    "resnet": 100,
    "resnet_graphs": 100,
    "resnet_grpc": 90,
    "ipc": 90,
    "generation": 120,
    "onnx": 90,
}
"""In their order, each with its limit in seconds."""


@dataclass
class Result:
    """What came of a group.

    Attributes:
        status: passed, skipped, failed, crashed, timed out, or not run.
        reason: why it is not passed.
        output: the end of what the process has printed, where it did not pass.
    """

    group: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    output: str = ""


def unpack(wheels: Path, site: Path) -> None:
    """Put wheels, and Trireme itself, where Python finds them."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    house = site / "trireme"
    house.mkdir(parents=True)
    for package in PACKAGES:
        (house / package).symlink_to(ROOT / package)


def run_group(name: str, script: Path, limit_s: float, environment: dict[str, str], folder: Path) -> Result:
    """Run a script in a process group of its own, which is ended with it. Its folder is not where it imports from:
    groups are called as packages are."""
    told = folder / f"{name}.told"
    began_s = time.monotonic()
    with (folder / f"{name}.log").open("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-P", "-X", "faulthandler", str(script)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment, "TRIREME_RESULT": str(told), "TRIREME_GROUP": name},
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        _end(process)
        log.seek(0)
        output = log.read()[-TAIL_CHARACTERS:]
    (folder / f"{name}.log").unlink()
    seconds = round(time.monotonic() - began_s, 2)
    if code is None:
        return Result(name, "timed out", f"it took longer than {limit_s:.0f} s", seconds, output=output)
    try:
        answer = json.loads(told.read_text())
        told.unlink()
    except (OSError, ValueError):
        return Result(name, "crashed", _ending(code), seconds, output=output)
    result = Result(name, answer["status"], answer["reason"], seconds, answer["figures"])
    if code:
        result.status, result.reason = "crashed", f"{_ending(code)}, after it had {answer['status']}"
    if result.status not in ("passed", "skipped"):
        result.output = output
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ending(code: int) -> str:
    return f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def run_all(groups: dict[str, int], scripts: Path, results: Path, wheels: Path, limit_s: float) -> list[Result]:
    """Run groups, one after the other; each result is written at once."""
    results.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + limit_s
    done = []
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        unpack(wheels, site)
        path = [
            str(site),
            str(HERE),
            str(ROOT / "benchmarks"),
            str(ROOT / "tests" / "support"),
            os.environ.get("PYTHONPATH", ""),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        for name, most_s in groups.items():
            left_s = min(most_s, until_s - time.monotonic())
            if left_s < 1:
                result = Result(name, "not run", "no time was left for it")
            else:
                result = run_group(name, scripts / f"{name}.py", left_s, environment, Path(folder))
            done.append(result)
            (results / f"{name}.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
            summary = {"python": sys.version, "groups": [asdict(each) for each in done]}
            (results / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
            print(f"{name:15} {result.status:10} {result.seconds:6.1f} s  {result.reason}", flush=True)
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="the folder for the results")
    parser.add_argument("--wheels", type=Path, default=HERE / "wheels", help="where carry.sh has put wheels")
    parser.add_argument("--scripts", type=Path, default=HERE / "groups", help="where the groups are")
    parser.add_argument("--only", nargs="+", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--limit-s", type=float, default=570.0, help="for all groups together")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.only or () if not (asked.scripts / f"{name}.py").is_file()]
    if unknown:
        parser.error(f"there are no groups {', '.join(unknown)}: there are {', '.join(GROUPS)}")
    groups = {name: GROUPS.get(name, 60) for name in asked.only or GROUPS}
    done = run_all(groups, asked.scripts, asked.results, asked.wheels, asked.limit_s)
    return 0 if all(result.status in ("passed", "skipped") for result in done) else 1


if __name__ == "__main__":
    sys.exit(main())
