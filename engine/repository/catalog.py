"""What the repository knows, and answers: which model a name means, which versions there are, and how they are.

Looking things up is synchronous, for it happens on every request. Only the repository (`actors.repository`) changes
what stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from ..admission.shares import ModelShare
from ..backends.services import NOT_READY
from ..config.model import ModelConfig
from ..description import IndexEntry, ModelActorStatistics, ModelDescription, ModelState
from ..errors import ColdModelError, InvalidArgumentError, NotFoundError, TriremeError, UnavailableError
from ..metrics.statistics import MemoryUsage, ModelStatistics, ModelStatisticsEntry
from ..request import LATEST, InferenceRequest
from .source import ModelSource, Scan

UNLOADED = "unloaded"
"""The reason of a version that is unavailable because it was told to stop."""

_PASSING = (ModelState.UNKNOWN, ModelState.LOADING, ModelState.UNLOADING)


class ModelVersion(Protocol):
    """A version of a model (`actors.model.Model`, which says more)."""

    id: str
    name: str
    version: int
    config: ModelConfig
    source: ModelSource
    share: ModelShare
    state: ModelState
    reason: str
    stateful: bool
    statistics: ModelStatistics

    @property
    def ready(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def retiring(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def live_sequences(self) -> int: ...
    @property
    def memory_usage(self) -> tuple[MemoryUsage, ...]: ...

    def continues(self, request: InferenceRequest) -> bool: ...
    def describe(self, versions: tuple[int, ...]) -> ModelDescription: ...
    def index_entry(self) -> IndexEntry: ...
    def actor_statistics(self) -> ModelActorStatistics: ...


class OnDemand(Protocol):
    """What is known of the models that are loaded on demand (`actors.residents`), all by name."""

    def check(self, name: str) -> None:
        """Raises ColdModelError: it takes no requests now, and is loaded for one that waits for it."""
        ...

    def answers(self, name: str) -> bool:
        """Whether it is not there, and can be loaded, as far as is known."""
        ...

    def why_cold(self, name: str) -> str:
        """Why it is not there, for the index."""
        ...

    def stop(self) -> None:
        """Load and unload nothing any more."""
        ...


M = TypeVar("M", bound=ModelVersion)


class Catalog(Generic[M]):
    """All models of a server.

    Args:
        namespacing: models of one name may be in several repositories.

    Attributes:
        described: the models of the descriptions that still hold. A change of a name takes those of that name out.
        followers: called then with the name, before the change is complete; must not raise.
        describe_route: describes what is no model, but a name that others answer for; None for any other name. What
            it says is not among those `described`.
        on_demand: of models that are loaded on demand; None if none are.
        started: False if the server could not start, and goes on without models (``--exit-on-error=false``): then each
            call about a model is refused, as Triton does.
    """

    def __init__(self, namespacing: bool) -> None:
        self._namespacing = namespacing
        self._models: dict[str, dict[int, M]] = {}  # by id
        self._ids: dict[str, list[str]] = {}  # by name
        self._latest: dict[str, M] = {}  # by name
        self._found: dict[tuple[str, int], ModelDescription] = {}
        self._found_of: dict[str, list[tuple[int, ModelDescription]]] = {}  # the same by name
        self._hidden: dict[M, None] = {}
        self._scan = Scan(())
        self._sources: frozenset[str] = frozenset()  # their names
        self.described: dict[ModelDescription, M] = {}
        self.followers: list[Callable[[str], None]] = []
        self.describe_route: Callable[[str], ModelDescription | None] = _no_route
        self.on_demand: OnDemand | None = None
        self.started = True

    def check_started(self) -> None:
        """To be called before models are loaded, or told of.

        Raises:
            UnavailableError: `started`.
        """
        if not self.started:
            raise UnavailableError(NOT_READY)

    def find(self, name: str, version: int = LATEST) -> M:
        """The ready version that answers (docs/reference/errors.md#model-lookup).

        Raises:
            NotFoundError: no such model, no such version, or none that is ready.
            InvalidArgumentError: several models have this name.
            UnavailableError: the version exists and is not ready.
            ColdModelError: it can be waited for.
        """
        if self.on_demand is not None:
            self.on_demand.check(name)
        return self._find_there(name, version)

    def _find_there(self, name: str, version: int) -> M:
        """`find`, of what is in memory."""
        if version == LATEST:
            latest = self._latest.get(name)
            if latest is not None:
                return latest
        versions = self._models.get(self._identify(name), {})
        if version == LATEST:
            raise NotFoundError(f"Request for unknown model: '{name}' has no available versions")
        model = versions.get(version)
        if model is None:
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        if not model.ready:
            raise UnavailableError(f"Request for unknown model: '{name}' version {version} is not at ready state")
        return model

    def _identify(self, name: str) -> str:
        """The id of the model that a name means (docs/reference/model-control.md#namespaces). Errors as of `find`."""
        self.check_started()
        living = self._living(name)
        if len(living) > 1:
            raise InvalidArgumentError(
                f"There are {len(living)} identifiers of model '{name}' in global map, model namespace must be "
                "provided to resolve ambiguity."
            )
        if not living:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        return living[0]

    def _living(self, name: str) -> list[str]:
        """The ids of a name; where there are namespaces, not of models that were unloaded."""
        ids = self._ids.get(name, [])
        if not self._namespacing:
            return ids
        return [each for each in ids if any(model.reason != UNLOADED for model in self._versions(each))]

    def find_member(self, namespace: str, name: str, version: int) -> M:
        """What an ensemble of a repository means: the model beside it, else the only one of that name. Errors as of
        `find`."""
        model = self._models.get(f"{namespace}::{name}", {}) if namespace else {}
        ready = [each for each in model.values() if each.ready and version in (LATEST, each.version)]
        return max(ready, key=lambda each: each.version) if ready else self._find_there(name, version)

    def find_for(self, request: InferenceRequest, name: str, version: int = LATEST) -> M:
        """The version of a model that answers a request: the ready one, or the one that has the sequence which it
        continues. Errors as of `find`."""
        try:
            model = self.find(name, version)
        except TriremeError:
            found = self.continuing(self._ids.get(name, []), request, version)
            if found is None and request.callers:  # what it is to make room for may wait for those
                with suppress(TriremeError):
                    return self._find_there(name, version)
            if found is None:
                raise
            return found
        return self.answering(model, request, version) if model.stateful else model

    def answering(self, model: M, request: InferenceRequest, version: int) -> M:
        """The version of a model that a request is for, unless another one that was asked for has the sequence which it
        continues."""
        if not model.stateful or model.continues(request):
            return model
        return self.continuing([model.id], request, version) or model

    def continuing(self, ids: Sequence[str], request: InferenceRequest, version: int = LATEST) -> M | None:
        """The version of these models that has the sequence which a request continues; None if there is none."""
        if request.sequence_start or not request.correlation_id:
            return None
        meant = [each for identity in ids for each in self._of(identity) if each.ready or each.retiring]
        return self._having(meant, request, version)

    @staticmethod
    def _having(models: Iterable[M], request: InferenceRequest, version: int) -> M | None:
        asked = (each for each in models if version in (LATEST, each.version))
        return next((each for each in asked if each.continues(request)), None)

    def share(self, name: str, version: int = LATEST) -> ModelShare | None:
        """Of the version that answers, of what is in flight; None if there is none."""
        try:
            return self.find(name, version).share
        except TriremeError:
            return None

    def find_draining(self, request: InferenceRequest, name: str, version: int = LATEST) -> M | None:
        """While the server stops: the version of a model that has the sequence which a request continues; None if there
        is none, or none any more."""
        return self._having((each for each in self._named(name) if each.draining), request, version)

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        """The version that answers, described; or one that only continues its sequences. Errors as of `find`."""
        found = self._found.get((name, version))
        if found is not None:
            return found
        if version == LATEST:
            stand_in = self.describe_route(name)
            if stand_in is not None:
                return self._remember(name, version, stand_in)
        try:
            model = self.find(name, version)
        except TriremeError:
            retiring = [each for each in self._named(name) if each.version == version and each.retiring]
            if not retiring:
                raise
            return retiring[0].describe(tuple(self.ready_versions(retiring[0].id)))
        description = model.describe(tuple(self.ready_versions(model.id)))
        self.described[description] = model
        return self._remember(name, version, description)

    def _remember(self, name: str, version: int, description: ModelDescription) -> ModelDescription:
        self._found[name, version] = description
        self._found_of.setdefault(name, []).append((version, description))
        return description

    def forget(self, name: str) -> None:
        """What `describe` said of a name does not hold any more: it is no model, or one that takes no requests now."""
        self._forget_found(name)

    def _forget_found(self, name: str) -> None:
        """What was found of a name may not be found again."""
        for version, description in self._found_of.pop(name, ()):
            del self._found[name, version]
            self.described.pop(description, None)
        for changed in self.followers:
            changed(name)

    def knows(self, name: str) -> bool:
        """Whether there is such a model, known by a load or in the repositories."""
        return name in self._sources or bool(self.versions_of(name))

    def has_source(self, name: str) -> bool:
        """Whether the repositories had one model of this name when they were looked at last."""
        return name in self._sources

    def living_of(self, name: str) -> list[M]:
        """All versions of a name that are not unloaded yet."""
        return [model for model in self._named(name) if not model.ended]

    def has_live_sequences(self, name: str) -> bool:
        """Whether a request may continue one of a model."""
        return any(model.live_sequences for model in self._versions(name))

    def known_names(self) -> list[str]:
        """Of all models that are known by a load, or in the repositories; sorted."""
        return sorted({*self._ids, *self._sources})

    def names(self) -> list[str]:
        """All names of models, whatever the states of their versions."""
        if self.on_demand is None:
            return list(self._ids)
        return list(dict.fromkeys([*self._ids, *sorted(self._sources)]))

    def versions_of(self, name: str) -> list[int] | None:
        """The versions that there are of a name, whatever their states, ascending; None if there is no such name."""
        ids = self._ids.get(name)
        if ids is None:
            return [] if self.on_demand is not None and self.on_demand.answers(name) else None
        known = {each.version for identity in ids for each in self._versions(identity)}
        known.update(each.version for each in self._hidden if each.name == name and each.retiring)
        return sorted(known)

    def model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether the version is ready and all its parts are alive."""
        self.check_started()
        try:
            return self.find(name, version).healthy
        except ColdModelError:
            return self.on_demand is not None and self.on_demand.answers(name)
        except TriremeError:
            return False

    def statistics(self, name: str = "", version: int = LATEST) -> list[ModelStatisticsEntry]:
        """Records of ready versions, by name and version (docs/reference/http.md#statistics).

        Raises:
            InvalidArgumentError: the named model, or version, is not there.
        """
        self.check_started()
        if not name:
            return [_entry(model) for model in self.models() if model.ready]
        ids = self._living(name)
        ready = [model for model in self._versions(ids[0]) if model.ready] if len(ids) == 1 else []
        if not ready:
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        if version != LATEST:
            ready = [model for model in ready if model.version == version]
            if not ready:
                raise InvalidArgumentError(f"requested model version is not available for model '{name}'")
        return [_entry(model) for model in ready]

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """The repository index (docs/reference/model-control.md#repository-index)."""
        self.check_started()
        rows = {source.id: source.name for source in self._scan.models}
        rows.update({name: name for name in self._scan.duplicates})
        entries = []
        for identity, name in sorted(rows.items()):
            if name in self._scan.duplicates:
                reason = "model appears in two or more repositories"
                entries.append(IndexEntry(name, state=ModelState.UNAVAILABLE, reason=reason))
                continue
            rows_of_model = [model.index_entry() for model in self._versions(identity)]
            if self.on_demand is not None and all(model.ended for model in self._versions(identity)):
                reason = self.on_demand.why_cold(name)
                rows_of_model = [IndexEntry(name, state=ModelState.UNAVAILABLE, reason=reason)]
            elif identity not in self._models and not ready_only:
                entries.append(IndexEntry(name))
            entries += [row for row in rows_of_model if row.state is ModelState.READY or not ready_only]
        return entries

    def models(self) -> list[M]:
        """Every version that was ever loaded or tried, by id and version."""
        return [model for identity in sorted(self._models) for model in self._versions(identity)]

    def all_ready(self) -> bool:
        """Strict readiness (docs/reference/command-line.md#live-and-ready): every version that was loaded or tried is
        well, unless it was unloaded. While another version serves, one that comes or goes does not count. A model
        without any version is not well. Of models that are loaded on demand, those count that are there."""
        if self.on_demand is not None:
            return all(model.healthy for model in self.models() if model.ready)
        return all(self._models.values()) and all(
            model.healthy or model.reason == UNLOADED or (model.state in _PASSING and self.serves(model.id))
            for model in self.models()
        )

    def serves(self, identity: str) -> bool:
        """Whether any version of a model is ready."""
        return any(model.ready for model in self._versions(identity))

    def uses(self, source: ModelSource) -> bool:
        """Whether any version that was loaded from `source` is not unloaded yet."""
        return any(model.source is source and not model.ended for model in self._of(source.id))

    def ready_versions(self, identity: str) -> list[int]:
        """Ascending."""
        return [each.version for each in self._versions(identity) if each.ready]

    def inflight(self) -> list[str]:
        """A line for the log on each version that has requests in flight."""
        told = [(model, model.actor_statistics().inflight) for model in self._all()]
        text = "Model '%s' (version %d) has %d in-flight inferences"
        return [text % (model.name, model.version, count) for model, count in told if count]

    def living(self) -> list[str]:
        """A line for the log on each version that has nothing in flight, and is not unloaded yet."""
        idle = [model for model in self._all() if not (model.ended or model.actor_statistics().inflight)]
        return [f"{model.name} v{model.version}: {model.state.value}" for model in idle]

    def live_versions(self) -> int:
        """How many are not unloaded yet."""
        return sum(not model.ended for model in self._all())

    def _all(self) -> list[M]:
        """Those out of sight too: loading in order to replace another one, or replaced and still at work."""
        return [*self.models(), *self._hidden]

    def _of(self, identity: str) -> list[M]:
        """Of one model, those out of sight too."""
        return [*self._versions(identity), *(model for model in self._hidden if model.id == identity)]

    def _named(self, name: str) -> list[M]:
        """Of all models of a name, those out of sight too."""
        return [model for identity in self._ids.get(name, ()) for model in self._of(identity)]

    def _versions(self, identity: str) -> list[M]:
        return [model for _, model in sorted(self._models.get(identity, {}).items())]


def _no_route(_name: str) -> None:
    """There are no routes."""


def _entry(model: ModelVersion) -> ModelStatisticsEntry:
    tags = tuple(sorted(model.config.metric_tags.items()))
    return ModelStatisticsEntry(
        model.name,
        model.version,
        model.statistics,
        tags,
        namespace=model.source.namespace,
        memory_usage=model.memory_usage,
    )
