"""Which models an ensemble needs, and what follows for loading them (docs/reference/ensembles.md#members,
docs/reference/model-control.md#load).

Members are loaded before the ensembles that use them, so that these see complete configurations. An ensemble that lacks
a member, or is a member of itself by any detour, is not loaded at all, and nor is one that depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from ..config.ensemble import ensemble_scheduling
from ..config.model import ModelConfig
from ..errors import InvalidArgumentError, TriremeError
from ..request import LATEST


class Dependencies:
    """What the models of a server need of each other.

    Args:
        members: by the name of every model whose configuration could be read, those that it needs, in the order of its
            steps if it is an ensemble; none if it is not. Where names are not unique, all are ids.

    Attributes:
        members: the same of the ensembles alone.
    """

    def __init__(self, members: Mapping[str, tuple[str, ...]]) -> None:
        self._names = sorted(members)
        self.members: Mapping[str, tuple[str, ...]] = {name: members[name] for name in self._names if members[name]}

    @cached_property
    def problems(self) -> Mapping[str, TriremeError]:
        """Why ensembles cannot be loaded, by name."""
        found: dict[str, TriremeError] = {}
        for name in self.members:
            problem = self._missing(name) or self._circle(name)
            if problem is not None:
                found[name] = problem
        spreading = True
        while spreading:  # each round, to the ensembles that use one that was found last
            spreading = False
            for name, members in self.members.items():
                bad = next((member for member in members if member in found), None)
                if name not in found and bad is not None:
                    spreading = True
                    found[name] = InvalidArgumentError(
                        f"ensemble '{name}' depends on '{bad}' which is not valid. Model '{bad}' failed with error: "
                        f"{found[bad].message}"
                    )
        return found

    def waves(self) -> list[list[str]]:
        """Names to load, those of one wave side by side, each wave when the one before is over.

        Ensembles with problems are left out; other models are all in the first wave.
        """
        waiting = {name: self.members.get(name, ()) for name in self._names if name not in self.problems}
        waves: list[list[str]] = []
        while waiting:
            wave = [name for name, members in waiting.items() if not any(member in waiting for member in members)]
            assert wave, "circles are problems"
            waves.append(wave)
            for name in wave:
                del waiting[name]
        return waves

    def dependents(self, name: str) -> list[str]:
        """The ensembles that need a model, directly or not, each after those that it uses itself."""
        needing = {name}
        found: list[str] = []
        for wave in self.waves():
            new = [other for other in wave if not needing.isdisjoint(self.members.get(other, ()))]
            needing.update(new)
            found += new
        return found

    def _missing(self, name: str) -> TriremeError | None:
        """Only the first missing member is named, as in Triton."""
        missing = next((member for member in self.members[name] if member not in self._names), None)
        if missing is None:
            return None
        return InvalidArgumentError(f"ensemble {name} contains models that are not available or ambiguous: {missing}")

    def _circle(self, name: str) -> TriremeError | None:
        seen: set[str] = set()
        paths = [name]
        while paths:
            current = paths.pop()
            members = self.members.get(current, ())
            if name in members:
                return InvalidArgumentError(
                    f"circular dependency between ensembles: {name} -> ... -> {current} -> {name}"
                )
            paths += [member for member in reversed(members) if member not in seen]
            seen.update(members)
        return None


def members_of(config: ModelConfig) -> tuple[str, ...]:
    """The models that an ensemble uses, each once, in the order of its steps."""
    return tuple(dict.fromkeys(step.model_name for step in ensemble_scheduling(config).steps))


def check_members(config: ModelConfig, loaded: Mapping[str, Collection[int]], load_errors: Mapping[str, str]) -> None:
    """Check that every member is loaded, in the version that is asked for.

    Args:
        config: the ensemble's.
        loaded: the ready versions of each model.
        load_errors: by name, why loading the model failed, where it did.

    Raises:
        InvalidArgumentError: one is not, in the words of docs/reference/ensembles.md#members.
    """
    for step in ensemble_scheduling(config).steps:
        name, version = step.model_name, step.model_version
        depends = f"ensemble '{config.name}' depends on '{name}'"
        versions = loaded.get(name, ())
        if not versions:
            why = f" Model '{name}' loading failed with error: {load_errors[name]}" if name in load_errors else ""
            raise InvalidArgumentError(f"{depends} which has no loaded version.{why}")
        if version != LATEST and version not in versions:
            raise InvalidArgumentError(f"{depends} whose required version {version} is not loaded.")
