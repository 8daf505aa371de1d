"""Model control: which models are served, and when they are loaded, loaded again and unloaded (repository.md §4, §6).

Rules:
 1. Operations on models that need each other go one after the other, those on others side by side (`NameLocks`).
 2. Whoever asked for an operation may go away: it is carried out all the same, in the server's own tasks.
 3. A model is loaded after its members, and an ensemble is loaded again when one of its members was.
 4. What is loaded with a configuration or files of the request stays so until the repository has something newer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import trio

from ..engine.config.model import ModelConfig
from ..engine.ensemble import Dependencies, check_members, members_of
from ..engine.errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError
from ..engine.options import ControlMode
from ..engine.repository.overrides import FILE_PREFIX, OverrideModel
from ..engine.repository.source import ModelSource, RepositorySource, Scan
from .name_locks import NameLocks
from .repository import LoadProgress, Repository
from .surroundings import Surroundings

logger = logging.getLogger("trireme.repository")

ALL_MODELS = "*"
"""``--load-model`` with this name loads all."""

_CONFIG = "config"
_FORGOTTEN_NS = -1


@dataclass(frozen=True, slots=True)
class _Known:
    """A model that is to be served, as it was read last.

    Attributes:
        modified_ns: when it had been changed last by then; `_FORGOTTEN_NS` if it could not be loaded.
    """

    source: ModelSource
    config: ModelConfig
    modified_ns: int


@dataclass(frozen=True, slots=True)
class _Override:
    """What a load request brings along."""

    config_json: str
    source: ModelSource | None


class ModelControl:
    """Loads and unloads.

    Args:
        source: tells which models exist.
        nursery: the owner of all models and operations.
    """

    def __init__(
        self, source: RepositorySource, surroundings: Surroundings, nursery: trio.Nursery, on_progress: LoadProgress
    ) -> None:
        self.repository = Repository(surroundings, nursery, on_progress, self._unused)
        self._source = source
        self._surroundings = surroundings
        self._nursery = nursery
        self._known: dict[str, _Known] = {}
        self._explicit: set[str] = set()
        self._errors: dict[str, str] = {}  # why the last load of a model failed
        self._temporary: dict[ModelSource, None] = {}
        self._locks = NameLocks()

    # At start, from time to time, and at the end.

    async def start(self) -> bool:
        """Load what the control mode says; True if all of it is ready.

        Raises:
            TriremeError: a repository cannot be read at all.
        """
        options = self._surroundings.options
        scan = await self.rescan()
        if options.model_control_mode is ControlMode.EXPLICIT and ALL_MODELS not in options.startup_models:
            return await self._load_named(options.startup_models)
        for name in scan.duplicates:
            logger.error("failed to load '%s': model appears in two or more repositories", name)
        sources = _by_name(scan)
        self._explicit.update(sources)
        polled = await self._poll(sources)
        await self._apply(polled)
        return len(polled) == len(sources) and not scan.duplicates and not self._errors

    async def _load_named(self, names: Iterable[str]) -> bool:
        complete = True
        polled: dict[str, _Known] = {}
        for name in dict.fromkeys(names):
            found, all_found = await self._poll_with_members(name, None)
            polled.update(found)
            complete = complete and all_found
            if name in found:
                self._explicit.add(name)
        await self._apply(polled)
        return complete and not self._errors

    async def keep_polling(self, period_s: float) -> None:
        """Follow the repositories: look every `period_s` seconds what has changed, until the server stops."""
        while not self.repository.stopping:
            await trio.sleep(period_s)
            await self.poll()

    async def poll(self) -> None:
        """Load what is new or has changed, unload what is gone. Errors are logged, and keep what is served as it is."""
        try:
            scan = await self.rescan()
        except TriremeError as error:
            logger.error("failed to poll the model repository: %s", error.message)
            return
        sources = _by_name(scan)
        polled = await self._poll(sources)
        for name in [name for name in self._known if name not in sources and name not in scan.duplicates]:
            self._drop(name)
        await self._apply({name: known for name, known in polled.items() if self._known.get(name) is not known})

    def close(self) -> None:
        """Remove what is left of temporary models; nothing runs any more."""
        for source in self._temporary:
            source.dispose()
        self._temporary = {}

    async def rescan(self) -> Scan:
        """Look what the repositories hold.

        Raises:
            TriremeError: one cannot be read.
        """
        scan = await self._surroundings.executors.offload(self._source.scan)
        self.repository.look_at(scan)
        return scan

    # What clients ask for.

    async def load(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Load a model, or load it again if it has changed (repository.md §6.1, §6.2).

        Raises:
            UnavailableError: not in this control mode.
            InvalidArgumentError: no name for a model, or it cannot be loaded.
            InternalError: it is not there, or its configuration is invalid, or what it needs is.
        """
        self._check_mode()
        if not name.strip():
            raise InvalidArgumentError("Model name cannot be empty. Please enter a valid name to deploy.")
        if ".." in name or "/" in name:
            raise InvalidArgumentError(
                f"invalid model name '{name}', model name must not contain path traversal characters"
            )
        await self._apart(partial(self._load, name, parameters))

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Begin to unload a model and the ensembles that need it; one that is not there is as good as unloaded.

        Args:
            unload_dependents: also the members that nobody has asked for by name and nobody else needs.

        Raises:
            UnavailableError: not in this control mode.
        """
        self._check_mode()
        await self._apart(partial(self._unload, name, unload_dependents))

    def _check_mode(self) -> None:
        if self._surroundings.options.model_control_mode is not ControlMode.EXPLICIT:
            raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")

    async def _apart(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it in a task of the server's (rule 2); what it raises is raised here."""
        done = trio.Event()
        error: TriremeError | None = UnavailableError("Server is stopping, models are not loaded or unloaded any more")

        async def run() -> None:
            nonlocal error
            try:
                await work()
                error = None
            except TriremeError as failure:
                error = failure
            finally:
                done.set()

        if not self.repository.stopping:
            self._nursery.start_soon(run)
            await done.wait()
        if error is not None:
            raise error

    async def _load(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        override = await self._read_override(name, parameters) if parameters else None
        names = self._related({name})
        done = False
        while not done:
            held = frozenset(names)
            async with self._locks.hold(held):
                await self.rescan()
                polled, _ = await self._poll_with_members(name, override)
                names = self._related({name, *polled})
                if done := names <= held:
                    await self._load_polled(name, polled, override)
            names |= held

    async def _load_polled(self, name: str, polled: Mapping[str, _Known], override: _Override | None) -> None:
        former = self._known.get(name)
        if name in polled:
            self._explicit.add(name)
        await self._apply(polled)
        if former is not None:
            await self._unused(former.source)
        if override is not None and override.source is not None:
            await self._unused(override.source)
        if name not in polled:
            raise _not_polled(name)
        if name in self._errors:
            raise InvalidArgumentError(f"load failed for model '{name}': {self._errors[name]}\n")
        if not self.repository.serves(name):
            raise InternalError(f"failed to load '{name}', no version is available")

    async def _read_override(self, name: str, parameters: Mapping[str, str | bytes]) -> _Override:
        files: dict[str, bytes] = {}
        try:
            for key, value in parameters.items():
                if key.startswith(FILE_PREFIX):
                    if not isinstance(value, bytes):
                        raise InvalidArgumentError(f"File parameter '{key}' must have bytes type for its value")
                    files[key] = value
                elif key != _CONFIG:
                    kind = "string" if isinstance(value, str) else "bytes"
                    raise InvalidArgumentError(f"Unrecognized load parameter '{key}' with type '{kind}'")
            config = parameters.get(_CONFIG)
            if config is None:
                raise InvalidArgumentError("Load parameter 'config' must be specified for model file override")
            if not isinstance(config, str):
                raise InvalidArgumentError("Config parameter 'config' must have string type for its value")
            if not files:
                return _Override(config, None)
            source = await self._surroundings.executors.offload(partial(OverrideModel, name, files))
        except TriremeError as error:
            logger.error("Poll failed for model directory '%s': %s", name, error.message)
            raise _not_polled(name) from error
        self._temporary[source] = None
        return _Override(config, source)

    async def _unload(self, name: str, unload_dependents: bool) -> None:
        names = self._related({name})
        done = False
        while not done:
            held = frozenset(names)
            async with self._locks.hold(held):
                names = self._related({name})
                if done := names <= held:
                    known = self._known.get(name)
                    self._drop(name)
                    if known is not None:
                        if unload_dependents:
                            self._drop_members(known.config)
                        await self._unused(known.source)
            names |= held

    def _drop(self, name: str) -> None:
        """Unload a model for good, and for the time being the ensembles that need it: they come back when it does."""
        for dependent in reversed(Dependencies(self._configs()).dependents(name)):
            self.repository.unload(dependent)
        self._known.pop(name, None)
        self._explicit.discard(name)
        self._errors.pop(name, None)
        self.repository.unload(name)

    def _drop_members(self, config: ModelConfig) -> None:
        for member in _members(config):
            needed = any(member in _members(known.config) for known in self._known.values())
            known = self._known.get(member)
            if known is not None and member not in self._explicit and not needed:
                self._drop(member)
                self._drop_members(known.config)

    # What is there, and what follows.

    async def _poll_with_members(self, name: str, override: _Override | None) -> tuple[dict[str, _Known], bool]:
        """Read a model, and if it is an ensemble its members; and whether all of that could be read."""
        there = _by_name(self.repository.scan)
        if override is not None and override.source is not None:
            there[name] = override.source
        polled: dict[str, _Known] = {}
        tried: set[str] = set()
        complete = True
        waiting = [name]
        while waiting:
            tried.update(waiting)
            for each in waiting:
                if each in self._known and each not in there and each != name:
                    polled[each] = self._known[each]  # it exists only in memory
                elif each not in there:
                    logger.error("failed to poll model '%s': model not found in any model repository.", each)
                    complete = False
            sources = {each: there[each] for each in waiting if each in there}
            found = await self._poll(sources, name, override)
            complete = complete and len(found) == len(sources)
            polled.update(found)
            members = [member for each in waiting if each in found for member in _members(found[each].config)]
            waiting = [member for member in dict.fromkeys(members) if member not in tried]
        return polled, complete

    async def _poll(
        self, sources: Mapping[str, ModelSource], overridden: str = "", override: _Override | None = None
    ) -> dict[str, _Known]:
        """Read models side by side; one that has not changed is what is known already, one that is invalid is left
        out."""
        found: dict[str, _Known] = {}

        async def look(source: ModelSource) -> None:
            known = await self._look(source, override if source.name == overridden else None)
            if known is not None:
                found[source.name] = known

        async with trio.open_nursery() as nursery:
            for source in sources.values():
                nursery.start_soon(look, source)
        return found

    async def _look(self, source: ModelSource, override: _Override | None) -> _Known | None:
        options = self._surroundings.options
        known = self._known.get(source.name)

        def look() -> _Known:
            modified_ns = source.modified_ns()
            if override is not None:
                return _Known(source, source.read_override(options, override.config_json), modified_ns)
            if known is not None and not known.source.temporary and _FORGOTTEN_NS < modified_ns <= known.modified_ns:
                return known
            return _Known(source, source.read(options), modified_ns)

        try:
            return await self._surroundings.executors.offload(look)
        except TriremeError as error:
            logger.error("Poll failed for model directory '%s': %s", source.name, error)
            return None

    async def _apply(self, polled: Mapping[str, _Known]) -> None:
        """Load what has changed or is not served, and the ensembles that need it (rule 3)."""
        former = dict(self._known)
        changed = [
            name
            for name, known in polled.items()
            if self._known.get(name) is not known or not self.repository.serves(name)
        ]
        self._known.update(polled)
        dependencies = Dependencies(self._configs())
        wanted = set(changed).union(*(dependencies.dependents(name) for name in changed))
        for name, problem in dependencies.problems.items():
            if name in wanted:
                logger.error("Poll failed for model directory '%s': %s", name, problem)
                self._failed(name, former.get(name), problem.message)
        for wave in dependencies.waves():
            async with trio.open_nursery() as nursery:
                for name in wave:
                    if name in wanted:
                        nursery.start_soon(self._load_one, name, former.get(name))

    async def _load_one(self, name: str, former: _Known | None) -> None:
        known = self._known[name]
        try:
            if known.config.has_ensemble_scheduling:
                check_members(known.config, self.repository.ready_versions(), self._errors)
            versions = await self._surroundings.executors.offload(partial(known.source.versions, known.config))
            reason = await self.repository.replace(known.source, known.config, versions)
        except TriremeError as error:
            reason = error.message
            logger.error("failed to load '%s': %s", name, reason)
        if reason:
            self._failed(name, former, reason)
        else:
            self._errors.pop(name, None)

    def _failed(self, name: str, former: _Known | None, reason: str) -> None:
        """What is served goes on being so; the next look at the model is to try again."""
        self._errors[name] = reason
        self._known[name] = replace(former or self._known[name], modified_ns=_FORGOTTEN_NS)

    async def _unused(self, source: ModelSource) -> None:
        """A temporary source is disposed of when nothing runs from it, or might be loaded from it again."""
        known = any(known.source is source for known in self._known.values())
        if source in self._temporary and not known and not self.repository.uses(source):
            del self._temporary[source]
            await self._surroundings.executors.offload(source.dispose)

    def _related(self, names: Iterable[str]) -> set[str]:
        """With them, all that need each other, directly or not."""
        related = set(names)
        groups = [{name, *_members(known.config)} for name, known in self._known.items()]
        while any(not related.isdisjoint(group) and not group <= related for group in groups):
            for group in groups:
                if not related.isdisjoint(group):
                    related |= group
        return related

    def _configs(self) -> dict[str, ModelConfig]:
        return {name: known.config for name, known in self._known.items()}

    def __repr__(self) -> str:
        return f"<ModelControl: {len(self._known)} models, {self._locks!r}>"


def _by_name(scan: Scan) -> dict[str, ModelSource]:
    return {source.name: source for source in scan.models}


def _members(config: ModelConfig) -> tuple[str, ...]:
    return members_of(config) if config.has_ensemble_scheduling else ()


def _not_polled(name: str) -> TriremeError:
    return InternalError(f"failed to load '{name}', failed to poll from model repository")
