"""Mutation testing of the core: which small changes to it do swarm runs find, and which do unit tests?

A sample of mutants is drawn by a seed from the modules that decide (`engine/scheduling`, `engine/ensemble`, and those
of `actors` that do no I/O). Each is put into a copy of the package, never into the working tree, and has to pass two
judges, each in a process of its own: swarm runs, seed after seed, and the unit tests. A judge has found it when it
fails, or needs more CPU time or memory than it may.

    python benchmarks/mutations.py --count 80 --seeds 300 --jobs 2 --output mutations.json

Unit tests take longer than swarm runs. `--units survivors` asks them only about what no swarm run finds, which is
enough to know the share of either judge; `--units never` leaves them out.

Mutants that change nothing anybody can see are listed, with the reason, in `mutations_equivalent.toml`, and are not
drawn. `--list` prints what would be drawn, `--only WORDS` takes those whose line contains the words.

Existing tools have one judge, a command that is run in the tree that they change; here two are compared on each mutant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random

import psutil
from mutants import Mutant, mutants_of
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
FOLDERS = ("engine", "python_backend", "actors", "api", "proto", "simulations")
CORE = ("engine/scheduling", "engine/ensemble", "actors")

NOT_DECIDING = {
    "engine/scheduling/batch.py": "moves bytes of tensors",
    "engine/scheduling/factory.py": "reads configurations",
    "engine/scheduling/sequence/initial_state.py": "reads configurations and files",
    "engine/ensemble/plan.py": "reads configurations",
    "actors/cache_access.py": "reaches caches, by threads",
    "actors/executors.py": "threads and processes",
    "actors/loading.py": "threads",
    "actors/offload.py": "threads",
    "actors/poller.py": "reads files",
    "actors/server.py": "the facade, which passes on",
    "actors/socket_readiness.py": "sockets",
    "actors/stream_executor.py": "threads and GPUs",
    "actors/tracing.py": "files and sockets",
    "actors/watchdog.py": "threads",
}
"""Modules that are left out, and why: simulated runs do without them, or they decide nothing."""

UNITS = (
    "tests/engine/scheduling",
    "tests/engine/ensemble",
    "tests/engine/instances/test_restart.py",
    "tests/engine/metrics/test_statistics.py",
    "tests/engine/instances/test_answer_window.py",
    "tests/engine/test_job.py",
    "tests/actors",
)
WITHOUT = (
    "tests/actors/test_gpu_pytorch.py",
    "tests/actors/test_gpu_models.py",
    "tests/actors/test_heavy_libraries.py",
    "tests/actors/test_trace_exporter.py",
    "tests/actors/test_trace_writer.py",
    "tests/actors/test_watchdog.py",
)
"""Of the unit tests: those that take long over something else."""

UNITS_ASKED = ("always", "survivors", "never")
"""Survivors are mutants that no swarm run has found."""

UNITS_CPU_S = 600
SWARM_CPU_S = 30
"""And so much more for each seed:"""
SEED_CPU_S = 0.5
MEMORY_KIB = 16 << 20
STILL_S = 60.0
"""A judge that uses next to no CPU time for so long waits for something that does not come."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says: why the mutant was found, "" if it was not, and the seconds that it took."""

    found: str
    took_s: float


NOT_ASKED = Verdict("", 0.0)


@dataclass(frozen=True, slots=True)
class Result:
    """A mutant, and what both judges say of it."""

    mutant: Mutant
    swarm: Verdict
    units: Verdict

    @property
    def found_by(self) -> str:
        return {(True, True): "both", (True, False): "swarm", (False, True): "units", (False, False): "none"}[
            bool(self.swarm.found), bool(self.units.found)
        ]


def candidates(root: Path, also: bool = False) -> list[Mutant]:
    """All mutants of the core, in the order of files and lines.

    Args:
        also: those of modules that decide nothing, too.
    """
    found: list[Mutant] = []
    for folder in CORE:
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            if also or path not in NOT_DECIDING:
                found += mutants_of(path, file.read_text(encoding="utf-8"))
    return found


def equivalents(file: Path) -> dict[tuple[str, str, str, str], str]:
    """Reasons by path, function, text before and text after."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", [])
    return {(each["path"], each["function"], each["before"], each["after"]): each["reason"] for each in entries}


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, the same for the same seed and sources."""
    chosen = Random(f"mutants {seed}").sample(range(len(mutants)), min(count, len(mutants)))
    return [mutants[index] for index in sorted(chosen)]


class Overlay:
    """A copy of the package that goes before the installed one; one mutant at a time lives in it."""

    def __init__(self, root: Path, where: Path) -> None:
        self._root = root
        self.where = where
        for folder in FOLDERS:
            copied = any(each.split("/")[0] == folder for each in CORE)
            target = where / "trireme" / folder
            if copied:
                shutil.copytree(root / folder, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(root / folder)

    def put(self, mutant: Mutant) -> None:
        source = (self._root / mutant.path).read_text(encoding="utf-8")
        self._write(mutant, mutant.applied(source))

    def take_back(self, mutant: Mutant) -> None:
        self._write(mutant, (self._root / mutant.path).read_text(encoding="utf-8"))

    def _write(self, mutant: Mutant, source: str) -> None:
        """A compiled file is told from its source by seconds and size alone, so none may stay."""
        file = self.where / "trireme" / mutant.path
        file.write_text(source, encoding="utf-8")
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.where), "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""}


PLAY = """
import sys
import trireme.actors
assert trireme.actors.__file__.startswith(sys.argv[1]), trireme.actors.__file__
from trireme.simulations.hunt import hunt
for found in hunt(range(1, int(sys.argv[2]) + 1)):
    if found.violation is not None:
        print(f"seed {found.seed}: {found.violation}")
        sys.exit(1)
"""


def judged_by_swarm(overlay: Overlay, seeds: int) -> Verdict:
    command = [sys.executable, "-c", PLAY, str(overlay.where), str(seeds)]
    return _judged(overlay, command, SWARM_CPU_S + round(seeds * SEED_CPU_S), ("seed ",))


def judged_by_units(overlay: Overlay, tests: Sequence[str]) -> Verdict:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    command += [f"--ignore={each}" for each in WITHOUT]
    return _judged(overlay, command, UNITS_CPU_S, ("FAILED ", "ERROR "))


def units_for(path: str) -> list[str]:
    """The unit tests, those first that are most likely to find a change to this file."""
    near = [each for each in UNITS if path.startswith(each.removeprefix("tests/"))]
    return near + [each for each in UNITS if each not in near]


def _judged(overlay: Overlay, command: Sequence[str], cpu_s: int, marks: tuple[str, ...]) -> Verdict:
    """Run a judge, and end it with all that it has started."""
    limits = f'ulimit -t {cpu_s} && ulimit -v {MEMORY_KIB} && exec "$@"'
    began_s = time.monotonic()
    with subprocess.Popen(
        ["sh", "-c", limits, "sh", *command],
        cwd=ROOT,
        env=overlay.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as judge:
        try:
            output = _output_of(judge)
        finally:
            _end(judge)
    took_s = round(time.monotonic() - began_s, 1)
    return Verdict("" if judge.returncode == 0 else _reason(output, judge.returncode, marks), took_s)


def _output_of(judge: subprocess.Popen[str]) -> str:
    """All that it prints, unless it stands still."""
    heard_s, used_s = time.monotonic(), -1.0
    while True:
        try:
            return judge.communicate(timeout=2.0)[0]
        except subprocess.TimeoutExpired:
            now_s, now_used_s = time.monotonic(), _cpu_s(judge.pid)
            if now_used_s > used_s + 0.5:
                heard_s, used_s = now_s, now_used_s
            elif now_s - heard_s > STILL_S:
                return ""


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and those that it has started."""
    used_s = 0.0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used_s += times.user + times.system
    return used_s


def _end(judge: subprocess.Popen[str]) -> None:
    """Its session's number is its own, so no other process is hit."""
    try:
        os.killpg(judge.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reason(output: str, status: int, marks: tuple[str, ...]) -> str:
    """Why a judge has failed: the last of its lines that begins with a mark."""
    lines = [line for line in output.splitlines() if line.strip()]
    if status < 0 or not lines:
        return f"ended by signal {-status}"
    return ([line for line in lines if line.startswith(marks)] or lines)[-1][:300]


def judged(overlays: SimpleQueue[Overlay], mutant: Mutant, seeds: int, asked: str) -> Result:
    """Both verdicts on a mutant.

    Args:
        asked: when the unit tests are; see `UNITS_ASKED`.
    """
    overlay = overlays.get()
    try:
        overlay.put(mutant)
        swarm = judged_by_swarm(overlay, seeds)
        skipped = asked == "never" or (asked == "survivors" and swarm.found)
        units = NOT_ASKED if skipped else judged_by_units(overlay, units_for(mutant.path))
        overlay.take_back(mutant)
    finally:
        overlays.put(overlay)
    return Result(mutant, swarm, units)


def run(mutants: Sequence[Mutant], seeds: int, jobs: int, asked: str) -> Iterator[Result]:
    """Results as they come."""
    with tempfile.TemporaryDirectory(prefix="mutants") as folder, ThreadPoolExecutor(jobs) as pool:
        overlays: SimpleQueue[Overlay] = SimpleQueue()
        for number in range(jobs):
            overlays.put(Overlay(ROOT, Path(folder) / str(number)))
        for future in as_completed(pool.submit(judged, overlays, mutant, seeds, asked) for mutant in mutants):
            yield future.result()


def table_of(results: Sequence[Result]) -> Table:
    """By module, by layer and in all, how many were found by whom."""
    table = Table("module", "mutants", "both", "swarm only", "units only", "none", "swarm %", "either %")
    modules = sorted({each.mutant.path for each in results})
    layers = sorted({f"{module.split('/')[0]}/" for module in modules})
    for module in (*modules, *layers, ""):
        found = Counter(each.found_by for each in results if each.mutant.path.startswith(module))
        swarm, either = found["both"] + found["swarm"], found.total() - found["none"]
        numbers = (found.total(), found["both"], found["swarm"], found["units"], found["none"])
        shares = (f"{100 * part / max(1, found.total()):.0f}" for part in (swarm, either))
        table.add_row(module or "all", *map(str, numbers), *shares)
    return table


def as_json(results: Sequence[Result], seeds: int, seed: int) -> str:
    found = Counter(each.found_by for each in results)
    rows = [{"found_by": each.found_by, **asdict(each)} for each in results]
    return json.dumps({"seeds": seeds, "sample_seed": seed, "found_by": found, "mutants": rows}, indent=1) + "\n"


def earlier(file: Path, seeds: int) -> dict[Mutant, Result]:
    """What an earlier run with as many seeds has written."""
    if not file.exists():
        return {}
    document = json.loads(file.read_text(encoding="utf-8"))
    rows = document["mutants"] if document["seeds"] == seeds else []
    found = (Result(Mutant(**row["mutant"]), Verdict(**row["swarm"]), Verdict(**row["units"])) for row in rows)
    return {each.mutant: each for each in found}


def _is_sound(console: Console, seeds: int, asked: str) -> bool:
    """Whether the judges find nothing in the package as it is."""
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        overlay = Overlay(ROOT, Path(folder))
        judges = [partial(judged_by_swarm, overlay, seeds), partial(judged_by_units, overlay, UNITS)]
        for judge in judges[: 1 if asked == "never" else 2]:
            verdict = judge()
            console.print(f"without a mutant: {verdict.found or 'nothing found'}, {verdict.took_s} s")
            if verdict.found:
                return False
    return True


def main() -> int:
    options = _parser().parse_args()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    known = equivalents(options.equivalents)
    mutants = [
        each
        for each in candidates(ROOT, options.all_modules)
        if (each.path, each.function, each.before, each.after) not in known
    ]
    console.print(f"{len(mutants)} mutants, and {len(known)} that change nothing")
    if options.only:
        mutants = [each for each in mutants if options.only in str(each)]
    mutants = sample(mutants, options.count, options.seed)
    if options.list:
        console.print("\n".join(map(str, mutants)))
        return 0
    if not _is_sound(console, options.seeds, options.units):
        return 2
    known_results = earlier(options.output, options.seeds) if options.output else {}
    results = [known_results[each] for each in mutants if each in known_results]
    for result in run(
        [each for each in mutants if each not in known_results], options.seeds, options.jobs, options.units
    ):
        results.append(result)
        console.print(f"{len(results)}/{len(mutants)} {result.found_by:5} {result.mutant}")
        console.print(f"    swarm: {result.swarm.found or '-'}\n    units: {result.units.found or '-'}")
        if options.output:
            options.output.write_text(as_json(results, options.seeds, options.seed), encoding="utf-8")
    console.print(table_of(results))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Mutation testing of the core by swarm runs and by unit tests.")
    parser.add_argument("--count", type=int, default=80, help="mutants to try (default: 80)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice (default: 1)")
    parser.add_argument("--seeds", type=int, default=300, help="swarm runs for each mutant (default: 300)")
    parser.add_argument(
        "--units", choices=UNITS_ASKED, default="always", help="when to run unit tests (default: always)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default: 1)")
    parser.add_argument("--only", default="", metavar="WORDS", help="mutants whose line contains these words")
    parser.add_argument("--all-modules", action="store_true", help="modules that decide nothing as well")
    parser.add_argument("--list", action="store_true", help="print the choice, and try nothing")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="all as JSON, as it comes; what is there is not tried again",
    )
    parser.add_argument("--equivalents", type=Path, default=Path(__file__).with_name("mutations_equivalent.toml"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
