"""Why models would not load, or do not: every problem with its file and line, what is allowed, and what to do.

Rules:
 1. A configuration is read with the server's own parser and checks, all of them (`engine.config.mistakes`).
 2. What a load says comes from the server's log. It counts for models whose configuration has no mistake:
    of the others it would tell the first one again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ...engine.backends.registry import OWN
from ...engine.config.mistakes import Mistake, ParsedText, located, parse_all, value_mistakes
from ...engine.config.phases import config_path
from ...engine.options import ServerOptions
from ...engine.repository.cloud.addresses import is_store_address
from .remedies import remedy

_OF_ALLOWED = re.compile(r"'([^']*)', allowed \w+ are: (.*)")
_NO_FILE = re.compile(r"unable to find '([^']+)'|failed to open text file for read (.+?): No such file")
_BACKEND = re.compile(r"backend library for backend '([^']*)'")
_MOST_ALLOWED = 12
"""Names that are printed; JSON has all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of one model; see `Mistake`. `file` is empty if it is not about one."""

    model: str
    text: str
    file: str = ""
    line: int = 0
    column: int = 0
    found: str = ""
    allowed: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def place(self) -> str:
        """``file:line:column``, as far as it is known."""
        return ":".join([self.file or self.model, *(str(each) for each in (self.line, self.column) if each)])

    def lines(self) -> Iterator[str]:
        """For people: the place and the text, then what is there, what may be, and what to do."""
        yield f"{self.place}: {self.text}"
        if self.found:
            yield f"    found: {self.found}"
        if self.nearest:
            yield f"    did you mean: {' or '.join(self.nearest)}?"
        elif self.allowed:
            more = len(self.allowed) - _MOST_ALLOWED
            yield f"    allowed: {', '.join(self.allowed[:_MOST_ALLOWED])}" + (f" and {more} more" if more > 0 else "")
        if self.remedy:
            yield f"    to do: {self.remedy}"

    def as_json(self) -> dict[str, Any]:
        """All fields that are known."""
        names = ("model", "file", "line", "column", "text", "found", "allowed", "nearest", "remedy")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


def configuration_findings(options: ServerOptions) -> dict[str, list[Finding]]:
    """All mistakes in the configurations of a server's local repositories, by model (rule 1); an empty list for a model
    without. Nothing is loaded."""
    found: dict[str, list[Finding]] = {}
    for repository in options.model_repository:
        if is_store_address(str(repository)):
            continue
        for directory in sorted(each for each in Path(repository).iterdir() if each.is_dir()):
            found.setdefault(directory.name, []).extend(_of_configuration(directory, options))
    return found


def _of_configuration(directory: Path, options: ServerOptions) -> Iterator[Finding]:
    path = config_path(directory, options.model_config_name)
    parsed = _parsed(path)
    if parsed is None:
        return
    complete = not options.auto_complete
    for mistake in (*parsed.mistakes, *value_mistakes(parsed, directory, directory.name, complete=complete)):
        yield _finding(directory.name, mistake, path)


def _parsed(path: Path) -> ParsedText | None:
    try:
        return parse_all(path.read_bytes().decode(errors="replace"))
    except OSError:
        return None


def load_findings(
    options: ServerOptions, failures: Mapping[str, str], known: Mapping[str, Sequence[Finding]]
) -> Iterator[Finding]:
    """What loads said of the models of which nothing is `known` by their configuration (rule 2)."""
    for model, text in failures.items():
        if known.get(model):
            continue
        directory = next((path for each in options.model_repository if (path := Path(each) / model).is_dir()), None)
        if directory is None:
            yield _finding(model, Mistake(text), None)
            continue
        path = config_path(directory, options.model_config_name)
        parsed = _parsed(path)
        if parsed is None:
            yield _finding(model, Mistake(text), directory)
            continue
        mistake = located(text, parsed)
        yield _finding(model, mistake, path if mistake.line else directory)


def _finding(model: str, mistake: Mistake, path: Path | None) -> Finding:
    text = re.sub(r"^(?:Internal|Invalid argument|Unavailable|Not found|Unsupported): ", "", mistake.text)
    allowed, nearest = mistake.allowed, mistake.nearest
    if named := _OF_ALLOWED.search(text):
        allowed = tuple(named[2].split(", "))
        nearest = tuple(get_close_matches(named[1], allowed, n=2))
    elif backend := _BACKEND.search(text):
        allowed = tuple(sorted(OWN))
        nearest = tuple(get_close_matches(backend[1], allowed, n=2))
    elif missing := _NO_FILE.search(text):
        nearest = _files_like(Path(missing[1] or missing[2]))
    place = "" if path is None else str(path)
    return Finding(
        model, text.strip(), place, mistake.line, mistake.column, mistake.found, allowed, nearest, remedy(text)
    )


def _files_like(path: Path) -> tuple[str, ...]:
    """Files beside the one that is missing, whose names are like its."""
    try:
        names = sorted(each.name for each in path.parent.iterdir())
    except OSError:
        return ()
    return tuple(str(path.with_name(name)) for name in get_close_matches(path.name, names, n=2))
