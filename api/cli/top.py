"""`trireme top`: what the models of a running server do, again and again (docs/command-line.md#top)."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .parser import USAGE, CommandError
from .server_options import add_server_options, connect_to, server_address

if TYPE_CHECKING:
    from .load_picture import LoadLook
    from .remote import HttpRemote

_METRICS_PORT = 8002
_LONGEST_INTERVAL_S = 86_400
_LONGEST_CELL = 16
"""Of a name or a state, where the terminal is narrow."""
_STYLES = {"READY": "green", "UNAVAILABLE": "red"}


def add_top_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser(
        "top", help="show what the models of a running server do: rates, batches, queues, times"
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks; default 1")
    parser.add_argument("--once", action="store_true", help="show one interval, as plain lines, and end")
    parser.add_argument(
        "--metrics-url", default="", help="of the server's metrics; default port 8002 of the same host; 'none' for none"
    )
    add_server_options(parser)
    parser.set_defaults(run=run_top)


def run_top(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from .remote import HttpRemote

    if not 0 < given.interval <= _LONGEST_INTERVAL_S:
        raise CommandError(
            f"--interval is {given.interval:g}", f"write a number above 0, {_LONGEST_INTERVAL_S} at most", USAGE
        )
    server = connect_to(given)
    if not isinstance(server, HttpRemote):
        raise CommandError("--url is for gRPC", "name the HTTP port: --url http://HOST:8000", USAGE)
    metrics = _metrics_server(given)
    try:
        if not given.once and sys.stdout.isatty() and find_spec("rich") is not None:
            _show_live(server, metrics, given)
        else:
            _print_lines(server, metrics, given)
    except KeyboardInterrupt:  # how else it would end
        if given.once:
            raise
    finally:
        server.close()
        if metrics is not None:
            metrics.close()
    return 0


def _metrics_server(given: argparse.Namespace) -> HttpRemote | None:
    from .remote import HttpRemote

    if given.metrics_url == "none":
        return None
    if given.metrics_url:
        _, host, port = server_address("--metrics-url", given.metrics_url, _METRICS_PORT)
    else:
        _, host, _ = server_address("--url", given.url)
        port = _METRICS_PORT
    headers = [("x-api-key", given.api_key)] if given.api_key else []
    return HttpRemote(f"http://{host}:{port}", host, port, headers, given.timeout)


def _look(server: HttpRemote, metrics: HttpRemote | None) -> LoadLook:
    from ...engine.metrics.page import read_metrics
    from .load_picture import LoadLook

    states = {}
    for row in server.index():
        reason = f": {row['reason']}" if row.get("reason") and row.get("state") != "READY" else ""
        states[row["name"], row.get("version", "")] = f"{row.get('state', '-')}{reason}"
    records = server.get("/v2/models/stats")["model_stats"]
    values = {}
    if metrics is not None:
        try:
            values = read_metrics(metrics.page("/metrics"))
        except CommandError:  # it has none, or elsewhere: the picture shows what the statistics have
            values = {}
    statistics = {(each["name"], each["version"]): each for each in records}
    return LoadLook(time.monotonic(), statistics, states, values)


def _print_lines(server: HttpRemote, metrics: HttpRemote | None, given: argparse.Namespace) -> None:
    from .load_picture import lines, picture, titles

    before = _look(server, metrics)
    while True:
        time.sleep(given.interval)
        now = _look(server, metrics)
        sys.stdout.write("".join(f"{line}\n" for line in lines(titles(now), picture(before, now))))
        sys.stdout.flush()
        if given.once:
            return
        sys.stdout.write("\n")
        before = now


def _show_live(server: HttpRemote, metrics: HttpRemote | None, given: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    watching = Live(Text("looking…"), console=Console(), screen=True, auto_refresh=False)
    with watching as live:
        before = _look(server, metrics)
        while True:
            time.sleep(given.interval)
            now = _look(server, metrics)
            live.update(_screen(before, now, given.url), refresh=True)
            before = now


def _screen(before: LoadLook, now: LoadLook, url: str) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from .load_picture import picture, titles

    rows = picture(before, now)
    table = Table(box=None, pad_edge=False, expand=False)
    for index, title in enumerate(titles(now)):
        column = [title, *(row[index] for row in rows)]
        least = len(title) if title == "sealed" else min(_LONGEST_CELL, max(map(len, column)))
        side = "right" if index > 2 and title != "sealed" else "left"
        table.add_column(title, justify=side, no_wrap=True, overflow="ellipsis", min_width=least)
    for name, version, state, *cells in rows:
        table.add_row(name, version, Text(state, _STYLES.get(state.partition(":")[0], "yellow")), *cells)
    head = f"{url}  {time.strftime('%H:%M:%S')}"
    if not now.metrics:
        head += "  (no metrics: name their address with --metrics-url)"
    return Group(Text(head, "bold"), Text(""), table, Text(""), Text("Ctrl-C ends this.", "dim"))
