"""The repository actor: which models there are, in which versions and states, and who answers a request.

It owns the model actors. Looking things up (`find`, `index` …) is synchronous, for it happens on every request. What is
loaded when is decided in `model_control`; here it is carried out, all or nothing per model.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from ..engine.config.model import ModelConfig
from ..engine.description import IndexEntry, ModelDescription, ModelState
from ..engine.errors import InvalidArgumentError, NotFoundError, TriremeError, UnavailableError
from ..engine.repository.source import ModelSource, Scan
from ..engine.request import LATEST
from ..engine.statistics import ModelStatisticsEntry
from .model import UNLOADED, Model
from .surroundings import Surroundings

logger = logging.getLogger("trireme.repository")

LoadProgress = Callable[[str, int, str], None]
"""Called with model name, version and state whenever a version changes its state."""


class Repository:
    """All models of a server.

    Args:
        nursery: the model actors' owner.
        on_progress: told about every change of a version's state.
        on_unused: told when all versions of one load have ended.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        nursery: trio.Nursery,
        on_progress: LoadProgress,
        on_unused: Callable[[ModelSource], Awaitable[None]],
    ) -> None:
        self._surroundings = surroundings
        self._nursery = nursery
        self._on_progress = on_progress
        self._on_unused = on_unused
        self._models: dict[str, dict[int, Model]] = {}
        self._latest: dict[str, Model] = {}
        self._descriptions: dict[Model, ModelDescription] = {}
        self._hidden: dict[Model, None] = {}
        self.stopping = False
        self._scan = Scan(())
        self._watchers = trio.lowlevel.ParkingLot()

    # Changing what is served. Whoever calls this sees to it that nobody else changes the same model meanwhile.

    def look_at(self, scan: Scan) -> None:
        """What the repositories hold now; the index lists that."""
        self._scan = scan

    @property
    def scan(self) -> Scan:
        return self._scan

    async def replace(self, source: ModelSource, config: ModelConfig, versions: Sequence[int]) -> str:
        """Load versions of a model, and when all of them are loaded, let them serve in place of those that do so now.

        If one fails the others are released again, and those that serve now go on (repository.md §3, §6.3).

        Returns:
            Why it failed, one sentence a version (http.md §3.7); empty if it did not.

        Raises:
            UnavailableError: everything is being unloaded.
        """
        if self.stopping:
            raise UnavailableError("Server is stopping, models are not loaded or unloaded any more")
        name = source.name
        models = {
            version: Model(source, config, version, self._surroundings, self.find, self._changed)
            for version in versions
        }
        shown = self._models.setdefault(name, {})
        for version, model in models.items():
            before = shown.get(version)
            if before is not None and before.ready:
                self._hidden[model] = None
            else:
                self._show(model)
        await self._nursery.start(self._keep, tuple(models.values()))
        failed = [model for model in models.values() if not model.loaded]
        if failed:
            for model in models.values():
                model.stop()
            return "".join(f"version {each.version} is at {each.state.value} state: {each.reason};" for each in failed)
        former = [model for model in shown.values() if model not in models.values()]
        for model in models.values():
            self._show(model)
        for model in models.values():
            model.serve()
        for model in former:
            if not model.ended:
                model.stop()
            elif model.reason != UNLOADED:
                del shown[model.version]  # it failed once, and nobody asks for it any more
        logger.info("successfully loaded '%s'", name)
        return ""

    async def _keep(self, models: Sequence[Model], *, task_status: trio.TaskStatus[None]) -> None:
        """Run the versions of one load to their end. Started when each of them is loaded, or has failed."""
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as starting:
                for model in models:
                    starting.start_soon(nursery.start, model.run)
            task_status.started()
        await self._on_unused(models[0].source)

    def _show(self, model: Model) -> None:
        """From now on this is what is known under its name and version. One that it displaces drains out of sight."""
        shown = self._models[model.name]
        before = shown.get(model.version)
        if before is not None and before is not model and not before.ended:
            self._hidden[before] = None
        self._hidden.pop(model, None)
        shown[model.version] = model

    def unload(self, name: str) -> None:
        """Begin to drain all versions of a model."""
        for model in self._versions(name):
            if not model.ended:
                model.stop()

    def serves(self, name: str) -> bool:
        """Whether any version of a model is ready."""
        return name in self._latest

    def uses(self, source: ModelSource) -> bool:
        """Whether any version that was loaded from `source` is not unloaded yet."""
        return any(model.source is source and not model.ended for model in self._all())

    def ready_versions(self) -> dict[str, list[int]]:
        """By name of each model, ascending."""
        return {name: [each.version for each in self._versions(name) if each.ready] for name in self._models}

    def _changed(self, model: Model) -> None:
        """A version entered another state: remember who is latest, and tell whoever watches."""
        match model.state:
            case ModelState.LOADING:
                logger.info("loading: %s:%d", model.name, model.version)
            case ModelState.UNAVAILABLE if model.reason == UNLOADED:
                logger.info("successfully unloaded '%s' version %d", model.name, model.version)
            case ModelState.UNAVAILABLE:
                logger.error("failed to load '%s' version %d: %s", model.name, model.version, model.reason)
        self._descriptions.clear()
        if model.ended:
            self._hidden.pop(model, None)
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
        return all(model.healthy or model.reason == UNLOADED for model in self.models())

    def inflight_versions(self) -> int:
        """Versions that still have requests in flight."""
        return sum(model.actor_statistics().inflight > 0 for model in self._all())

    def live_versions(self) -> int:
        """Versions not yet unloaded."""
        return sum(not model.ended for model in self._all())

    async def changed(self) -> None:
        """Wait until a version changes its state."""
        await self._watchers.park()

    def stop(self) -> None:
        """Drain every model; each ends when it has answered what it accepted. What an ensemble needs for that is
        drained after it."""
        self.stopping = True
        if self._stop_unheld():
            self._nursery.start_soon(self._stop_members)

    def _stop_unheld(self) -> bool:
        """Whether some are left, which ensembles hold."""
        models = self._all()
        for model in models:
            if not model.held:
                model.stop()
        return any(model.held for model in models)

    async def _stop_members(self) -> None:
        while self._stop_unheld():
            await self._watchers.park()

    def _all(self) -> list[Model]:
        """Those out of sight too: loading in order to replace another one, or replaced and still at work."""
        return [*self.models(), *self._hidden]

    def _versions(self, name: str) -> list[Model]:
        return [model for _, model in sorted(self._models.get(name, {}).items())]

    def __repr__(self) -> str:
        models = self.models()
        return f"<Repository: {sum(model.ready for model in models)} of {len(models)} versions ready>"


def _entry(model: Model) -> ModelStatisticsEntry:
    tags = tuple(sorted(model.config.metric_tags.items()))
    memory = tuple(model.memory_usage)
    return ModelStatisticsEntry(model.name, model.version, model.statistics, tags, memory_usage=memory)
