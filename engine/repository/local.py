"""Model repositories on the local file system (docs/reference/model-control.md#layout,
docs/reference/model-control.md#versions).

Every sub-directory of a repository is a model, every sub-directory of a model that is a plain number is a version.
Nothing else in there matters, so other files in one model's directory never keep the others from being found. A
directory whose name is no UTF-8 is no model: no request could name it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..backends.interface import ModelFiles
from ..config import read_labels, select_versions
from ..config.chat import ChatTemplate, read_chat_template
from ..config.json_text import write_json
from ..config.model import ModelConfig
from ..config.phases import finish_config, read_message
from ..config.platforms import complete_backend
from ..errors import InternalError, InvalidArgumentError
from ..options import ServerOptions
from .agents import AgentChain, AgentModel, AgentRegistry
from .source import ModelSource, Scan

logger = logging.getLogger("trireme.repository")

_MAX_VERSION = 2**63 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")  # how Python spells bytes of a name that are no UTF-8

RESERVED_DIRECTORIES = frozenset({"warmup", "initial_state", "configs"})


class LocalRepository:
    """Any number of repository directories, looked at as one.

    Args:
        paths: the directories; the same one twice counts once.
        namespacing: models of equal names from different directories are different models.
    """

    def __init__(self, paths: Sequence[Path], *, namespacing: bool = False) -> None:
        self._paths = sorted(set(paths))
        self._namespacing = namespacing
        self._ignored: frozenset[Path] = frozenset()

    def scan(self) -> Scan:
        directories = [directory for path in self._paths for directory in _directories(path)]
        named = [directory for directory in directories if not _SURROGATE.search(directory.name)]
        self._tell_ignored(frozenset(directories).difference(named))
        if self._namespacing:
            return Scan(tuple(LocalModel(directory, namespace=str(directory.parent)) for directory in named))
        found: dict[str, list[Path]] = {}
        for directory in named:
            found.setdefault(directory.name, []).append(directory)
        models = tuple(LocalModel(places[0]) for _, places in sorted(found.items()) if len(places) == 1)
        duplicates = tuple(name for name, places in sorted(found.items()) if len(places) > 1)
        return Scan(models, duplicates)

    def _tell_ignored(self, ignored: frozenset[Path]) -> None:
        """Once for each, as long as it is there."""
        for directory in sorted(ignored - self._ignored):
            logger.warning("ignore model directory '%s' whose name is no valid UTF-8", directory)
        self._ignored = ignored


class _Contents(NamedTuple):
    """What `LocalModel.contents` tells."""

    directory: Path
    stamps: frozenset[tuple[str, int, int]]


class LocalModel(ModelSource):
    """A model directory.

    Args:
        name: the model's, if it is not the directory's.
    """

    def __init__(self, directory: Path, name: str = "", namespace: str = "") -> None:
        super().__init__(name or directory.name, namespace)
        self.directory = directory

    def estimated_bytes(self) -> int:
        """What its files take."""
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())

    def open(
        self, options: ServerOptions, config_json: str | None, agents: AgentRegistry
    ) -> tuple[ModelSource, ModelConfig]:
        message = self._read(options, config_json)
        if message.model_repository_agents.agents:
            return self._managed(message, options, agents)
        return self, self._finished(message, self.directory, options)

    def _managed(
        self, message: Any, options: ServerOptions, registry: AgentRegistry
    ) -> tuple[ManagedModel, ModelConfig]:
        """Let the agents that a configuration names have their say (`agents`): the model is wherever they put it.

        Raises:
            TriremeError: an agent refuses, or cannot be found; or what they hand over is no valid model.
        """
        messages = {self.directory: message}

        def read(other: Path) -> str:
            if not other.is_dir():
                raise InternalError(f"failed to stat file {other}")
            messages[other] = LocalModel(other)._read(options, None)
            return write_json(messages[other]).decode()

        asked = [registry.make(agent.name, dict(agent.parameters)) for agent in message.model_repository_agents.agents]
        chain = AgentChain(asked, read)
        found = chain.load(AgentModel(self.name, self.directory, write_json(message).decode())).directory
        with contextlib.ExitStack() as undo:
            undo.callback(chain.load_ended, False)
            config = self._finished(messages[found], found, options)
            undo.pop_all()
        return ManagedModel(found, self.name, self.namespace, chain), config

    def _finished(self, message: Any, directory: Path, options: ServerOptions) -> ModelConfig:
        return finish_config(message, directory, self.name, auto_complete=options.auto_complete)

    def message(self, options: ServerOptions, config_json: str | None = None) -> Any | None:
        message = self._read(options, config_json)
        with contextlib.suppress(InvalidArgumentError):  # agents may put another directory in the place of this one
            complete_backend(message, self.directory)
        return message

    def _read(self, options: ServerOptions, config_json: str | None) -> Any:
        return read_message(
            self.directory,
            config_name=options.model_config_name,
            override_json=config_json,
            auto_complete=options.auto_complete,
        )

    def modified_ns(self) -> int:
        """The newest time of modification of anything in the directory, and of itself."""
        return newest_change_ns(self.directory)

    def contents(self) -> Hashable:
        """Every file and directory in it with its time of modification and size, but for the configurations."""
        return _Contents(self.directory, frozenset(_stamps(self.directory)))

    def outdated(self, contents: Hashable, modified_ns: int) -> bool:
        assert isinstance(contents, _Contents), "what `contents` told"
        now = frozenset(_stamps(self.directory))
        if any(size >= 0 and (path, at, size) not in now for path, at, size in contents.stamps):
            return True
        config, configs = self.directory / "config.pbtxt", self.directory / "configs"
        return any(
            status.st_mtime_ns > modified_ns
            for path, status in _walk(self.directory)
            if path == config or (path.parent == configs and path.suffix == ".pbtxt")
        )

    def versions(self, config: ModelConfig) -> tuple[int, ...]:
        return select_versions(config.version_policy, version_directories(self.directory), config.name)

    def files(self, version: int) -> ModelFiles:
        return ModelFiles(self.directory, version)

    def labels(self, config: ModelConfig) -> Mapping[str, tuple[str, ...]]:
        return read_labels(self.directory, config)

    def chat_template(self, version: int, config: ModelConfig) -> ChatTemplate | None:
        return read_chat_template(self.directory, version, config)


class ManagedModel(LocalModel):
    """A model whose agents are told whether it was loaded, and when it is unloaded.

    Args:
        agents: they have had LOAD.
    """

    temporary = True

    def __init__(self, directory: Path, name: str, namespace: str, agents: AgentChain) -> None:
        super().__init__(directory, name, namespace)
        self._agents = agents

    def contents(self) -> Hashable:
        """Like no other: what agents make of a model is loaded each time."""
        return object()

    def outdated(self, contents: Hashable, modified_ns: int) -> bool:
        """Only its agents would know."""
        return False

    def load_ended(self, succeeded: bool) -> None:
        self._agents.load_ended(succeeded)

    def unloading(self) -> None:
        self._agents.unloading()

    def dispose(self) -> None:
        self._agents.end()


def version_directories(model_directory: Path) -> tuple[int, ...]:
    """The versions that a model directory holds, ascending."""
    versions = []
    for directory in _directories(model_directory):
        name = directory.name
        if name in RESERVED_DIRECTORIES:
            continue
        is_number = name.isascii() and name.isdigit()
        if is_number and name.startswith("0") and name != "0":
            logger.warning("ignore version directory '%s' which contains leading zeros in its directory name", name)
        elif not is_number or int(name) > _MAX_VERSION:
            logger.warning("ignore version directory '%s' which fails to convert to integral number", name)
        else:
            versions.append(int(name))
    return tuple(sorted(versions))


def newest_change_ns(directory: Path) -> int:
    """The newest time of modification in a directory tree, in nanoseconds since the Unix epoch; -1 if it is not there.

    Links are followed, each directory is visited once; what goes away meanwhile does not count.
    """
    return max((status.st_mtime_ns for _, status in _walk(directory)), default=-1)


def _walk(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything in a directory tree, and itself. Links are followed, each directory is looked into once."""
    waiting = [directory]
    seen: set[tuple[int, int]] = set()
    while waiting:
        path = waiting.pop()
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                waiting += path.iterdir()
        except OSError:
            continue
        yield path, status


def _stamps(directory: Path) -> Iterator[tuple[str, int, int]]:
    """(path, time of modification, size) of everything but the configurations and the top directory. Directories have
    the size -1."""
    configs = directory / "configs"
    for path, status in _walk(directory):
        if path in (directory, configs, directory / "config.pbtxt") or path.parent == configs:
            continue
        size = -1 if stat.S_ISDIR(status.st_mode) else status.st_size
        yield path.relative_to(directory).as_posix(), status.st_mtime_ns, size


def _directories(path: Path) -> list[Path]:
    """The sub-directories of `path` by name; links to directories count, links that lead nowhere do not.

    Raises:
        InvalidArgumentError: `path` is no directory.
        InternalError: it cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            return sorted(path / entry.name for entry in entries if _is_directory(entry))
    except NotADirectoryError as error:
        raise InvalidArgumentError(f"repository path is not a valid directory: {path}") from error
    except OSError as error:
        raise InternalError(f"failed to stat file {path}") from error


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, for one
        return False
