"""Model repositories on the local file system (repository.md §1, §3).

Every sub-directory of a repository is a model, every sub-directory of a model that is a plain number is a version.
Nothing else in there matters, so rubbish in one model's directory never keeps the others from being found.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..backends.interface import Completion, ModelFiles
from ..config import prepare_for_load, read_config, read_labels, select_versions
from ..config.model import ModelConfig
from ..errors import InternalError
from ..options import ServerOptions
from .source import ModelSource, Scan

logger = logging.getLogger("trireme.repository")

RESERVED_DIRECTORIES = frozenset({"warmup", "initial_state", "configs"})


class LocalRepository:
    """Any number of repository directories, looked at as one.

    Args:
        paths: the directories; the same one twice counts once.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = sorted(set(paths))

    def scan(self) -> Scan:
        """See `RepositorySource.scan`."""
        found: dict[str, list[Path]] = {}
        for path in self._paths:
            for directory in _directories(path):
                found.setdefault(directory.name, []).append(directory)
        models = tuple(LocalModel(places[0]) for _, places in sorted(found.items()) if len(places) == 1)
        duplicates = tuple(name for name, places in sorted(found.items()) if len(places) > 1)
        return Scan(models, duplicates)


class LocalModel(ModelSource):
    """A model directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        return self.directory.name

    def read(self, options: ServerOptions) -> ModelConfig:
        return read_config(self.directory, config_name=options.model_config_name, auto_complete=options.auto_complete)

    def read_override(self, options: ServerOptions, config_json: str) -> ModelConfig:
        return read_config(self.directory, override_json=config_json, auto_complete=options.auto_complete)

    def modified_ns(self) -> int:
        """The newest time of modification of anything in the directory, and of itself."""
        return newest_change_ns(self.directory)

    def versions(self, config: ModelConfig) -> tuple[int, ...]:
        return select_versions(config.version_policy, version_directories(self.directory), config.name)

    def files(self, version: int) -> ModelFiles:
        return ModelFiles(self.directory, version)

    def prepare(self, config: ModelConfig, completion: Completion | None) -> ModelConfig:
        return prepare_for_load(config, completion)

    def labels(self, config: ModelConfig) -> Mapping[str, tuple[str, ...]]:
        return read_labels(self.directory, config)

    def __repr__(self) -> str:
        return f"<LocalModel {self.name}>"


def version_directories(model_directory: Path) -> tuple[int, ...]:
    """The versions that a model directory holds, ascending."""
    versions = []
    for directory in _directories(model_directory):
        name = directory.name
        if name in RESERVED_DIRECTORIES:
            continue
        if not (name.isascii() and name.isdigit()):
            logger.warning("ignore version directory '%s' which fails to convert to integral number", name)
        elif name.startswith("0") and name != "0":
            logger.warning("ignore version directory '%s' which contains leading zeros in its directory name", name)
        else:
            versions.append(int(name))
    return tuple(sorted(versions))


def newest_change_ns(directory: Path) -> int:
    """The newest time of modification in a directory tree, in nanoseconds since the Unix epoch; -1 if it is not there.

    Links are followed, each directory is visited once; what goes away meanwhile does not count.
    """
    newest_ns = -1
    waiting = [directory]
    seen: set[tuple[int, int]] = set()
    while waiting:
        path = waiting.pop()
        try:
            status = path.stat()
            newest_ns = max(newest_ns, status.st_mtime_ns)
            if stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                waiting += path.iterdir()
        except OSError:
            continue
    return newest_ns


def _directories(path: Path) -> list[Path]:
    """The sub-directories of `path` by name; links to directories count, links that lead nowhere do not.

    Raises:
        InternalError: `path` is not a directory that can be read.
    """
    try:
        with os.scandir(path) as entries:
            return sorted(path / entry.name for entry in entries if _is_directory(entry))
    except OSError as error:
        raise InternalError(f"failed to stat file {path}") from error


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, for one
        return False
