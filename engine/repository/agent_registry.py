"""Which agent answers to a name: ours, and the entry points of group ``trireme.repository_agents``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from ..errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError
from .agents import RepositoryAgent
from .checksum import ChecksumAgent

ENTRY_POINT_GROUP = "trireme.repository_agents"


class AgentRegistry:
    """Finds agents by their names.

    Args:
        extra: agent classes that need no entry point, besides those of Trireme itself.
    """

    def __init__(self, extra: Mapping[str, type[RepositoryAgent]] | None = None) -> None:
        self._known: dict[str, type[RepositoryAgent]] = {"checksum": ChecksumAgent, **(extra or {})}
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
        if name in self._known:
            return self._known[name]
        for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
            try:
                found = entry_point.load()
            except Exception as error:
                raise UnavailableError(
                    f"repository agent '{name}' cannot be imported from '{entry_point.value}': {error}"
                ) from error
            if not (isinstance(found, type) and issubclass(found, RepositoryAgent)):
                raise UnavailableError(
                    f"repository agent '{name}': '{entry_point.value}' is not a subclass of RepositoryAgent"
                )
            return found
        raise InvalidArgumentError(f"unable to find repository agent '{name}'; install the package that brings it")
