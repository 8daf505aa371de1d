"""`trireme bench`: what a model of a running server bears, by clients or by rate (docs/command-line.md#bench)."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from .parser import USAGE, CommandError
from .server_options import add_tls_options, connect_to, tls_files

if TYPE_CHECKING:
    from ...clients.played import PlayedSummary
    from ...clients.prepared import RequestPreparer
    from ...clients.target import LoadTarget
    from ...engine.logs.request_log import RequestTraffic

_CLIENTS = "1,2,4,8,16,32"
_MOST_REQUESTS = 1_000_000
_FIRST_REQUESTS = 16
_ANSWER_S = 60.0

OnAnswered = Callable[[int], object]


class LoadLevel(NamedTuple):
    """A load: a closed loop or an open one.

    Attributes:
        clients: of a closed loop: each sends its next request when the last one is answered; 0 for an open loop.
        rate_hz: of an open loop, requests a second.
    """

    clients: int = 0
    rate_hz: float = 0.0

    def __str__(self) -> str:
        return f"{self.clients} client{'s' * (self.clients > 1)}" if self.clients else f"{self.rate_hz:g}/s"


class LevelResult(NamedTuple):
    """A level, and what clients have seen."""

    level: LoadLevel
    summary: PlayedSummary


def add_bench_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser(
        "bench",
        help="measure throughput and latency of a model of a running server",
        description="With --clients each client asks again when it is answered (closed loop), with --rate they come "
        "at random times, however the server does (open loop). Inputs are made up from the metadata.",
    )
    parser.add_argument("model")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--clients", metavar="N,…", help=f"levels of the closed loop; default {_CLIENTS}")
    how.add_argument("--rate", metavar="HZ,…", help="levels of the open loop, in requests a second")
    parser.add_argument("--rows", type=int, default=1, help="of a request, if the model batches; default 1")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each level; default 3")
    parser.add_argument("--warm-up", type=float, default=0.5, metavar="SECONDS", help="before each level; default 0.5")
    parser.add_argument("--objective-ms", type=float, help="answers that take longer do not count as goodput")
    parser.add_argument("--sequence-length", type=float, default=0.0, help="mean; for models with sequences")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--url",
        default="http://localhost:8000",
        help="http:// or grpc://HOST:PORT, with TLS https:// or grpcs://; default %(default)s",
    )
    add_tls_options(parser)
    parser.add_argument(
        "--api-key", default=os.environ.get("TRIREME_API_KEY", ""), help="by default the variable TRIREME_API_KEY"
    )
    parser.set_defaults(run=run_bench)


def run_bench(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from ...clients.connections import RefusedError
    from ...clients.prepared import RequestPreparer
    from ...clients.target import LoadTarget
    from ...engine.errors import InvalidArgumentError

    levels = list(_levels(given))
    for name in ("seconds", "rows"):
        if not 0 < getattr(given, name) < math.inf:
            raise CommandError(f"--{name} is {getattr(given, name)}", "write a number above 0", USAGE)
    if not given.warm_up < math.inf:
        raise CommandError(f"--warm-up is {given.warm_up}", "write a number of seconds", USAGE)
    for level in levels:
        if level.rate_hz * (given.seconds + max(given.warm_up, 0.0)) > _MOST_REQUESTS:
            raise CommandError(
                f"{level} for {given.seconds:g} s and the warm-up are more than {_MOST_REQUESTS} requests",
                "lower --rate or --seconds",
                USAGE,
            )
    try:
        target = LoadTarget.of(given.url, api_key=given.api_key, tls=tls_files(given))
        _check_model(given)
        preparer = RequestPreparer(target)
        results = [_measure(level, given, target, preparer) for level in levels]
    except InvalidArgumentError as error:
        raise CommandError(error.message, "correct it", USAGE) from error
    except RefusedError as error:
        raise CommandError(str(error), f"see what the model takes with: trireme infer {given.model}") from error
    if given.json:
        rows = [{**level._asdict(), **summary.document()} for level, summary in results]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        columns = min(shutil.get_terminal_size().columns, 120) if sys.stdout.isatty() else 80
        sys.stdout.write("".join(f"{line}\n" for line in (*result_lines(results), "", *chart_lines(results, columns))))
    return 0 if all(each.summary.answered for each in results) else 1


def _check_model(given: argparse.Namespace) -> None:
    """CommandError if there is no such server, or no such model."""
    server = connect_to(argparse.Namespace(**vars(given), header=[], timeout=_ANSWER_S))
    try:
        server.model(given.model)
    finally:
        server.close()


def _levels(given: argparse.Namespace) -> Iterator[LoadLevel]:
    """Those that are asked for."""
    text = given.rate or given.clients or _CLIENTS
    for word in text.split(","):
        try:
            level = LoadLevel(rate_hz=float(word)) if given.rate else LoadLevel(clients=int(word))
        except ValueError:
            level = LoadLevel()
        if not (level.clients > 0 or 0 < level.rate_hz < math.inf):
            name = "--rate" if given.rate else "--clients"
            raise CommandError(f"{name} is '{text}'", "write numbers above 0, separated by commas", USAGE)
        yield level


# ---- measuring ----


def _measure(level: LoadLevel, given: argparse.Namespace, target: LoadTarget, preparer: RequestPreparer) -> LevelResult:
    """One level, behind its warm-up."""
    from ...clients.player import play

    warm_up_s = max(given.warm_up, 0.0)
    if level.rate_hz:
        traffic = _open_loop(level, given, given.seconds + warm_up_s)
    else:
        rate_hz, count = 0.0, max(_FIRST_REQUESTS, 2 * level.clients)
        while True:  # how many requests make up the time is found out while the server warms up
            traffic = _closed_loop(level, given, count)
            summary = play(traffic, target, connections=level.clients, maker=preparer).summary()
            rate_hz = summary.requests / summary.seconds
            if summary.seconds >= warm_up_s / 2 or count >= _MOST_REQUESTS or not summary.answered:
                break
            count = min(_MOST_REQUESTS, max(2 * count, math.ceil(rate_hz * warm_up_s)))
        count = min(_MOST_REQUESTS, max(count, 2 * level.clients, math.ceil(rate_hz * given.seconds)))
        traffic, warm_up_s = _closed_loop(level, given, count), 0.0
    objective_s = None if given.objective_ms is None else given.objective_ms / 1e3
    connections = level.clients or 256
    with _progress(f"{level}", len(traffic.requests)) as on_answered:
        played = play(traffic, target, connections=connections, maker=preparer, on_progress=on_answered)
    return LevelResult(level, played.summary(objective_s, warm_up_s))


def _kind(given: argparse.Namespace) -> Any:
    from ...engine.logs.generators import RequestKind

    return RequestKind(given.model, rows=(given.rows,), sequence_length=given.sequence_length)


def _open_loop(level: LoadLevel, given: argparse.Namespace, seconds: float) -> RequestTraffic:
    from ...engine.logs.generators import PoissonArrivals, generate

    return generate(PoissonArrivals(level.rate_hz), [_kind(given)], seconds)


def _closed_loop(level: LoadLevel, given: argparse.Namespace, count: int) -> RequestTraffic:
    from ...engine.logs.generators import generate_closed
    from ...engine.logs.request_log import LoggedLoop

    return generate_closed(LoggedLoop(level.clients), [_kind(given)], count)


@contextlib.contextmanager
def _progress(what: str, total: int) -> Iterator[OnAnswered]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda _answered: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, refresh_per_second=4) as progress:
        task = progress.add_task(what, total=total)
        yield lambda answered: progress.update(task, completed=answered)


# ---- showing ----


def result_lines(results: Sequence[LevelResult]) -> Iterator[str]:
    """A table, and why requests were not answered."""
    from .text_table import text_table

    header = ("load", "answers/s", "mean ms", "p50 ms", "p95 ms", "p99 ms", "most ms", "failed", "late")
    rows = []
    for level, summary in results:
        times = (summary.mean_s, summary.p50_s, summary.p95_s, summary.p99_s, summary.most_s)
        failed = summary.refused + summary.unanswered
        cells = [f"{value * 1e3:.2f}" if value == value else "-" for value in times]
        rows.append((str(level), f"{summary.throughput:.1f}", *cells, str(failed), str(summary.late)))
    yield from text_table(header, rows)
    reasons = sum((Counter(dict(summary.reasons)) for _, summary in results), Counter[str]())
    for reason, count in reasons.most_common(5):
        yield f"failed: {reason} ({count} times)"


_MARKS = (("p50", "•"), ("p95", "+"), ("p99", "×"))
_ROWS = 12
_LEFT = 10


def chart_lines(results: Sequence[LevelResult], columns: int) -> Iterator[str]:
    """Latency percentiles, on a scale of powers, over throughput; nothing if no level was answered."""
    points = [
        (summary.throughput, value * 1e3, mark)
        for _, summary in results
        if summary.answered
        for (_, mark), value in zip(_MARKS, (summary.p50_s, summary.p95_s, summary.p99_s), strict=True)
    ]
    if not points:
        return
    width = max(20, columns - _LEFT - 2)
    most = max(x for x, _, _ in points) or 1.0
    low, high = (math.log10(edge(max(y, 1e-6) for _, y, _ in points)) for edge in (min, max))
    low, high = (low - 0.1, high + 0.1) if high - low < 0.2 else (low, high)
    grid = [[" "] * width for _ in range(_ROWS)]
    for x, y, mark in points:
        row = round((high - math.log10(max(y, 1e-6))) / (high - low) * (_ROWS - 1))
        grid[row][round(x / most * (width - 1))] = mark
    yield f"{'ms':>{_LEFT - 1}}   " + "  ".join(f"{mark} {name}" for name, mark in _MARKS)
    for number, cells in enumerate(grid):
        value = 10 ** (high - (high - low) * number / (_ROWS - 1))
        label = f"{value:.3g}" if number % 3 == 0 or number == _ROWS - 1 else ""
        yield f"{label:>{_LEFT - 1}} │{''.join(cells)}".rstrip()
    yield f"{'':>{_LEFT - 1}} └{'─' * width}"
    end = f"{most:.0f} answers/s"
    yield f"{'':>{_LEFT}}0{end:>{width - 1}}"
