"""Writes the pages of docs/reference/ that are made from the code: flags, metric families, HTTP operations,
commands, the Python API.

    python docs/site/reference.py

A test compares what is committed with what this makes.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import trio
from python_api import python_page

from trireme.actors import InferenceServer
from trireme.api.cli.flag_table import GROUPS
from trireme.api.cli.flags import Flag
from trireme.api.cli.main import command_parser
from trireme.api.http.openapi import document
from trireme.api.metrics.collector import ServerCollector
from trireme.engine.metrics.families import CpuReading, HostReadings
from trireme.engine.options import ControlMode, ServerOptions

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
METRIC_SOURCES = ("engine", "actors", "api", "gateway")

MADE = "This page is made from the code by `python docs/site/reference.py`."


def _link(page: str) -> str:
    """A link to another page, from docs/reference/."""
    return f"[{page.replace('..', 'docs')}.md]({page}.md)"


def table(titles: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table; `titles` are separated by bars."""
    yield f"| {titles} |"
    yield "|" + "---|" * (titles.count("|") + 1)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


# ---- flags ----


def flags_page() -> Iterator[str]:
    """Every flag of `trireme serve`, by groups."""
    yield "# Flags of `trireme serve`"
    yield ""
    yield f"{MADE} `trireme serve --help-all` prints the same. Rules: {_link('command-line')}."
    for group in GROUPS:
        if group.title:
            yield from ("", f"## {group.title.capitalize() if group.title.isupper() else group.title}", "")
            yield from table("Flag | Default | What it does", (_flag_row(flag) for flag in group.flags))


def _flag_row(flag: Flag) -> Iterator[str]:
    yield f"`--{flag.name}`"
    default = flag.default
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    yield "" if flag.kind is None or default in (None, "", ()) else shown
    text = flag.help
    if flag.instead:
        text = f"Deprecated, use `{flag.instead}`. {text}"
    if flag.missing:
        text += f" {'No effect' if flag.tolerated else 'Refused'} in this version: {flag.missing}."
    if flag.repeatable and "several times" not in text:
        text += " May be given several times."
    yield _plain(text)


def _plain(text: str) -> str:
    """Without what Markdown would take for markup: names in angle brackets, stars."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


# ---- metrics ----


def metrics_page() -> Iterator[str]:
    """Every metric family: what a server with everything switched on would print, then what other programs have."""
    yield "# Metric families"
    yield ""
    yield f"{MADE} When a family is there, and its labels: {_link('metrics')} and {_link('../metrics')}."
    known: set[str] = set()
    for title, rows in (
        ("Of a server", trio.run(_collected)),
        ("Of access rules, routes and GPUs", _written("gateway")),
    ):
        new = [row for row in rows if row[0] not in known]
        known |= {row[0] for row in new}
        yield from ("", f"## {title}", "", *table("Family | Type | Help", _shown(new)))
    rest = [row for row in _written() if row[0] not in known]
    yield from ("", "## Of a gateway", "", *table("Family | Type | Help", _shown(rest)))


def _shown(rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    for name, kind, text in rows:
        yield f"`{name}`", kind, _plain(text)


async def _collected() -> list[tuple[str, str, str]]:
    """Name, type and help of what a server's registry has; without a model in its repository."""
    with tempfile.TemporaryDirectory() as repository:
        options = ServerOptions(
            model_repository=(Path(repository),),
            model_control_mode=ControlMode.ON_DEMAND,
            model_memory_limit=1 << 30,
            watchdog_limit_s=10.0,
            cache_config={"local": {"size": "1048576"}},
        )
        async with InferenceServer(options) as server:
            families = ServerCollector(server, lambda: HostReadings(cpu=CpuReading())).collect()
            return [(each.name, each.type, each.documentation) for each in families]


def _written(but: str = "") -> Iterator[tuple[str, str, str]]:
    """Those that the sources name to the letter.

    Args:
        but: a folder to leave out.
    """
    for folder in METRIC_SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")) if folder != but else ():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "MetricFamily" and len(node.args) >= 3:
                    given = [each.value for each in node.args[:3] if isinstance(each, ast.Constant)]
                    if len(given) == 3:
                        yield str(given[0]), str(given[2]), str(given[1])


# ---- HTTP operations ----


def operations_page() -> Iterator[str]:
    """Every path and method of the HTTP port, from the OpenAPI document."""
    yield "# HTTP operations"
    yield ""
    yield f"{MADE} It is the OpenAPI document as a table; `trireme openapi` prints it with its schemas."
    yield f"What each call takes and answers in detail: {_link('http')}, {_link('http-inference')}."
    described = document()
    for tag in described["tags"]:
        rows = [
            (f"`{method.upper()} {path}`", operation["summary"], _body(operation), _statuses(operation))
            for path, methods in described["paths"].items()
            for method, operation in methods.items()
            if method != "parameters" and tag["name"] in operation["tags"]
        ]
        yield from ("", f"## {tag['name']}", "", *table("Call | What it does | Body | Answers", rows))


def _body(operation: dict) -> str:
    request = operation.get("requestBody")
    if request is None:
        return ""
    schema = request["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return schema if request["required"] else f"{schema}, or none"


def _statuses(operation: dict) -> str:
    return ", ".join(sorted(operation["responses"]))


# ---- commands ----


def commands_page() -> Iterator[str]:
    """Every sub-command of `trireme` and its options, as argparse knows them."""
    yield "# Commands"
    yield ""
    yield f"{MADE} `trireme COMMAND --help` prints the same. Examples: {_link('../command-line')}."
    yield from _commands(command_parser(None), "trireme")


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {each.dest: each.help for each in action._choices_actions}
            for word, inner in sorted(action.choices.items()):
                yield from ("", f"## {name} {word}", "", _plain(_sentence(about.get(word) or "")))
                rows = [_option_row(each) for each in inner._actions if _has_row(each)]
                if rows:
                    yield from ("", *table("Argument | What it does", rows))
                yield from _commands(inner, f"{name} {word}")


def _has_row(action: argparse.Action) -> bool:
    hidden = action.help == argparse.SUPPRESS
    return not hidden and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)


def _option_row(action: argparse.Action) -> tuple[str, str]:
    value = f" {action.metavar}" if action.option_strings and isinstance(action.metavar, str) else ""
    names = ", ".join(f"`{each}{value}`" for each in action.option_strings) or f"`{action.metavar or action.dest}`"
    text = (action.help or "") % {"default": action.default, "prog": "trireme"} if action.help else ""
    if action.choices is not None:
        text += f" ({', '.join(map(str, action.choices))})"
    return names, _plain(text.strip())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "." if text else ""


PAGES = {
    "flags": flags_page,
    "metric-families": metrics_page,
    "http-operations": operations_page,
    "commands": commands_page,
    "python": lambda: python_page(MADE),
}


def path_of(name: str) -> Path:
    """Where a page is."""
    return REFERENCE / f"{name}.md"


def pages() -> dict[str, str]:
    """The pages' texts, by their names without the ending."""
    return {name: "\n".join([*make(), ""]) for name, make in PAGES.items()}


if __name__ == "__main__":
    for page_name, text in pages().items():
        path_of(page_name).write_text(text)
