"""What is told of routes as if they were models: descriptions, readiness, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ..engine.admission.shares import ModelShare
from ..engine.config.model import ModelConfig, copy_message
from ..engine.description import ModelDescription
from ..engine.errors import ColdModelError, TriremeError, UnavailableError
from ..engine.metrics.statistics import ModelStatisticsEntry
from ..engine.request import LATEST
from ..engine.routing.record import RouteRecord
from ..engine.routing.route import StickyBy, Target
from .repository import Repository


class RoutesAsModels:
    """A part of `Routes`. What is asked of a model is the repository's to tell."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._records: dict[str, RouteRecord] = {}
        self._ended: dict[str, RouteRecord] = {}  # no routes any more, but for sequences that have begun

    def is_route(self, name: str, version: int = LATEST) -> bool:
        """Whether requests for this are for a route."""
        return version == LATEST and name in self._records

    def is_ready(self, name: str, target: Target) -> bool:
        """Whether a target of a route, or its shadow, can serve."""
        record = self._records.get(name)
        return record is not None and record.ready(target)

    def describe(self, name: str) -> ModelDescription | None:
        """A route, as if it were a model; None if there is none of that name. It has no versions.

        Raises:
            TriremeError: none of its targets can serve.
        """
        record = self._records.get(name) or self._ended.get(name)
        if record is None:
            return None
        route = record.route
        found: ModelDescription | None = None
        errors: list[TriremeError] = []
        for target in (record.first_ready(), *route.targets):
            try:
                found = None if target is None else self._repository.describe(target.model, target.version)
            except TriremeError as error:
                errors.append(error)
            if found is not None:
                break
        if found is None:
            raise none_ready(name, errors)
        header = route.sticky_name.lower() if route.sticky is StickyBy.HEADER else ""
        return ModelDescription(name, LATEST, (), _named(found.config, name), found.labels, header, found.chat)

    def model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether a model serves, or a target of a route does."""
        return any(self._repository.model_ready(*each) for each in self._meant(name, version))

    async def check_model_ready(self, name: str, version: int = LATEST) -> bool:
        """The same, and the models are asked if they have checks of their own."""
        for each in self._meant(name, version):
            if await self._repository.check_model_ready(*each):
                return True
        return False

    def statistics(self, name: str = "", version: int = LATEST) -> list[ModelStatisticsEntry]:
        """See `Catalog.statistics`; of a route, those of its targets that are in memory, under their own names."""
        if not self.is_route(name, version):
            return self._repository.statistics(name, version)
        found: dict[tuple[str, int], ModelStatisticsEntry] = {}
        for each in self._meant(name, version):
            with suppress(TriremeError):  # it is loaded on demand
                found |= {(entry.name, entry.version): entry for entry in self._repository.statistics(*each)}
        return list(found.values())

    def share(self, name: str, version: int = LATEST) -> ModelShare | None:
        """See `Catalog.share`; None for a route, as it is not known yet where a request for that goes."""
        return None if self.is_route(name, version) else self._repository.share(name, version)

    def versions_of(self, name: str) -> list[int] | None:
        """See `Catalog.versions_of`; a route has none."""
        versions = self._repository.versions_of(name)
        return [] if versions is None and name in self._records else versions

    def _meant(self, name: str, version: int) -> list[tuple[str, int]]:
        """The targets of a route that can serve; or the model itself."""
        if not self.is_route(name, version):
            return [(name, version)]
        record = self._records[name]
        return [(target.model, target.version) for target in record.route.targets if record.ready(target)]


def none_ready(name: str, errors: Sequence[TriremeError]) -> TriremeError:
    """What a request for a route is told if no target can serve; or who is to be waited for.

    Args:
        errors: of its targets.
    """
    for error in errors:
        if isinstance(error, ColdModelError):
            return error
    why = "; ".join(error.message for error in errors)
    return UnavailableError(f"Request for unknown model: no target of route '{name}' is at ready state: {why}")


def _named(config: ModelConfig, name: str) -> ModelConfig:
    """A configuration as that of a model of another name."""
    message = copy_message(config.message)
    message.name = name
    return replace(config, name=name, message=message)
