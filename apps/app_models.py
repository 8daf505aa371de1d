"""The apps that a server serves: a repository that is made of them, again whenever they change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .declared.errors import Problem
from .inspecting import AppError, declared_models
from .local_sources import local_sources
from .writing import RepositoryWriter, WrittenModel

SeenFiles = tuple[tuple[str, int, int], ...]
"""Path, time and size of the files of an app."""


@dataclass(frozen=True)
class AppTarget:
    """An app, or one model of it.

    Attributes:
        path: of the file, absolute.
        variable: the model's name in the file; empty for all.
    """

    path: Path
    variable: str = ""

    @classmethod
    def read(cls, text: str) -> AppTarget:
        """What ``app.py`` or ``app.py:name`` means."""
        path, _, variable = text.partition(":")
        return cls(Path(os.path.abspath(path)), variable)


class AppModels:
    """Writes the models of some apps into a directory, and sees when they have changed.

    Args:
        directory: of the repository, which belongs to it.
        account: see `declared_models`.

    Attributes:
        places: file and line of each model's declaration.
    """

    def __init__(self, targets: Sequence[AppTarget], directory: Path, account: Mapping[str, Any] | None = None) -> None:
        self._targets = targets
        self.directory = directory
        self._account = account
        self._seen: dict[Path, SeenFiles] = {}
        self._models: dict[AppTarget, list[str]] = {}
        self.places: dict[str, str] = {}

    @property
    def paths(self) -> list[Path]:
        """The apps' files."""
        return list(dict.fromkeys(target.path for target in self._targets))

    def changed(self) -> list[Path]:
        """Apps that differ, themselves or in what they import from beside, from what was last written, or tried."""
        return [path for path in self.paths if self._seen.get(path) != _look(path)]

    def write(self, apps: Iterable[Path]) -> None:
        """Write the models of these apps as they are now; those of an app that is faulty stay as they were. Blocks.

        Raises:
            AppError: apps are faulty; all is told of each.
        """
        problems: list[Problem] = []
        for app in apps:
            self._seen[app] = _look(app)
            try:
                self._write_app(app)
            except AppError as error:
                problems.extend(error.problems)
        if problems:
            raise AppError(*problems)

    def _write_app(self, app: Path) -> None:
        found = declared_models(app, self._account)
        files = local_sources(app)
        for target in [target for target in self._targets if target.path == app]:
            chosen = chosen_models(target, found)
            self._check_names(target, chosen)
            for model in chosen:
                RepositoryWriter(self.directory).write(model, app, files)
            names = [model.name for model in chosen]
            for gone in set(self._models.get(target, ())) - set(names):
                shutil.rmtree(self.directory / gone, ignore_errors=True)
            self._models[target] = names
            self.places |= {model.name: model.place for model in chosen}

    def _check_names(self, target: AppTarget, models: Iterable[WrittenModel]) -> None:
        others = {name: each for each, names in self._models.items() if each != target for name in names}
        for model in models:
            if model.name in others:
                text = f"the model '{model.name}' is in {others[model.name].path}, too"
                raise AppError(Problem(text, 'write, for example: @model(name="another")', str(target.path)))


def chosen_models(target: AppTarget, found: Sequence[WrittenModel]) -> Sequence[WrittenModel]:
    """Those of an app's models that are meant. Raises AppError: there is no such model."""
    if not target.variable:
        return found
    chosen = [model for model in found if target.variable in (model.variable, model.name)]
    if not chosen:
        names = ", ".join(model.variable for model in found)
        text = f"it has no model '{target.variable}'; it has: {names}"
        raise AppError(Problem(text, "name one of these, or the file alone", str(target.path)))
    return chosen


def _look(app: Path) -> SeenFiles:
    found = []
    for path in local_sources(app):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(found)
