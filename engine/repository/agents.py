"""Repository agents: code that looks at a model before it is loaded, or puts another in its place
(docs/reference/model-control.md#repository-agents).

A model's configuration names its agents (`AgentRegistry` finds them); each load makes one object of each.

Rules:
 1. For each load an agent gets LOAD; then LOAD_COMPLETE, UNLOAD, UNLOAD_COMPLETE, or LOAD_FAIL alone.
 2. LOAD and UNLOAD go through the agents in the order of the configuration, everything else in reverse.
 3. At LOAD an agent may hand over another directory: what stands there, configuration included, is the model for those
    that follow. The first configuration decides which agents there are.
 4. An agent that raises at LOAD ends the load, and so do settings that it does not like; at any other time it is a
    warning in the log.

Agents are called on loader threads; those of one model one after the other.
"""

from __future__ import annotations

import enum
import hashlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..config.files import path_within
from ..errors import InternalError, InvalidArgumentError, NotFoundError, TriremeError
from ..plugins import Plugins

logger = logging.getLogger("trireme.repository")


class AgentAction(enum.Enum):
    """The actions that an agent gets (rule 1)."""

    LOAD = "LOAD"
    LOAD_COMPLETE = "LOAD_COMPLETE"
    LOAD_FAIL = "LOAD_FAIL"
    UNLOAD = "UNLOAD"
    UNLOAD_COMPLETE = "UNLOAD_COMPLETE"


_IN_ORDER = (AgentAction.LOAD, AgentAction.UNLOAD)


@dataclass(frozen=True, slots=True)
class AgentModel:
    """The model that an agent is told about.

    Attributes:
        directory: where it is; after LOAD, where it was when this agent was told so.
        config_json: its configuration there, as JSON, as it was written.
    """

    name: str
    directory: Path
    config_json: str


class RepositoryAgent(ABC):
    """An agent of one model, for one load of it.

    Raises:
        TriremeError: they make no sense; the model is not loaded.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.parameters = dict(parameters)

    @abstractmethod
    def act(self, action: AgentAction, model: AgentModel) -> Path | None:
        """Something is about to happen to the model, or has happened.

        Returns:
            At LOAD, the directory to use in place of the model's (rule 3), which this agent may remove again at
            LOAD_FAIL or UNLOAD_COMPLETE; None for the same. What it returns later is ignored.

        Raises:
            Exception: at LOAD, why the model must not be loaded (rule 4).
        """


class AgentChain:
    """The agents of one load, and how far they have got.

    Args:
        agents: in the order of the configuration.
        read: gives the configuration of a directory as JSON; raises `TriremeError` if there is none.
    """

    def __init__(self, agents: Sequence[RepositoryAgent], read: Callable[[Path], str]) -> None:
        self._agents = tuple(agents)
        self._read = read
        self._told: list[tuple[RepositoryAgent, AgentModel]] = []
        self._last: AgentAction | None = None
        self._lock = threading.Lock()

    def load(self, model: AgentModel) -> AgentModel:
        """Tell all of them LOAD; if one raises, those that were told learn that the load failed.

        Returns:
            What is to be loaded.

        Raises:
            TriremeError: one of them refuses.
        """
        self._last = AgentAction.LOAD
        with ExitStack() as undo:
            undo.callback(self.load_ended, False)
            for agent in self._agents:
                self._told.append((agent, model))
                with _foreign(_name(agent)):
                    directory = agent.act(AgentAction.LOAD, model)
                    directory = None if directory is None else Path(directory)
                if directory is not None:
                    model = replace(model, directory=directory, config_json=self._read(directory))
            undo.pop_all()
        return model

    def load_ended(self, succeeded: bool) -> None:
        self._tell(AgentAction.LOAD_COMPLETE if succeeded else AgentAction.LOAD_FAIL, after=AgentAction.LOAD)

    def unloading(self) -> None:
        self._tell(AgentAction.UNLOAD, after=AgentAction.LOAD_COMPLETE)

    def end(self) -> None:
        """Nothing uses the model any more: send the actions that were not sent yet."""
        self.load_ended(False)
        self.unloading()
        self._tell(AgentAction.UNLOAD_COMPLETE, after=AgentAction.UNLOAD)

    def _tell(self, action: AgentAction, after: AgentAction) -> None:
        """Tell all of them, if `after` is what they were told last."""
        with self._lock:
            if self._last is not after:
                return
            self._last = action
            for agent, model in self._told if action in _IN_ORDER else reversed(self._told):
                try:
                    agent.act(action, model)
                except Exception as error:  # noqa: BLE001 - foreign code, too late for its complaints (rule 4)
                    logger.warning("%s of model '%s' failed at %s: %s", _name(agent), model.name, action.value, error)


@contextmanager
def _foreign(who: str) -> Iterator[None]:
    """What an agent raises that is no `TriremeError` becomes an `InternalError` that names it."""
    try:
        yield
    except TriremeError:
        raise
    except Exception as error:
        raise InternalError(f"{who}: {type(error).__name__}: {error}") from error


def _name(agent: RepositoryAgent) -> str:
    return f"repository agent {type(agent).__name__}"


# The agent that loads a model only if its files are what they should be
# (docs/reference/model-control.md#repository-agents).
#
# model_repository_agents { agents [ { name: "checksum"
#   parameters { key: "MD5:1/model.onnx" value: "d41d8cd98f00b204e9800998ecf8427e" } } ] }


class ChecksumAgent(RepositoryAgent):
    """Each parameter is ``<algorithm>:<file relative to the model's directory>`` and the digest in hexadecimal."""

    def act(self, action: AgentAction, model: AgentModel) -> Path | None:
        """Compare, at LOAD.

        Raises:
            InvalidArgumentError: a file differs, or a parameter is no such thing or leads out of the directory.
            InternalError: a file cannot be read.
        """
        if action is AgentAction.LOAD:
            for key, expected in self.parameters.items():
                _check(model.directory, key, expected)
        return None


def _check(directory: Path, key: str, expected: str) -> None:
    algorithm, colon, name = key.partition(":")
    if not colon:
        raise InvalidArgumentError(f"failed to parse key: {key}")
    if algorithm.upper() != "MD5":
        raise InvalidArgumentError(f"Unsupported checksum algorithm: {key}")
    path = path_within(directory, "", name)
    if path is None:
        raise InvalidArgumentError(f"checksum file '{name}' is outside the model's directory")
    digest = _md5(str(path))
    if digest != expected.lower():
        raise InvalidArgumentError(f"Mismatched MD5 hash for file {path}, expect: {expected}, got: {digest}")


def _md5(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        kind = NotFoundError if isinstance(error, FileNotFoundError) else InternalError
        raise kind(f"failed to open text file for read {path}: {error.strerror}") from error


# -- Which agent answers to a name: ours, and the entry points of group ``trireme.repository_agents``


ENTRY_POINT_GROUP = "trireme.repository_agents"


class AgentRegistry:
    """Finds agents by their names.

    Args:
        extra: agent classes that need no entry point, besides those of Trireme itself.
    """

    def __init__(self, extra: Mapping[str, type[RepositoryAgent]] | None = None) -> None:
        own = {"checksum": ChecksumAgent, **(extra or {})}
        self._plugins: Plugins[RepositoryAgent] = Plugins(ENTRY_POINT_GROUP, "repository agent", RepositoryAgent, own)
        self._used: dict[str, type[RepositoryAgent]] = {}

    def make(self, name: str, parameters: Mapping[str, str]) -> RepositoryAgent:
        """An agent for one load.

        Raises:
            InvalidArgumentError: there is no agent of this name.
            UnavailableError: it is installed, but cannot be imported.
            InternalError, TriremeError: it does not like its parameters.
        """
        missing = f"unable to find repository agent '{name}'; install the package that brings it"
        kind = self._used[name] = self._plugins.get(name, missing)
        with _foreign(f"repository agent '{name}'"):
            return kind(parameters)

    def used(self) -> list[tuple[str, str]]:
        """Name and place (``module:Class``) of each agent that a model has asked for, sorted."""
        return sorted((name, f"{kind.__module__}:{kind.__qualname__}") for name, kind in self._used.items())
