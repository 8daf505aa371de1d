"""Model control: which models are served, and when they are loaded, loaded again and unloaded
(docs/reference/model-control.md#control-modes, docs/reference/model-control.md#load).

Rules:
 1. Operations on models that need each other go one after the other, those on others side by side (`NameLocks`).
 2. The caller of an operation may go away: it is carried out all the same, in the server's own tasks.
 3. A model is loaded after its members, and an ensemble is loaded again when one of its members was.
 4. What is loaded with a configuration or files of the request stays so until the repository has something newer.
 5. A model of which nothing has changed but its instance groups and version policy stays loaded
    (docs/reference/model-control.md#changes-in-place).
 6. A slow load of what is to be unloaded, or of which there is something newer to load, is ended, and fails: it may
    hang. A load that asks for the same again waits for it.

Models are told apart by their ids, which are their names unless there are namespaces.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import trio

from ..engine.ensemble import Dependencies, check_members
from ..engine.errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError, unframed
from ..engine.instances.orders import differs_in_place
from ..engine.options import ControlMode
from ..engine.repository.known import FORGOTTEN_NS, Known, Override, always, is_outdated, members, resolve
from ..engine.repository.reading import Reading, read_models
from ..engine.repository.source import ModelSource, RepositorySource
from ..engine.repository.uploads import OverrideModel, read_load_parameters, refuse_code
from ..engine.tensor import Buffer
from .following import Follower
from .loading import ServerContext
from .model import Model
from .poller import Poller
from .repository import (
    NEWER,
    UNLOADED_MEANWHILE,
    Begin,
    LoadProgress,
    Replacement,
    Repository,
    Scanned,
    Unload,
    no_more_changes,
)

logger = logging.getLogger("trireme.repository")

ALL_MODELS = "*"
"""``--load-model`` with this name loads all."""


class NameLocks:
    """Sets of names, held all at once or not at all, in the order in which they were asked for: operations on one name
    go one after the other, those on different names side by side.

    An operation waits for those before it that share a name with it, so there is no circle to wait in, and none is
    overtaken for ever.
    """

    def __init__(self) -> None:
        self._line: dict[object, frozenset[str]] = {}  # by operation
        self._changed = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def hold(self, names: frozenset[str]) -> AsyncIterator[None]:
        """Wait until no earlier operation holds or wants one of `names`."""
        operation = object()
        self._line[operation] = names
        try:
            while self._must_wait(operation):
                await self._changed.park()
            yield
        finally:
            del self._line[operation]
            self._changed.unpark_all()

    def wanted(self, names: frozenset[str]) -> bool:
        """Whether an operation holds or wants one of them."""
        return any(not others.isdisjoint(names) for others in self._line.values())

    def _must_wait(self, operation: object) -> bool:
        earlier = itertools.takewhile(lambda item: item[0] is not operation, self._line.items())
        return any(not names.isdisjoint(self._line[operation]) for _, names in earlier)


class ModelControl:
    """Loads and unloads.

    Args:
        source: tells which models exist.
        nursery: the owner of all models and operations.

    Attributes:
        load_first: loads what is to be there from the start, and says whether all is; None if this does.
        versions_by_policy: see `Poller`.
    """

    def __init__(
        self,
        source: RepositorySource,
        context: ServerContext,
        nursery: trio.Nursery,
        on_progress: LoadProgress,
        model_class: type[Model] = Model,
    ) -> None:
        self.repository = Repository(context, on_progress, self._unused, model_class)
        self._context = context
        self._nursery = nursery
        self._known: dict[str, Known] = {}
        self.load_first: Callable[[tuple[str, ...]], Awaitable[bool]] | None = None
        self._explicit: set[str] = set()
        self._errors: dict[str, str] = {}  # why the last load of a model failed
        self._temporary: dict[ModelSource, ModelSource] = {}  # with what each was made of
        self._slow_loads = self.repository.slow_loads
        self._poller = Poller(source, context, self._known, self._temporary, self._slow_loads)
        self.versions_by_policy = self._poller.versions_by_policy
        self._locks = NameLocks()
        self._follower = Follower(
            self._poller, self._known, lambda models: self._locks.hold(self._related(models)), self._apply
        )

    async def read(self, name: str, known: Mapping[str, Reading]) -> dict[str, Reading]:
        """See `read_models`; of what the repositories held at the last look."""
        context = self._context
        look = partial(read_models, name, self._poller.sources(), known, context.options, context.agents)
        return await context.executors.briefly(look)

    # At start, from time to time, and at the end.

    async def start(self) -> bool:
        """Load what the control mode says; True if all of it is ready.

        Raises:
            TriremeError: a repository cannot be read at all.
        """
        options = self._context.options
        await self._nursery.start(self.repository.run)
        await self.rescan()
        if self.load_first is not None:
            return await self.load_first(options.startup_models)
        if options.model_control_mode is ControlMode.EXPLICIT and ALL_MODELS not in options.startup_models:
            named = [identity for name in options.startup_models for identity in self._poller.named(name)]
            complete = await self._follower.follow_all(named, with_members=True)
            self._explicit.update(identity for identity in named if identity in self._known)
            return complete and not self._errors
        duplicates = self._report_duplicates()
        sources = self._poller.sources()
        self._explicit.update(sources)
        complete = await self._follower.follow_all(sources)
        return complete and not duplicates and not self._errors

    def _report_duplicates(self) -> bool:
        """Whether there are any."""
        for name in self._poller.scan.duplicates:
            logger.error("failed to poll model '%s': not unique across all model repositories", name)
        return bool(self._poller.scan.duplicates)

    async def keep_polling(self, period_s: float) -> None:
        """Follow the repositories: look every `period_s` seconds what has changed, until the server stops."""
        by = Replacement(NEWER, None, is_outdated)
        while not self.repository.stopping:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._slow_loads.keep_ending, trio.CancelScope(), self._known, by, period_s)
                    await trio.sleep(period_s)
                    await self.poll()
                    nursery.cancel_scope.cancel()
            except Exception:
                # A defect, or a machine that is out of threads: what is served goes on, and the next look tries again.
                logger.exception("polling the model repository failed unexpectedly")
                await trio.sleep(period_s)

    async def poll(self) -> None:
        """Load what is new or has changed, unload what is gone. Errors are logged, and keep what is served as it is.
        What has to be fetched first is not waited for."""
        try:
            await self.rescan()
        except TriremeError as error:
            logger.error("failed to poll the model repository: %s", error.message)
            return
        self._report_duplicates()
        sources = self._poller.sources()
        await self._follower.look(sources, self._nursery)
        for identity in [identity for identity in self._known if identity not in sources]:
            related = self._related([identity])
            if not self._follower.under_way(related):  # else one of the next looks
                async with self._locks.hold(related):
                    await self._drop(identity)
        await self._follower.load()

    def close(self) -> None:
        """Remove what is left of temporary models; nothing runs any more."""
        for source in self._temporary:
            source.dispose()
        self._temporary.clear()

    async def rescan(self) -> None:
        """Look what the repositories hold. Raises `TriremeError` if one cannot be read."""
        self.repository.check_started()
        await self._poller.rescan()
        self.repository.tell(Scanned(self._poller.scan))

    # What clients ask for.

    async def load(self, name: str, parameters: Mapping[str, str | Buffer], *, as_seen: bool = False) -> None:
        """See `InferenceServer.load_model` (docs/reference/model-control.md#load,
        docs/reference/model-control.md#load-parameters).

        Args:
            as_seen: the repositories, which may be large, are not looked through again for which models there are.
        """
        self._check_mode()
        if not name.strip():
            raise InvalidArgumentError("Model name cannot be empty. Please enter a valid name to deploy.")
        if name in (".", "..") or "/" in name:
            raise InvalidArgumentError(
                f"invalid model name '{name}', model name must not contain path traversal characters"
            )
        await self._apart(partial(self._load, name, parameters, as_seen))

    async def unload(self, name: str, unload_dependents: bool, namespace: str = "") -> None:
        """See `InferenceServer.unload_model`; a model that is not there is as good as unloaded."""
        self._check_mode()
        await self._apart(partial(self._unload, name, unload_dependents, namespace))

    def _check_mode(self) -> None:
        self.repository.check_started()
        if not self._context.options.model_control_mode.takes_orders:
            raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")

    async def _apart(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it in a task of the server's (rule 2); what it raises is raised here."""
        done = trio.Event()
        error: TriremeError | None = no_more_changes()

        async def run() -> None:
            nonlocal error
            try:
                await work()
                error = None
            except TriremeError as failure:
                error = unframed(failure)
            except Exception as failure:
                # A defect, here or in what is called: it must cost the client's call only, not the server.
                logger.exception("loading or unloading a model failed unexpectedly")
                error = InternalError(f"{type(failure).__name__}: {failure}")
            finally:
                done.set()

        if not self.repository.stopping:
            self._nursery.start_soon(run)
            await done.wait()
        if error is not None:
            try:
                raise error
            finally:
                error = None  # else it and this frame, which has the files of a load request, refer to each other

    async def _load(self, name: str, parameters: Mapping[str, str | Buffer], as_seen: bool) -> None:
        if not self._context.options.allow_code_upload:
            refuse_code(name, parameters)
        override = await self._read_override(name, parameters)
        try:
            await self._load_locked(name, override, as_seen)
        finally:
            if override is not None and override.source is not None:
                self._temporary[override.source] = override.source
                await self._unused(override.source)

    async def _load_locked(self, name: str, override: Override | None, as_seen: bool) -> None:
        by = Replacement(NEWER, name, is_outdated if override is None else always)
        held, names = frozenset[str](), self._related([name])
        while not names <= held:
            held |= names
            async with self._hold(held, by):
                if not as_seen:
                    await self.rescan()
                if override is not None and not self._context.options.allow_code_upload:
                    await self._poller.check_override(override)
                ids = self._poller.named(name, override)
                polled, _ = await self._poller.poll_with_members(ids, override)
                names = self._related([name, *ids, *polled])
                if names <= held:
                    await self._load_polled(name, ids, polled)
                else:
                    await self._discard(polled)

    @asynccontextmanager
    async def _hold(self, names: frozenset[str], by: Replacement) -> AsyncIterator[None]:
        """Wait until no other operation changes any of `names` (rule 1); meanwhile, slow loads are ended (rule 6)."""
        waiting = trio.CancelScope()
        if self._locks.wanted(names):
            self._nursery.start_soon(self._slow_loads.keep_ending, waiting, self._known, by)
        try:
            async with self._locks.hold(names):
                waiting.cancel()
                yield
        finally:
            waiting.cancel()

    async def _load_polled(self, name: str, ids: Iterable[str], polled: Mapping[str, Known]) -> None:
        self._explicit.update(identity for identity in ids if identity in polled)
        await self._apply(polled)
        missing = [identity for identity in ids if identity not in polled]
        reasons = "".join(self._poller.ended.get(identity, "") for identity in missing)
        if missing and not reasons:
            raise _not_polled(name)
        reasons = reasons or "".join(self._errors.get(identity, "") for identity in ids)
        if reasons:
            if self.repository.stopping:
                raise no_more_changes()
            raise InvalidArgumentError(f"load failed for model '{name}': {reasons}\n")
        if not all(self.repository.serves(identity) for identity in ids):
            if self.repository.stopping:
                raise no_more_changes()
            raise InternalError(f"failed to load '{name}', no version is available")

    async def _read_override(self, name: str, parameters: Mapping[str, str | Buffer]) -> Override | None:
        if not parameters:
            return None
        try:
            config_json, files = read_load_parameters(parameters)
            source = None
            if files:
                shared = self._context.options.confinement.account is not None
                make = partial(OverrideModel, name, files, shared=shared)
                source = await self._context.executors.offload(make)
        except TriremeError as error:
            logger.error("Poll failed for model directory '%s': %s", name, error.message)
            raise _not_polled(name) from error
        return Override(name, config_json, source)

    async def _unload(self, name: str, unload_dependents: bool, namespace: str) -> None:
        def meant(known: Known) -> bool:
            return not namespace or known.source.namespace in ("", namespace)

        applies = meant if namespace else always
        held, names = frozenset[str](), self._related([name])
        while not names <= held:
            held |= names
            async with self._hold(held, Replacement(UNLOADED_MEANWHILE, name, applies)):
                named = {identity: known for identity, known in self._known.items() if known.source.name == name}
                ids = [identity for identity, known in named.items() if meant(known)]
                names = self._related([name, *ids])
                if names <= held:
                    for identity in ids:
                        if identity in self._known:
                            await self._drop(identity, unload_dependents)

    async def _drop(self, identity: str, with_members: bool = False) -> None:
        """Unload a model for good, and for the time being the ensembles that need it: they come back when it does.

        Args:
            with_members: also those that were not loaded by name and that no other model needs.
        """
        member_ids = self._members_of(identity)
        for dependent in reversed(self._dependencies().dependents(identity)):
            self.repository.tell(Unload(dependent))
        known = self._known.pop(identity)
        self._explicit.discard(identity)
        self._errors.pop(identity, None)
        if known.source.temporary:
            await self._context.executors.briefly(known.source.unloading)
        self.repository.tell(Unload(identity))
        await self._unused(known.source)
        for member in member_ids if with_members else ():
            needed = any(member in self._members_of(other) for other in self._known)
            if member in self._known and member not in self._explicit and not needed:
                await self._drop(member, with_members)

    # What is there, and what follows.

    async def _apply(self, polled: Mapping[str, Known]) -> None:
        """Load what has changed or is not served, and the ensembles that need it (rule 3)."""
        former = dict(self._known)
        wanted = {
            identity
            for identity, known in polled.items()
            if self._known.get(identity) is not known or not self.repository.serves(identity)
        }
        self._known.update(polled)
        dependencies = self._dependencies()
        affected = wanted.union(*(dependencies.dependents(identity) for identity in wanted))
        for identity, problem in dependencies.problems.items():
            if identity in affected:
                logger.error("Poll failed for model directory '%s': %s", identity, problem)
                await self._failed(identity, former.get(identity), problem.message)
        for wave in dependencies.waves():
            loading = [identity for identity in wave if identity in wanted]
            replaced: list[str] = []
            async with trio.open_nursery() as nursery:
                for identity in loading:
                    nursery.start_soon(self._load_one, identity, former.get(identity), replaced)
            for ensemble, member_ids in dependencies.members.items():
                if not set(replaced).isdisjoint(member_ids):
                    wanted.add(ensemble)
        await self._discard({each: former[each] for each in polled if each in former})

    async def _load_one(self, identity: str, former: Known | None, replaced: list[str]) -> None:
        """Load a model, or change it in place. Unless its versions stay what they are it is then among `replaced`."""
        known = self._known[identity]
        in_place = (
            former is not None
            and self.repository.serves(identity)
            and former.contents == known.contents
            and differs_in_place(former.config, known.config)
        )
        before = self.repository.ready_versions(identity)
        try:
            if known.config.has_ensemble_scheduling:
                self._check_members(identity)
            self.repository.tell(Begin(known.source))
            versions = await self._context.executors.offload(partial(known.source.versions, known.config))
            reason = await self.repository.replace(known.source, known.config, versions, in_place=in_place)
        except TriremeError as error:
            reason = error.message
            logger.error("failed to load '%s': %s", identity, reason)
        if not in_place or self.repository.ready_versions(identity) != before:
            replaced.append(identity)
        if reason:
            await self._failed(identity, former, reason)
            return
        self._errors.pop(identity, None)
        offload = self._context.executors.offload
        if known.source.temporary:
            await offload(partial(known.source.load_ended, True))
        if former is not None and former.source is not known.source and former.source.temporary:
            await offload(former.source.unloading)

    def _check_members(self, identity: str) -> None:
        config = self._known[identity].config
        ids = dict(zip(members(config), self._members_of(identity), strict=True))
        loaded = {member: self.repository.ready_versions(each) for member, each in ids.items()}
        check_members(
            config, loaded, {member: self._errors[each] for member, each in ids.items() if each in self._errors}
        )

    async def _failed(self, identity: str, former: Known | None, reason: str) -> None:
        """What is served goes on being so; the next look at the model is to try again."""
        self._errors[identity] = reason
        failed = self._known[identity]
        self._known[identity] = replace(former or failed, modified_ns=FORGOTTEN_NS)
        if failed.source.temporary and failed is not former:
            await self._context.executors.offload(partial(failed.source.load_ended, False))
            await self._unused(failed.source)

    async def _discard(self, polled: Mapping[str, Known]) -> None:
        for known in polled.values():
            await self._unused(known.source)

    async def _unused(self, source: ModelSource) -> None:
        """A temporary source is disposed of when nothing runs from it, or might be loaded from it again."""
        if source not in self._temporary or self.repository.uses(source):
            return
        needed = any(source in (known.source, known.origin) for known in self._known.values())
        needed = needed or any(source is origin for made, origin in self._temporary.items() if made is not source)
        if not needed:
            origin = self._temporary.pop(source)
            await self._context.executors.briefly(source.dispose)
            if origin is not source:
                await self._unused(origin)

    def _related(self, names: Iterable[str]) -> frozenset[str]:
        """With them, all that need each other, directly or not."""
        related = set(names)
        ensembles = {identity: needed for identity in self._known if (needed := self._members_of(identity))}
        groups = [{identity, *needed} for identity, needed in ensembles.items()]
        while any(not related.isdisjoint(group) and not group <= related for group in groups):
            for group in groups:
                if not related.isdisjoint(group):
                    related |= group
        return frozenset(related)

    def _members_of(self, identity: str) -> tuple[str, ...]:
        known = self._known.get(identity)
        if known is None:
            return ()
        namespace = known.source.namespace
        return tuple(resolve(self._known, {}, namespace, name) or name for name in members(known.config))

    def _dependencies(self) -> Dependencies:
        return Dependencies({identity: self._members_of(identity) for identity in self._known})


def _not_polled(name: str) -> TriremeError:
    return InternalError(f"failed to load '{name}', failed to poll from model repository")
