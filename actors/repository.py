"""The repository actor: which models there are, in which versions and states, and who answers a request.

It owns the model actors. Looking things up (`find`, `index` …) is synchronous, for it happens on every request. Loading
is serialised per model name, runs in parallel across models, and is all or nothing per model: if one of the
selected versions fails, the others are released again (repository.md §3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ..engine.config.model import ModelConfig
from ..engine.description import IndexEntry, ModelDescription, ModelState
from ..engine.ensemble import Dependencies, check_members
from ..engine.errors import InvalidArgumentError, NotFoundError, TriremeError, UnavailableError
from ..engine.repository.source import ModelSource, RepositorySource, Scan
from ..engine.request import LATEST
from ..engine.statistics import ModelStatisticsEntry
from .model import Model, Surroundings

logger = logging.getLogger("trireme.repository")

LoadProgress = Callable[[str, int, str], None]
"""Called with model name, version and state whenever a version changes its state."""


class Repository:
    """All models of a server.

    Args:
        source: tells which models exist.
        nursery: the model actors' owner.
        on_progress: told about every change of a version's state.
    """

    def __init__(
        self,
        source: RepositorySource,
        surroundings: Surroundings,
        nursery: trio.Nursery,
        on_progress: LoadProgress,
    ) -> None:
        self._source = source
        self._surroundings = surroundings
        self._nursery = nursery
        self._on_progress = on_progress
        self._models: dict[str, dict[int, Model]] = {}
        self._latest: dict[str, Model] = {}
        self._descriptions: dict[Model, ModelDescription] = {}
        self._scan = Scan(())
        self._dependencies = Dependencies({})
        self._watchers = trio.lowlevel.ParkingLot()

    # Loading.

    async def load_all(self) -> bool:
        """Load every model of every repository; True if all of them are ready.

        Raises:
            TriremeError: a repository cannot be read at all.
        """
        self._scan = await self._surroundings.executors.offload(self._source.scan)
        for name in self._scan.duplicates:
            logger.error("failed to load model '%s': model appears in two or more repositories", name)
        outcomes: list[bool] = [not self._scan.duplicates]
        sources = {source.name: source for source in self._scan.models}
        configs: dict[str, ModelConfig] = {}

        async def read(source: ModelSource) -> None:
            config = await self._read(source)
            if config is not None:
                configs[source.name] = config

        async def load(name: str) -> None:
            outcomes.append(await self._load(sources[name], configs[name]))

        async with trio.open_nursery() as nursery:
            for source in self._scan.models:
                nursery.start_soon(read, source)
        self._dependencies = dependencies = Dependencies(configs)
        for name, problem in dependencies.problems.items():
            logger.error("Poll failed for model directory '%s': %s", name, problem)
        outcomes.append(len(configs) == len(sources) and not dependencies.problems)
        for wave in dependencies.waves():
            async with trio.open_nursery() as nursery:
                for name in wave:
                    nursery.start_soon(load, name)
        return all(outcomes)

    async def _read(self, source: ModelSource) -> ModelConfig | None:
        try:
            return await self._surroundings.executors.offload(lambda: source.read(self._surroundings.options))
        except TriremeError as error:
            logger.error("Poll failed for model directory '%s': %s", source.name, error)
            return None

    async def _load(self, source: ModelSource, config: ModelConfig) -> bool:
        try:
            if config.has_ensemble_scheduling:
                check_members(config, self._ready_versions(), self._load_errors())
            versions = await self._surroundings.executors.offload(lambda: source.versions(config))
        except TriremeError as error:
            logger.error("failed to load '%s': %s", source.name, error.message)
            return False
        models = {
            version: Model(source, config, version, self._surroundings, self.find, self._changed)
            for version in versions
        }
        self._models[source.name] = models
        async with trio.open_nursery() as nursery:
            for model in models.values():
                nursery.start_soon(self._nursery.start, model.run)
        if all(model.ready for model in models.values()):
            logger.info("successfully loaded '%s'", source.name)
            return True
        for model in models.values():
            if model.ready:
                model.stop()
        return False

    def _ready_versions(self) -> dict[str, list[int]]:
        return {name: [each.version for each in self._versions(name) if each.ready] for name in self._models}

    def _load_errors(self) -> dict[str, str]:
        """By name of each model that failed to load, why (http.md §3.7)."""
        errors: dict[str, str] = {}
        for model in self.models():
            if not model.ready and model.reason:
                reason = f"version {model.version} is at UNAVAILABLE state: {model.reason};"
                errors[model.name] = f"{errors.get(model.name, '')}{reason}"
        return {name: f"load failed for model '{name}': {text}\n" for name, text in errors.items()}

    def _changed(self, model: Model) -> None:
        """A version entered another state: remember who is latest, and tell whoever watches."""
        match model.state:
            case ModelState.LOADING:
                logger.info("loading: %s:%d", model.name, model.version)
            case ModelState.UNAVAILABLE if model.reason == "unloaded":
                logger.info("successfully unloaded '%s' version %d", model.name, model.version)
            case ModelState.UNAVAILABLE:
                logger.error("failed to load '%s' version %d: %s", model.name, model.version, model.reason)
        self._descriptions.clear()
        ready = [each for each in self._models.get(model.name, {}).values() if each.ready]
        if ready:
            self._latest[model.name] = max(ready, key=lambda each: each.version)
        else:
            self._latest.pop(model.name, None)
        self._watchers.unpark_all()
        self._on_progress(model.name, model.version, model.state.value)

    # Looking up.

    def find(self, name: str, version: int = LATEST) -> Model:
        """The ready version that answers (http.md §3.3).

        Raises:
            NotFoundError: no such model, no such version, or none that is ready.
            UnavailableError: the version exists and is not ready.
        """
        if version == LATEST:
            latest = self._latest.get(name)
            if latest is not None:
                return latest
        versions = self._models.get(name)
        if versions is None:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        if version == LATEST:
            raise NotFoundError(f"Request for unknown model: '{name}' has no available versions")
        model = versions.get(version)
        if model is None:
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        if not model.ready:
            raise UnavailableError(f"Request for unknown model: '{name}' version {version} is not at ready state")
        return model

    def find_draining(self, name: str, version: int = LATEST) -> Model | None:
        """The version of a stateful model whose running sequences may still be continued while it is drained."""
        draining = [each for each in self._versions(name) if each.draining and each.config.has_sequence_batching]
        chosen = [each for each in draining if version in (LATEST, each.version)]
        return chosen[-1] if chosen else None

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        """The version that answers, described.

        Raises:
            TriremeError: see `find`.
        """
        model = self.find(name, version)
        description = self._descriptions.get(model)
        if description is None:
            ready = tuple(each.version for each in self._versions(name) if each.ready)
            description = self._descriptions[model] = model.describe(ready)
        return description

    def model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether the version is ready and all its parts are alive."""
        try:
            return self.find(name, version).healthy
        except TriremeError:
            return False

    def statistics(self, name: str = "", version: int = LATEST) -> list[ModelStatisticsEntry]:
        """Records of ready versions, by name and version (http.md §3.5).

        Raises:
            InvalidArgumentError: the named model, or version, is not there.
        """
        if not name:
            return [_entry(model) for model in self.models() if model.ready]
        ready = [model for model in self._versions(name) if model.ready]
        if not ready:
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        if version != LATEST:
            ready = [model for model in ready if model.version == version]
            if not ready:
                raise InvalidArgumentError(f"requested model version is not available for model '{name}'")
        return [_entry(model) for model in ready]

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """The repository index (repository.md §5)."""
        names = {source.name for source in self._scan.models}
        entries = []
        for name in sorted(names | set(self._scan.duplicates)):
            if name in self._scan.duplicates:
                reason = "model appears in two or more repositories"
                entries.append(IndexEntry(name, state=ModelState.UNAVAILABLE, reason=reason))
                continue
            models = self._versions(name)
            if not models and not ready_only:
                entries.append(IndexEntry(name))
            entries += [
                IndexEntry(name, str(model.version), model.state, model.reason)
                for model in models
                if model.ready or not ready_only
            ]
        return entries

    def models(self) -> list[Model]:
        """Every version that was ever loaded or tried, by name and version."""
        return [model for name in sorted(self._models) for model in self._versions(name)]

    def all_ready(self) -> bool:
        """Strict readiness (cli.md §6): every version that was loaded or tried is well, unless it was unloaded."""
        return all(model.healthy or model.reason == "unloaded" for model in self.models())

    def inflight_versions(self) -> int:
        """Versions that still have requests in flight."""
        return sum(model.actor_statistics().inflight > 0 for model in self.models())

    def live_versions(self) -> int:
        """Versions not yet unloaded."""
        return sum(model.state is not ModelState.UNAVAILABLE for model in self.models())

    async def changed(self) -> None:
        """Wait until a version changes its state."""
        await self._watchers.park()

    def stop(self) -> None:
        """Drain every model; each ends when it has answered what it accepted, and what an ensemble needs for that is
        drained after it."""
        needed = {member for members in self._dependencies.members.values() for member in members}
        for model in self.models():
            if model.name not in needed:
                model.stop()
        if needed:
            self._nursery.start_soon(self._stop_members)

    async def _stop_members(self) -> None:
        """Ensembles of ensembles go first, and each wave when those that depend on it have ended."""
        for wave in reversed(self._dependencies.waves()):
            models = [model for name in wave for model in self._versions(name)]
            for model in models:
                model.stop()
            while any(model.state in (ModelState.UNLOADING, ModelState.READY) for model in models):
                await self._watchers.park()

    def _versions(self, name: str) -> list[Model]:
        return [model for _, model in sorted(self._models.get(name, {}).items())]

    def __repr__(self) -> str:
        models = self.models()
        return f"<Repository: {sum(model.ready for model in models)} of {len(models)} versions ready>"


def _entry(model: Model) -> ModelStatisticsEntry:
    tags = tuple(sorted(model.config.metric_tags.items()))
    return ModelStatisticsEntry(model.name, model.version, model.statistics, tags)
