"""`trireme route`: the routes of a server that runs, over HTTP (docs/routes.md#the-command)."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

_TIMEOUT_S = 60.0
_REFUSED, _UNREACHABLE = 1, 3
"""Exit codes; argparse has 2 for usage."""
_NAME = re.compile(r"[!\"$&-.0->@-~]+")
"""Names that a URL can have as they are: paths are not decoded, as those of models are not."""


class RouteCommandError(Exception):
    """What a person is told, and the exit code."""

    def __init__(self, text: str, code: int = _REFUSED) -> None:
        super().__init__(text)
        self.code = code


def add_route_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser("route", help="show and change the routes of a server: names for which models answer")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", default="http://localhost:8000", help="of the server's HTTP port; default %(default)s")
    common.add_argument(
        "--api-key", default=os.environ.get("TRIREME_API_KEY", ""), help="by default the variable TRIREME_API_KEY"
    )
    common.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="sent along, such as a restricted API's key"
    )
    common.add_argument("--json", action="store_true", help="print what the server answers, as JSON")
    actions.add_parser("list", parents=[common], help="show all routes")
    helps = {"show": "show a route", "remove": "remove a route", "stop": "have a canary give its share back"}
    for action, text in helps.items():
        actions.add_parser(action, parents=[common], help=text).add_argument("name")
    setting = actions.add_parser("set", parents=[common], help="set a route, or change it")
    setting.add_argument("name")
    setting.add_argument("file", nargs="?", type=Path, help="TOML or JSON: the route's table, or a file of routes")
    setting.add_argument(
        "--target", action="append", default=[], metavar="MODEL[:VERSION]=WEIGHT", help="in percent; 100 together"
    )
    setting.add_argument("--sticky", help="sequence, header:NAME, parameter:NAME or request-id")
    setting.add_argument("--canary", metavar="MODEL[:VERSION]", help="the target whose share grows")
    setting.add_argument("--steps", metavar="PERCENT,...", help="of the canary; default 1,5,25,50,100")
    setting.add_argument("--step-secs", type=float, help="of the canary; default 60")
    setting.add_argument("--shadow", metavar="MODEL[:VERSION]", help="gets copies of requests")
    parser.set_defaults(run=run_route)


def run_route(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    try:
        text = _perform(given)
    except RouteCommandError as error:
        sys.stderr.write(f"trireme route: {error}\n")
        return error.code
    sys.stdout.write(text)
    return 0


def _perform(given: argparse.Namespace) -> str:
    """What to print."""
    path = "" if given.action == "list" else f"/{_in_url(given.name)}"
    match given.action:
        case "set":
            found = _ask(given, "PUT", path, _document(given))
        case "remove":
            _ask(given, "DELETE", path)
            return "" if given.json else f"route '{given.name}' is removed\n"
        case "stop":
            found = _ask(given, "POST", f"{path}/stop")
        case _:
            found = _ask(given, "GET", path)
    if given.json:
        return json.dumps(found, indent=2) + "\n"
    try:
        return route_table(found if isinstance(found, list) else [found])
    except (KeyError, TypeError) as error:
        raise RouteCommandError(f"what answers at {given.url} is no Trireme of this version") from error


# ---- asking the server ----


def _in_url(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise RouteCommandError(
            f"the name is '{name}', expected one that a URL can have: ASCII without blanks and any of / ? # %; others "
            "can be set in the file of routes, or over gRPC",
            2,
        )
    return name


def _ask(given: argparse.Namespace, method: str, path: str, document: object = None) -> Any:
    """The JSON that the server answers; None for none."""
    url = given.url if "://" in given.url else f"http://{given.url}"
    if urlsplit(url).scheme not in ("http", "https"):
        raise RouteCommandError(f"--url is {given.url}, expected http://HOST:PORT or https://HOST:PORT", 2)
    body = None if document is None else json.dumps(document).encode()
    try:
        request = Request(f"{url.rstrip('/')}/v2/routes{path}", body, dict(_headers(given)), method=method)
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None
    except HTTPError as error:
        raise RouteCommandError(_refusal(error, given)) from error
    except URLError as error:
        raise RouteCommandError(f"no server answers at {given.url}: {error.reason}", _UNREACHABLE) from error
    except (OSError, HTTPException) as error:
        raise RouteCommandError(f"no server answers at {given.url}: {error!r}", _UNREACHABLE) from error
    except ValueError as error:
        raise RouteCommandError(f"what answers at {given.url} is no Trireme, or cannot be: {error}") from error


def _headers(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield "Content-Type", "application/json"
    if given.api_key:
        yield "X-API-Key", given.api_key
    for text in given.header:
        name, colon, value = text.partition(":")
        if not colon:
            raise RouteCommandError(f"--header is {text}, expected NAME:VALUE", 2)
        yield name.strip(), value.strip()


def _refusal(error: HTTPError, given: argparse.Namespace) -> str:
    """What the server says, or, if it is none that knows of routes, what that means."""
    try:
        said = json.loads(error.read())["error"]
    except (ValueError, KeyError, TypeError, OSError):
        return f"what answers at {given.url} knows of no routes (HTTP status {error.code})"
    if error.code == 404 and said == "Not Found":
        return f"what answers at {given.url} knows of no routes: {said}"
    hint = "; give a key with --api-key" if error.code == 401 and not given.api_key else ""
    return f"{said}{hint}"


# ---- what is to be set ----


def _document(given: argparse.Namespace) -> dict[str, Any]:
    """The route's table; what the server refuses is not looked at here."""
    document = {} if given.file is None else _read_file(given.file, given.name)
    if given.target:
        document["targets"] = _weights(given.target)
    elif given.file is None:
        raise RouteCommandError("nothing to set: give a file, or --target MODEL:VERSION=WEIGHT for each target", 2)
    if given.sticky is not None:
        document["sticky"] = given.sticky
    steps = None if given.steps is None else [_whole("--steps", each, 5) for each in given.steps.split(",")]
    changes = {"target": given.canary, "steps": steps, "step-secs": given.step_secs}
    if changes := {key: value for key, value in changes.items() if value is not None}:
        document["canary"] = {**(document.get("canary") or {}), **changes}
    if given.shadow is not None:
        document["shadow"] = {**(document.get("shadow") or {}), "target": given.shadow}
    return document


def _weights(targets: Sequence[str]) -> dict[str, int]:
    weights: dict[str, int] = {}
    for text in targets:
        target, _, weight = text.rpartition("=")
        if not target:
            raise RouteCommandError(
                f"--target: found '{text}', expected MODEL[:VERSION]=WEIGHT, such as digits:1=90", 2
            )
        if target in weights:
            raise RouteCommandError(f"--target: '{target}' is given twice, expected once", 2)
        weights[target] = _whole("--target", weight, 90)
    return weights


def _whole(flag: str, text: str, example: int) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise RouteCommandError(f"{flag}: found '{text}', expected a whole percent, such as {example}", 2) from error


def _read_file(path: Path, name: str) -> dict[str, Any]:
    """The table of a route in a file."""
    try:
        text = path.read_text("utf-8-sig")
        found = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except OSError as error:
        raise RouteCommandError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RouteCommandError(f"{path}: neither TOML nor JSON: {error}") from error
    if isinstance(found.get("routes"), dict):
        if name not in found["routes"]:
            raise RouteCommandError(f"{path}: there is no [routes.{name}], only {', '.join(found['routes']) or 'none'}")
        found = found["routes"][name]
    return {key: value for key, value in found.items() if key not in ("name", "state")}  # as `show --json` prints it


# ---- what is shown ----

_HEAD = ("ROUTE", "TARGET", "WEIGHT", "SHARE", "READY", "REQUESTS", "FAILURES")


def route_table(routes: Sequence[dict[str, Any]]) -> str:
    """Routes as lines of text, each with its targets, and how its canary and its shadow do."""
    if not routes:
        return "there are no routes\n"
    rows: list[tuple[str, ...]] = [_HEAD]
    notes: dict[int, list[str]] = {}  # by the row that they follow
    for route in routes:
        targets = route["state"]["targets"]
        for number, each in enumerate(targets):
            weight, share, ready = f"{each['weight']}%", f"{each['share']:g}%", "yes" if each["ready"] else "no"
            name = "" if number else route["name"]
            counts = (f"{each['requests']:,}", f"{each['failures']:,}")
            rows.append((name, each["target"], weight, share, ready, *counts))
        reasons = [f"'{each['target']}' is not ready: {each['why']}" for each in targets if each["why"]]
        notes[len(rows) - 1] = [*reasons, *_notes(route)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines: list[str] = []
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column < 2 or column == 4 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
        lines += [f"  {note}" for note in notes.get(number, ())]
    return "\n".join(lines) + "\n"


def _notes(route: dict[str, Any]) -> Iterator[str]:
    state = route["state"]
    if "sticky" in route:
        yield f"sticky by {route['sticky']}"
    rollout = state.get("rollout")
    if rollout is not None:
        yield f"canary '{rollout['target']}': {_progress(rollout)}: {rollout['reason']}"
    if "shadow" in route:
        shown = ", ".join(f"{key} {value}" for key, value in state.get("shadow", {}).items())
        yield f"shadow '{route['shadow']['target']}'{f': {shown}' if shown else ''}"


def _progress(rollout: dict[str, Any]) -> str:
    match rollout["state"]:
        case "step":
            left = rollout.get("left_s")
            time = f", {left:.0f} s left" if left else ""
            return f"step {rollout['step']} of {rollout['steps']}, {rollout['percent']:g}%{time}"
        case "done":
            return f"done, {rollout['percent']:g}%"
        case "back":
            return f"went back to {rollout['percent']:g}%"
        case other:
            return str(other)
