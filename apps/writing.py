"""Writes declared models as an ordinary repository: for each model a configuration, a ``model.py``, and a copy of the
app with the modules beside it that it imports.

With an origin, what serves is the copy, under the names of the originals (`declared.sources`); without, as exported,
the repository needs neither the originals nor Trireme: `declared` goes with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..engine import errors
from .declared.declaration import AnswerManner

VERSION_DIRECTORY = "1"
APP_FOLDER = "app"
WITHOUT_TRIREME = "without_trireme"
"""Where Python finds `trireme` if it is not installed: behind everything else."""

_DECLARED = Path(__file__).with_name("declared")
_ERRORS = Path(errors.__file__)  # of which an app may raise some

_BASES = {
    AnswerManner.RETURNS: "AppModel",
    AnswerManner.AWAITED: "AsyncAppModel",
    AnswerManner.YIELDS: "StreamingAppModel",
    AnswerManner.YIELDS_AWAITED: "AsyncStreamingAppModel",
}

_MODEL = '''\
"""Made by Trireme of {source}: serves `{name}`."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(_HERE, "{without}"))

from trireme.apps.declared.host import {base}  # noqa: E402


class TritonPythonModel({base}):
    folder = {folder}
    file = {file!r}
    name = {name!r}
    origin = {origin!r}
'''


@dataclass(frozen=True)
class WrittenModel:
    """What is written of a model.

    Attributes:
        name: of the model.
        variable: its name in the app.
        manner: how it answers.
        config: the text of its configuration.
        module: of a model of this process, the name in `sys.modules` that has it; empty for one of a file.
        place: file and line of its declaration.
    """

    name: str
    variable: str
    manner: AnswerManner
    config: str
    module: str = ""
    place: str = ""


class RepositoryWriter:
    """Writes models into a directory.

    Args:
        exported: write what needs neither the originals nor Trireme.
    """

    def __init__(self, directory: Path, *, exported: bool = False) -> None:
        self._directory, self._exported = directory, exported

    def write(self, model: WrittenModel, app: Path | None, files: Iterable[Path]) -> Path:
        """Write a model, over what is there of it; its directory.

        Args:
            app: the app's file; None for a model of this process.
            files: that and others to copy, which lie in its directory or below.
        """
        directory = self._directory / model.name
        version = directory / VERSION_DIRECTORY
        folder = version / APP_FOLDER
        if folder.exists():
            shutil.rmtree(folder)
        version.mkdir(parents=True, exist_ok=True)
        if app is not None:
            for path in files:
                target = folder / path.relative_to(app.parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.copytree(path, target, dirs_exist_ok=True)
                else:
                    shutil.copyfile(path, target)
        if self._exported:
            _write_without_trireme(version / WITHOUT_TRIREME)
        (version / "model.py").write_text(self._code(model, app), encoding="utf-8")
        (directory / "config.pbtxt").write_text(model.config, encoding="utf-8")
        return directory

    def _code(self, model: WrittenModel, app: Path | None) -> str:
        copies = f'os.path.join(_HERE, "{APP_FOLDER}")'
        return _MODEL.format(
            source="a program" if app is None else app.name,
            name=model.variable,
            base=_BASES[model.manner],
            without=WITHOUT_TRIREME,
            folder=copies if app is not None else repr(model.module),
            file="" if app is None else app.name,
            origin="" if app is None or self._exported else str(app.parent),
        )


_TOP = '''\
"""What a file with models needs of Trireme, where that is not installed."""

from .apps.declared import *  # noqa: F403
from .engine.errors import *  # noqa: F403
'''


def _write_without_trireme(directory: Path) -> None:
    """A package `trireme` with what apps import."""
    top = directory / "trireme"
    for package, files in (("apps", ()), ("engine", [_ERRORS]), ("apps/declared", sorted(_DECLARED.glob("*.py")))):
        (top / package).mkdir(parents=True, exist_ok=True)
        (top / package / "__init__.py").write_text("", encoding="utf-8")
        for path in files:
            shutil.copyfile(path, top / package / path.name)
    (top / "__init__.py").write_text(_TOP, encoding="utf-8")
