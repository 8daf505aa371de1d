"""Configurations with a chosen setting: as a diff, and into the repository."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...engine.config.model import copy_message
from ...engine.errors import InvalidArgumentError
from ..profile_command import repository_models
from .config_edits import config_diff, edited_config, read_config_text
from .players import PlanInputs
from .settings import PlanSetting, set_message
from .trials import TrialGround


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One `config.pbtxt`, before and after. A model without one gets one."""

    model: str
    path: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        """As `patch -p1` takes it, in the repository's directory."""
        return config_diff(self.before, self.after, f"{self.path.parent.name}/{self.path.name}")


def config_changes(inputs: PlanInputs, ground: TrialGround, setting: PlanSetting) -> list[ConfigChange]:
    """Those files that a setting changes.

    Raises:
        TriremeError: a configuration cannot be read.
    """
    models = repository_models(argparse.Namespace(repository=list(inputs.repositories), profiles=inputs.profiles))
    found: list[ConfigChange] = []
    for model in ground.models:
        if model.profile is None:
            continue
        path = models.directory(model.config.name) / "config.pbtxt"
        before = _text(path)
        message = copy_message(read_config_text(before))
        set_message(message, model.config, setting)
        after = edited_config(before, message)
        if after != before:
            found.append(ConfigChange(model.config.name, path, before, after))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"'{path}' cannot be read: {error}") from error


def write_changes(changes: Sequence[ConfigChange]) -> Iterator[Path]:
    """Write them, each file whole; yields each when it is written.

    Raises:
        InvalidArgumentError: a file was changed meanwhile, or cannot be written.
    """
    for change in changes:
        if _text(change.path) != change.before:
            raise InvalidArgumentError(f"'{change.path}' was changed meanwhile; plan again")
        new = change.path.with_name(f"{change.path.name}.new")
        try:
            new.write_text(change.after, encoding="utf-8")
            new.replace(change.path)
        except OSError as error:
            raise InvalidArgumentError(f"'{change.path}' cannot be written: {error}") from error
        yield change.path
