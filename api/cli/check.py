"""`trireme check`: what a server would load of repositories and apps, and every problem of every model at once
(docs/command-line.md#check)."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .parser import FAILED, USAGE, CommandError

if TYPE_CHECKING:
    from ...engine.description import IndexEntry
    from ...engine.options import ServerOptions
    from .checked_apps import CheckedApps
    from .findings import Finding
    from .load_log import LoadLog


def add_check_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser(
        "check",
        help="say what would load of a repository or an app, and every problem with its file, line and remedy",
        description="Reads and loads models as trireme serve does, without opening a port. "
        "The exit code is 0 if everything would load, else 1.",
    )
    parser.add_argument("repository", nargs="+", help="a directory of models, or a Python file with models (app.py)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--config-only", action="store_true", help="read configurations, and load nothing")
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        metavar="FLAG=VALUE",
        help="a flag that trireme serve is to have, such as backend-config=onnxruntime,default-max-batch-size=8",
    )
    parser.set_defaults(run=run_check)


def run_check(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from .checked_apps import checked_apps
    from .flags import is_app
    from .remedies import remedy

    apps = [word for word in given.repository if is_app(word)]
    directories = [word for word in given.repository if not is_app(word)]
    try:
        with checked_apps(apps) as checked:
            return _check(given, directories, checked)
    except OSError as error:
        raise CommandError(
            f"cannot read '{error.filename}': {error.strerror}", remedy(f"failed to stat file {error.filename}")
        ) from error


def _check(given: argparse.Namespace, directories: list[str], apps: CheckedApps) -> int:
    from ...engine.errors import TriremeError
    from .findings import Finding, configuration_findings, load_findings
    from .load_log import LoadLog
    from .remedies import remedy

    log = LoadLog()
    entries: list[IndexEntry] = []
    found: dict[str, list[Finding]] = {}
    findings = list(apps.findings)
    if directories or apps.repositories:
        options = _options(given, [*directories, *map(str, apps.repositories)])
        try:
            found = configuration_findings(options)
            if not given.config_only:
                entries = _load(options, log)
        except TriremeError as error:
            raise CommandError(error.message, remedy(error.message)) from error
        told = [each for model in found for each in found[model]]
        findings += map(apps.told, [*told, *load_findings(options, log.failures, found)])
    explained = {each.model for each in findings}
    ready = [entry for entry in entries if entry.state is not None and entry.state.value == "READY"]
    for entry in entries:
        if entry not in ready and entry.name not in explained:
            text = entry.reason or "it would not load"
            findings.append(Finding(entry.name, text, remedy=remedy(text)))
    models = sorted({*found, *apps.models, *(entry.name for entry in entries)})
    bad = {each.model for each in findings}
    loadable = [name for name in models if name not in bad]
    if given.json:
        _print_json(loadable, findings, log, ready)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _report(models, loadable, findings, log, ready)))
    return FAILED if findings else 0


def _options(given: argparse.Namespace, repositories: list[str]) -> ServerOptions:
    import os
    from dataclasses import replace

    from .command import build_command
    from .flag_table import FLAGS
    from .flags import UsageError, parse

    words = [f"--model-repository={each}" for each in repositories]
    try:
        parsed = parse([*words, *(f"--{each.lstrip('-')}" for each in given.flag)], FLAGS)
        options = build_command(parsed, os.environ).server
    except UsageError as error:
        raise CommandError(error.message, "see: trireme serve --help-all", USAGE) from error
    return replace(options, exit_on_error=False, poll_s=0.0, model_load_retry_count=0, watchdog_limit_s=0.0)


def _load(options: ServerOptions, log: LoadLog) -> list[IndexEntry]:
    """Open a server without ports, and close it again: the index that it has."""
    import trio

    from ...actors import InferenceServer

    async def run() -> list[IndexEntry]:
        server = InferenceServer(options)
        async with server:
            return server.repository_index() if server.started else []

    logger = logging.getLogger("trireme")
    before = logger.propagate
    logger.propagate = False
    try:
        with log.listening():
            return trio.run(run)
    finally:
        logger.propagate = before


def _print_json(loadable: list[str], findings: list[Finding], log: LoadLog, ready: list[IndexEntry]) -> None:
    document = {
        "ok": not findings,
        "loads": loadable,
        "versions": {name: [each.version for each in ready if each.name == name] for name in loadable},
        "problems": [each.as_json() for each in findings],
        "warnings": log.warnings,
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _report(
    models: list[str], loadable: list[str], findings: list[Finding], log: LoadLog, ready: list[IndexEntry]
) -> Iterator[str]:
    for finding in findings:
        yield from finding.lines()
    for warning in log.warnings:
        yield f"warning: {warning}"
    if findings or log.warnings:
        yield ""
    for name in loadable:
        versions = [each.version for each in ready if each.name == name]
        yield f"ok: {name}" + (f", version {', '.join(versions)}" if versions else "")
    if not models and findings:
        yield "no model would load"
    elif not models:
        yield "there are no models here: each is a directory with a config.pbtxt or a version directory such as 1/"
    else:
        count = len(findings)
        problems = f", {count} problem{'s' if count > 1 else ''}" if count else ""
        yield f"{len(loadable)} of {len(models)} models would load{problems}"
