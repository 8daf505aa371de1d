"""Which agent answers to a name: ours, and the entry points of group ``trireme.repository_agents``."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InternalError, InvalidArgumentError, TriremeError
from ..plugins import Plugins
from .agents import RepositoryAgent
from .checksum import ChecksumAgent

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
        kind = self._used[name] = self._find(name)
        try:
            return kind(parameters)
        except TriremeError:
            raise
        except Exception as error:
            raise InternalError(f"repository agent '{name}': {type(error).__name__}: {error}") from error

    def used(self) -> list[tuple[str, str]]:
        """Name and place (``module:Class``) of each agent that a model has asked for, sorted."""
        return sorted((name, f"{kind.__module__}:{kind.__qualname__}") for name, kind in self._used.items())

    def _find(self, name: str) -> type[RepositoryAgent]:
        found = self._plugins.find(name)
        if found is not None:
            return found
        raise InvalidArgumentError(f"unable to find repository agent '{name}'; install the package that brings it")
