"""The command line: what to measure, on what, and where the results go.

`make bench` runs it, as does `PYTHONPATH=benchmarks python -m bench`. Peers are installed into a cache folder, serve
the same models, and are measured in turn; the results are a table, a JSON file and a chart. Without `--quick` it takes
fifty minutes. Ctrl-C ends it and keeps what has been measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from servers import FailedError, stop_all

from . import chart, goals, report
from .clients import PerfAnalyzer
from .document import SUBJECT, DifferentError, Document, RowFacts, merge
from .machine import commit, load_average, load_warning, machine, open_files
from .models import MODELS, Model, write_file
from .peers import PEERS
from .peers.base import Peer
from .peers.environment import UnavailableError
from .peers.runtime import best_settings
from .peers.v2 import perf_analyzer
from .plan import RUNTIME, Plan, expected_s, make_plan, to_measure, without
from .runner import OutOfTimeError, Runner
from .settings import Settings, cache_folder
from .workloads import FEATURED, WORKLOADS, Workload

OTHERS = ("triton", "mlserver", "litserve", "ray-serve")
KEYS = tuple(row.key for workload in WORKLOADS.values() for row in workload.rows)
ALTERNATIONS, SECONDS = 5, 0.5
QUICK_MINUTES, QUICK_ALTERNATIONS, QUICK_SECONDS = 9.0, 3, 0.25
GRACE_S = 20.0
"""How long a measurement that was begun in time may take, before it is given up."""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PRINTED_COLUMNS = 160
"""Of a table that goes into a file."""
DETAILED_ROWS = 6
"""Up to so many rows the table on the terminal has every metric."""


def _above(number: type[int] | type[float]) -> Callable[[str], float]:
    """Reads a number above 0."""

    def read(text: str) -> float:
        value = number(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        return value

    read.__name__ = number.__name__  # what argparse calls it if the text is no number
    return read


def parser(description: str | None = __doc__) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(WORKLOADS)
    result.add_argument("--workloads", nargs="+", choices=WORKLOADS, metavar="NAME", help=f"some of: {names}")
    result.add_argument("--peers", nargs="*", choices=OTHERS, metavar="NAME", help=f"some of: {', '.join(OTHERS)}")
    result.add_argument("--alternations", type=_above(int), help="how often each is measured (5; quick: 3)")
    result.add_argument(
        "--seconds", type=_above(float), help="a measurement window; a sample has three (.5; quick: .25)"
    )
    result.add_argument("--concurrency", type=int, nargs="+", default=(), help="only rows with one of these")
    result.add_argument("--quick", action="store_true", help="fewer rows; ends within ten minutes, installing aside")
    result.add_argument("--minutes", type=_above(float), help="begin no measurement later (quick: 9)")
    result.add_argument("--triton-command", default=os.environ.get("TRITON_COMMAND"), help="or $TRITON_COMMAND")
    result.add_argument("--perf-analyzer", default=os.environ.get("PERF_ANALYZER"), help="or $PERF_ANALYZER")
    result.add_argument("--earlier", help="starts Trireme at another commit, as 'DIR/.venv/bin/trireme serve'")
    result.add_argument("--output", type=Path, default=Path("bench-results"), help="folder for the results")
    result.add_argument("--continue", dest="goes_on", action="store_true", help="measure what is not in --output yet")
    again = "only make table and chart again, from files; of a row that is in several, the last one counts"
    result.add_argument("--again-from", type=Path, nargs="+", metavar="JSON", help=again)
    result.add_argument("--goals", action="store_true", help="with --again-from: print goals and what was measured")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser()
    asked = options.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, PRINTED_COLUMNS)
    if asked.again_from:
        return again(asked.again_from, asked.output, console, goals_only=asked.goals)
    chosen = [WORKLOADS[name] for name in asked.workloads or WORKLOADS]
    chosen = to_measure(chosen, quick=asked.quick, concurrencies=asked.concurrency)
    if not chosen:
        options.error("these workloads have no row that --quick and --concurrency leave to be measured")
    settings = Settings(
        cache_folder(),
        asked.seconds or (QUICK_SECONDS if asked.quick else SECONDS),
        asked.alternations or (QUICK_ALTERNATIONS if asked.quick else ALTERNATIONS),
        asked.quick,
        asked.triton_command,
        asked.perf_analyzer,
        asked.earlier,
    )
    names = [SUBJECT, *(["earlier"] if asked.earlier else []), *(OTHERS if asked.peers is None else asked.peers)]
    names += [RUNTIME] if any(row.limited for each in chosen for row in each.rows) else []
    path = asked.output / "bench.json"
    done = Document.read(path) if asked.goes_on and path.exists() else None
    if done:
        done.ended = "complete"  # but for what is measured now
        chosen = without(chosen, [row.key for row in done.rows if done.has_all(row.key, names, settings.alternations)])
    return run(settings, chosen, names, asked.minutes, asked.output, console, done)


def again(files: Sequence[Path], output: Path, console: Console, *, goals_only: bool) -> int:
    """Make table and chart from results, or print how far they reach the goals; the exit code."""
    try:
        document = merge([Document.read(file) for file in files], KEYS)
    except (OSError, ValueError, TypeError, KeyError, DifferentError) as error:
        console.print(f"[red]{escape(str(error) or type(error).__name__)}")
        return 2
    if goals_only:
        for line in goals.lines(document):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    else:
        finish(document, output, console)
    return 0


def run(
    settings: Settings,
    workloads: Sequence[Workload],
    names: Sequence[str],
    minutes: float | None,
    output: Path,
    console: Console,
    done: Document | None,
) -> int:
    """Measure, and write and print the results, together with those of a run that is continued; the exit code."""
    minutes = minutes or (QUICK_MINUTES if settings.quick else None)
    for number in INTERRUPTS:
        signal.signal(number, _interrupt)
    before = load_average()
    if warning := load_warning(before[0], os.cpu_count() or 1):
        console.print(f"[yellow]{warning}.")
    document = Document({name: PEERS[name].title for name in names}, [])
    document.facts = {
        "began": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(Path(__file__).parent),
        "machine": machine(),
        "load_before": before,
        "warning": warning,
        "alternations": settings.alternations,
        "seconds": settings.seconds,
    }

    def whole() -> Document:
        return merge([done, document], KEYS) if done else document

    open_files()
    output.mkdir(parents=True, exist_ok=True)
    try:
        measure(document, settings, workloads, names, minutes, lambda: whole().write(output / "bench.json"), console)
        document.ended = "complete"
    except OutOfTimeError:
        document.ended = f"it ran out of its {minutes:g} minutes"
    except KeyboardInterrupt:
        document.ended = "it was interrupted"
    finally:
        signal.alarm(0)
        _ignore_interrupts()
        stop_all()
        finish(whole(), output, console)
    return 130 if document.ended == "it was interrupted" else 0


def measure(
    document: Document,
    settings: Settings,
    workloads: Sequence[Workload],
    names: Sequence[str],
    minutes: float | None,
    written: Callable[[], None],
    console: Console,
) -> None:
    """Install, plan and measure; the results go into the document.

    Args:
        written: called when the document has changed.

    Raises:
        OutOfTimeError: the time is over.
        DifferentError: a run that is continued was on another machine, or of other versions.
    """
    rows = [row for workload in workloads for row in workload.rows]
    uses_tool = any(isinstance(row.client, PerfAnalyzer) for row in rows)
    peers, tool = install(document, settings, names, console, uses_tool=uses_tool)
    models = prepare(document, settings, workloads, console)
    plan = make_plan(workloads, list(peers.values()), models, settings)
    describe(document, plan, peers, models)
    total_s = expected_s(plan, peers, settings)
    until = f", at most {minutes:g}" if minutes else ""
    console.print(f"{plan.turns} measurements, which take about {total_s / 60:.0f} minutes{until}.")
    deadline_s = time.monotonic() + 60 * minutes if minutes else float("inf")
    if minutes:
        signal.signal(signal.SIGALRM, _run_out_of_time)
        signal.alarm(round(60 * minutes + GRACE_S))
    runner = Runner(
        settings,
        peers,
        models,
        tool,
        document,
        lambda line: console.print(line, highlight=False, soft_wrap=True),
        written,
        deadline_s,
    )
    runner.run(plan)


def install(
    document: Document, settings: Settings, names: Sequence[str], console: Console, *, uses_tool: bool
) -> tuple[dict[str, Peer], str]:
    """The peers that can be had, by name, and the command that starts perf_analyzer, if that is used."""
    tool, peers = "", {}
    for name in names:
        peer = PEERS[name](settings)
        console.print(f"{peer.title}: ", end="")
        try:
            document.versions[name] = peer.install()
            peers[name] = peer
            console.print(document.versions[name], highlight=False)
        except UnavailableError as error:
            document.unavailable[name] = str(error)
            console.print(f"[red]left out: {escape(str(error))}")
    try:
        tool = perf_analyzer(settings) if uses_tool else ""
    except UnavailableError as error:
        console.print(f"[red]perf_analyzer: {escape(str(error))}")
    return peers, tool


def prepare(
    document: Document, settings: Settings, workloads: Sequence[Workload], console: Console
) -> dict[str, Model]:
    """Write the models' files; networks whose limit is measured are served as the runtime is fastest."""
    models = {name: write_file(MODELS[name], settings.cache / "models") for name in _needed(workloads)}
    limited = [row.model for workload in workloads for row in workload.rows if row.limited]
    for name in dict.fromkeys(limited):
        try:
            best, results = best_settings(models[name], settings.seconds, os.cpu_count() or 1)
        except FailedError as error:
            console.print(f"[red]{name}: {escape(str(error))}")
            continue
        document.facts.setdefault("runtime_settings", {})[name] = results
        settings_text = f"{best.instances} x {best.threads} threads, batches of {best.max_batch_size}"
        console.print(f"{name}: the runtime alone is at its best with {settings_text}")
        models[name] = best
    return models


def _needed(workloads: Sequence[Workload]) -> list[str]:
    """Names of all models that are served, those that are called included."""
    named = [name for workload in workloads for name in workload.models]
    return list(dict.fromkeys(each for name in named for each in (*MODELS[name].steps, name)))


def describe(document: Document, plan: Plan, peers: dict[str, Peer], models: dict[str, Model]) -> None:
    """Put the rows into the document, and what is known of them before they are measured."""
    for row in plan.rows:
        document.rows.append(
            RowFacts(row.key, row.workload, row.what, row.concurrency, row.client.title, list(row.metrics))
        )
        document.missing[row.key] = dict(plan.refused[row.key])
        notes = {name: row.client.how(peer, models[row.model]) for name, peer in peers.items()}
        document.notes[row.key] = {name: note for name, note in notes.items() if note}


def finish(document: Document, output: Path, console: Console) -> None:
    """Write the results, and print the table."""
    output.mkdir(parents=True, exist_ok=True)
    document.write(output / "bench.json")
    (output / "bench.md").write_text(report.markdown(document))
    drawn = chart.draw(document, [output / "bench.png", output / "bench.svg"], FEATURED)
    table, notes = report.terminal_table(document, full=len(document.rows) <= DETAILED_ROWS)
    console.print(table, crop=False, soft_wrap=True)
    for place, note in enumerate(notes, start=1):
        console.print(f"  [{place}] {note}", markup=False, highlight=False, soft_wrap=True)
    files = ["bench.json", "bench.md", *(["bench.png", "bench.svg"] if drawn else [])]
    console.print(f"{'Complete' if document.ended == 'complete' else f'Not complete: {document.ended}'}. ", end="")
    console.print(f"Results: {', '.join(str(output / file) for file in files)}", highlight=False, soft_wrap=True)


def _interrupt(_number: int, _frame: object) -> None:
    _ignore_interrupts()  # or a second one would stop the first from stopping the servers
    raise KeyboardInterrupt


def _run_out_of_time(_number: int, _frame: object) -> None:
    raise OutOfTimeError


def _ignore_interrupts() -> None:
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
