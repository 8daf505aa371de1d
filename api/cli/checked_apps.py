"""What `trireme check` finds in apps, Python files with models made from functions.

An app becomes a repository in a temporary folder, as when it is served, which is checked as any other is. What is found
there is told at the file and line where the model is declared, or where its code has raised it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...apps.app_models import AppModels, AppTarget
from ...apps.declared.errors import Problem
from ...apps.inspecting import AppError
from ...engine.repository.temporary import TemporaryFolder
from .findings import Finding


class CheckedApps:
    """Some apps, and the repository that was made of them.

    Attributes:
        findings: what keeps models from being made.
        repositories: the repository, if there are any models.
        models: those that could not be made, as far as their names are known.
    """

    def __init__(self, words: Sequence[str], directory: Path) -> None:
        self._apps = AppModels([AppTarget.read(word) for word in words], directory)
        self.findings: list[Finding] = []
        try:
            self._apps.write(self._apps.paths)
        except AppError as error:
            self.findings = [_finding(each) for each in error.problems]
        self.models = {each.model for each in self.findings} - {""}
        self.repositories = [directory] if any(directory.iterdir()) else []

    def told(self, finding: Finding) -> Finding:
        """See `in_app`."""
        return in_app(finding, self._apps)


def in_app(finding: Finding, apps: AppModels) -> Finding:
    """A finding, at the model's declaration if it is about a file that was made of an app."""
    place = apps.places.get(finding.model)
    if place is None or not finding.file.startswith(str(apps.directory)):
        return finding
    file, _, line = place.rpartition(":")
    text = finding.text.replace(str(apps.directory / finding.model), file)
    raised = re.search(rf"^  {re.escape(file)}\((\d+)\): ", text, re.MULTILINE)  # the innermost place comes first
    return replace(finding, text=text, file=file, line=int(raised[1] if raised else line), column=0)


@contextmanager
def checked_apps(words: Sequence[str]) -> Iterator[CheckedApps]:
    """The apps, for the length of a `with` block. Raises OSError: there is no room for the folder."""
    folder = TemporaryFolder("check")
    try:
        yield CheckedApps(words, folder.path)
    finally:
        folder.remove()


def _finding(problem: Problem) -> Finding:
    return Finding(problem.model, problem.text, problem.file, problem.line, remedy=problem.remedy)
