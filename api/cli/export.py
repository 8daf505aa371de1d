"""`trireme export`: writes the models of an app as an ordinary repository (docs/python.md#export)."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from .parser import USAGE, CommandError


def add_export_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser(
        "export",
        help="write the models of a Python file as a repository, for servers without the file, and for Triton",
        description="Each model becomes a directory with a configuration, a model.py, and a copy of the file and of "
        "the modules beside it that it imports. It needs neither Trireme nor the original file.",
    )
    parser.add_argument("app", help="a Python file with models, app.py, or one of its models, app.py:name")
    parser.add_argument("repository", type=Path, help="the directory to write to")
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="a file or directory below that of the Python file that it reads, such as weights; may be given several "
        "times",
    )
    parser.add_argument("--force", action="store_true", help="replace models that are there")
    parser.set_defaults(run=run_export)


def run_export(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from ...apps.app_models import AppTarget, chosen_models
    from ...apps.inspecting import AppError, declared_models
    from ...apps.local_sources import local_sources
    from ...apps.writing import RepositoryWriter
    from .flags import is_app

    if not is_app(given.app):
        raise CommandError(f"'{given.app}' is no Python file", "write app.py, or app.py:name", USAGE)
    target = AppTarget.read(given.app)
    includes = [_included(path, target.path.parent) for path in given.include]
    try:
        models = chosen_models(target, declared_models(target.path))
    except AppError as error:
        first, _, advice = str(error).partition("\n")
        raise CommandError(first, advice.strip()) from error
    for model in models:
        directory = given.repository / model.name
        if directory.exists() and not given.force:
            raise CommandError(f"'{directory}' is there already", "name another directory, or add --force")
    files = [*local_sources(target.path), *includes]
    try:
        for model in models:
            shutil.rmtree(given.repository / model.name, ignore_errors=True)
            written = RepositoryWriter(given.repository, exported=True).write(model, target.path, files)
            sys.stdout.write(f"wrote {written}\n")
    except OSError as error:
        raise CommandError(
            f"cannot write '{error.filename or given.repository}': {error.strerror}", "name another directory"
        ) from error
    return 0


def _included(path: Path, directory: Path) -> Path:
    """A path that the app reads, seen from its directory."""
    if not path.exists():
        raise CommandError(f"--include names '{path}', which is not there", "name a file or a directory", USAGE)
    full = path.absolute()
    if directory not in full.parents:
        raise CommandError(
            f"--include names '{path}', which is not below '{directory}', where the Python file is",
            "put it there, since the file looks for it beside itself",
            USAGE,
        )
    return full
