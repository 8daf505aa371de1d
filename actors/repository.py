"""The repository actor: which models there are, in which versions and states. It owns the model actors.

What is loaded when is decided in `model_control`; here it is carried out, all or nothing per model. What others ask is
answered by the `Catalog` that it is.

Rules:
 1. Versions that are loaded serve from one turn on, all of one load, and those that they replace drain.
 2. A version that is loaded in order to replace one that serves is out of sight until then; one that was replaced is so
    until it has ended.
 3. When the server stops, every model drains; what an ensemble needs for its last requests, after the ensemble.
 4. What waits (loading, changing in place) is for the tasks that ask for it: see `replace`. They see to it that no
    other changes the same model meanwhile.
 5. A load may hang, and is ended when its outcome is not wanted any more. A stop of the server ends every load at once.
    An unload, and a load of something newer, wait a little: most loads of the same model are soon over.

States:

    OPEN ─ EndLoads ▶ no model is loaded or unloaded by request (`stopping`) ─ with `drains` ▶ all models drain
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import trio

from ..engine.config.model import ModelConfig
from ..engine.description import IndexEntry, ModelState
from ..engine.errors import ColdModelError, InternalError, UnavailableError
from ..engine.logs.request_lines import about
from ..engine.repository.catalog import UNLOADED, Catalog
from ..engine.repository.known import Known, always
from ..engine.repository.source import ModelSource, Scan
from ..engine.request import LATEST
from .actor import Actor
from .instance import ReadinessCheck, all_pass
from .loading import ServerContext
from .messages import Drain, EndResize, Serve
from .model import Model

logger = logging.getLogger("trireme.repository")

UNLOADED_MEANWHILE = "it was unloaded meanwhile, no version is available"
NEWER = "there is something newer to load"
STOPPING = "the server is stopping"
"""Why a load was ended."""

_LOOK_S = 1.0

LoadProgress = Callable[[str, int, str], None]
"""Called with model name, version and state whenever a version changes its state."""


@dataclass(slots=True, eq=False)
class Scanned:
    """What the repositories hold now; the index lists that."""

    scan: Scan


@dataclass(slots=True, eq=False)
class Begin:
    """A model is to be loaded, which from now on is known, even if no version of it comes to be.

    Attributes:
        models: those of its versions that are about to load.
    """

    source: ModelSource
    models: Sequence[Model] = ()


@dataclass(slots=True, eq=False)
class Switch:
    """Rule 1. Of the model with this id, `models` are loaded, and `staying` serve on."""

    identity: str
    models: Sequence[Model]
    staying: Sequence[Model]


@dataclass(slots=True, eq=False)
class Unload:
    """Drain all versions of the model with this id; sequences that have begun are not continued any more."""

    identity: str


@dataclass(slots=True, eq=False)
class EndLoads:
    """End what is being loaded; from now on nothing is loaded or unloaded by request.

    Attributes:
        drains: all models drain.
    """

    drains: bool = False


@dataclass(slots=True, eq=False)
class StateChanged:
    """A version has entered a state."""

    model: Model
    state: ModelState
    reason: str


RepositoryMessage = Scanned | Begin | Switch | Unload | EndLoads | StateChanged


@dataclass(slots=True)
class LoadUnderWay:
    """Of the versions of a model. `ended`: why its outcome is not wanted any more; empty as long as it is."""

    began_s: float
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What makes loads of the models of this name, or of all (None), superfluous: they fail with `why`, if it
    `applies`, which is asked on a thread."""

    why: str
    name: str | None
    applies: Callable[[Known], bool]


@dataclass(slots=True, eq=False)
class LookUnderWay:
    """At a model of this name, which may have to be fetched from elsewhere first. `ended`: why it was ended."""

    name: str
    began_s: float
    scope: trio.CancelScope
    ended: str = ""

    def end(self, why: str) -> None:
        """It is not waited for any more."""
        self.ended = why
        self.scope.cancel()


class SlowLoads:
    """The loads that are under way, and the looks at models before.

    Args:
        models: all that there are.
    """

    def __init__(self, context: ServerContext, models: Callable[[], Iterable[Model]]) -> None:
        self._context = context
        self._models = models
        self._loads: dict[str, LoadUnderWay] = {}  # by id
        self._looks: dict[LookUnderWay, None] = {}

    @contextmanager
    def look(self, name: str) -> Iterator[LookUnderWay]:
        """While a model is looked at; the block is left when that is ended."""
        look = LookUnderWay(name, self._context.clock.now_s(), trio.CancelScope())
        self._looks[look] = None
        try:
            with look.scope:
                yield look
        finally:
            del self._looks[look]

    @contextmanager
    def under_way(self, identity: str) -> Iterator[LoadUnderWay]:
        """While versions of a model are loaded, one load of a model at a time."""
        load = self._loads[identity] = LoadUnderWay(self._context.clock.now_s())
        try:
            yield load
        finally:
            del self._loads[identity]

    async def keep_ending(
        self, waiting: trio.CancelScope, known: Mapping[str, Known], by: Replacement, period_s: float = _LOOK_S
    ) -> None:
        """End loads of what is `known` that something replaces, as soon as they are slow, until `waiting` is
        cancelled."""
        with waiting:
            while True:
                before_s = self._context.clock.now_s() - self._context.options.load_patience_s
                slow = [(identity, load) for identity, load in self._loads.items() if load.began_s <= before_s]
                for identity, load in slow:
                    each = known.get(identity)
                    if each is None or by.name not in (None, each.source.name):
                        continue
                    if await self._context.executors.look(partial(by.applies, each)):
                        self._end(identity, load, by.why)
                for look in list(self._looks):
                    if by.applies is always and by.name == look.name and look.began_s <= before_s:
                        look.end(by.why)
                await trio.sleep(period_s)

    def end_all(self) -> None:
        """End every load; the server stops."""
        for identity, load in list(self._loads.items()):
            self._end(identity, load, STOPPING)
        for look in self._looks:
            look.end(STOPPING)

    def _end(self, identity: str, load: LoadUnderWay, why: str) -> None:
        if self._loads.get(identity) is not load:
            return  # it has just come to its own end; there may be another by now
        load.ended = why
        for model in self._models():
            if model.id == identity and not model.loaded and model.state is ModelState.LOADING:
                model.tell(Drain(unloads=True))
            elif model.id == identity:
                model.tell(EndResize())


class StartupError(InternalError):
    """The server could not start as it was told to.

    Attributes:
        index: the repository index at that moment, before everything was unloaded again.
    """

    def __init__(self, message: str, index: Sequence[IndexEntry]) -> None:
        super().__init__(message)
        self.index = tuple(index)


class Repository(Catalog[Model], Actor[RepositoryMessage]):
    """All models of a server. Its mailbox holds a few messages of each model and operation.

    Args:
        on_progress: told about every change of a version's state.
        on_unused: told when all versions of one load have ended.
        model_class: of its models.

    Attributes:
        stopping: see `EndLoads`.
    """

    def __init__(
        self,
        context: ServerContext,
        on_progress: LoadProgress,
        on_unused: Callable[[ModelSource], Awaitable[None]],
        model_class: type[Model] = Model,
    ) -> None:
        Actor.__init__(self, "the repository", context.turn)
        Catalog.__init__(self, context.options.model_namespacing)
        self._context = context
        self._on_progress = on_progress
        self._on_unused = on_unused
        self._model_class = model_class
        self._nursery: trio.Nursery | None = None
        self.slow_loads = SlowLoads(context, self._all)
        self.stopping = False
        self._undrained: dict[Model, None] = {}  # when the server stops
        self._watchers = trio.lowlevel.ParkingLot()

    # In turns.

    def receive(self, message: RepositoryMessage) -> None:
        match message:
            case StateChanged():
                self._changed(message)
            case Scanned(scan):
                before, self._scan = self._sources, scan
                self._sources = frozenset(source.name for source in scan.models)
                for name in before ^ self._sources if self.on_demand is not None else ():
                    self.forget(name)  # whether it may be asked for
            case Begin(source, models):
                self._begin(source, models)
            case Switch(identity, models, staying):
                self._switch(identity, models, staying)
            case Unload(identity):
                self._unload(identity)
            case EndLoads(drains):
                self.stopping = True
                if self.on_demand is not None:
                    self.on_demand.stop()
                self.slow_loads.end_all()
                if drains:
                    self._undrained = dict.fromkeys(self._all())

    def act(self) -> None:
        """Rule 3."""
        for model in list(self._undrained):
            if not model.held:
                del self._undrained[model]
                model.mailbox.send_nowait(Drain())

    def _begin(self, source: ModelSource, models: Sequence[Model]) -> None:
        shown = self._models.setdefault(source.id, {})
        ids = self._ids.setdefault(source.name, [])
        self._forget_found(source.name)
        if source.id not in ids:
            ids.append(source.id)
        for model in models:
            before = shown.get(model.version)
            if before is not None and before.ready:
                self._hidden[model] = None
            else:
                self._show(model)

    def _switch(self, identity: str, models: Sequence[Model], staying: Sequence[Model]) -> None:
        shown = self._models[identity]
        former = [model for model in shown.values() if model not in models and model not in staying]
        for model in models:
            self._show(model)
            model.mailbox.send_nowait(Serve())
        for model in former:
            if not model.ended:
                model.mailbox.send_nowait(Drain(retires=True))
            elif model.reason != UNLOADED and shown[model.version] is model:
                del shown[model.version]  # it failed once, and is not asked for any more
                self._forget_found(model.name)

    def _show(self, model: Model) -> None:
        """From now on this is what is known under its name and version. One that it displaces drains out of sight."""
        shown = self._models[model.id]
        before = shown.get(model.version)
        if before is not None and before is not model and not before.ended:
            self._hidden[before] = None
        self._hidden.pop(model, None)
        shown[model.version] = model
        self._forget_found(model.name)

    def _unload(self, identity: str) -> None:
        for model in self._of(identity):
            if not model.ended:
                model.mailbox.send_nowait(Drain(unloads=True))
        if not self._versions(identity):
            self._models.pop(identity, None)
            for name in [name for name, ids in self._ids.items() if identity in ids]:
                self._forget_found(name)

    def _changed(self, message: StateChanged) -> None:
        """Remember which version is latest, and notify the watchers."""
        model = message.model
        match message.state:
            case ModelState.LOADING:
                logger.info("loading: %s:%d", model.id, model.version, extra=about(model.id))
            case ModelState.UNAVAILABLE if message.reason == UNLOADED:
                text = "successfully unloaded '%s' version %d"
                logger.info(text, model.id, model.version, extra=about(model.id))
            case ModelState.UNAVAILABLE:
                text = "failed to load '%s' version %d: %s"
                logger.error(text, model.id, model.version, message.reason, extra=about(model.id))
        self._forget_found(model.name)
        if model.ended:
            self._hidden.pop(model, None)
        self._choose_latest(model.name)
        self._watchers.unpark_all()
        self._on_progress(model.id, model.version, message.state.value)

    def _choose_latest(self, name: str) -> None:
        """Which version answers to a name alone."""
        ready = []
        if len(ids := self._living(name)) == 1:
            ready = [each for each in self._versions(ids[0]) if each.ready]
        if ready:
            self._latest[name] = ready[-1]
        else:
            self._latest.pop(name, None)

    def forget(self, name: str) -> None:
        super().forget(name)
        self._watchers.unpark_all()

    # In tasks.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the models until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await super().run()

    async def check_model_ready(self, name: str, version: int = LATEST) -> bool:
        """`model_ready`, and the model is asked if it has a check of its own."""
        if not self.model_ready(name, version):
            return False
        try:
            checks = self.find(name, version).own_checks()
        except ColdModelError:
            return True  # it answers when it has been loaded
        return not checks or (await all_pass(checks) and self.model_ready(name, version))

    def own_checks(self) -> list[ReadinessCheck]:
        """What is to be asked besides `all_ready`."""
        return list(dict.fromkeys(check for model in self.models() if model.ready for check in model.own_checks()))

    async def changed(self) -> None:
        """Wait until a version changes its state."""
        await self._watchers.park()

    async def replace(
        self, source: ModelSource, config: ModelConfig, versions: Sequence[int], *, in_place: bool = False
    ) -> str:
        """Load versions of a model, and when all of them are loaded, let them serve in place of those that do so now.

        If one fails the others are released again, and those that serve now go on
        (docs/reference/model-control.md#versions, docs/reference/model-control.md#reload). Sequences that have begun
        are continued by those that serve now until they are over.

        Args:
            in_place: versions that serve now stay, with the instances that the configuration asks for.

        Returns:
            Why it failed, one sentence a version (docs/reference/http.md#load); empty if it did not.

        Raises:
            UnavailableError: everything is being unloaded.
        """
        if self.stopping:
            raise no_more_changes()
        with self.slow_loads.under_way(source.id) as load:
            reason = await self._replace(source, config, versions, in_place)
        return load.ended or reason if reason else ""

    async def _replace(self, source: ModelSource, config: ModelConfig, versions: Sequence[int], in_place: bool) -> str:
        shown = self._models.get(source.id, {})
        staying = [shown[version] for version in versions if in_place and version in shown and shown[version].ready]
        present = {model.version for model in staying}
        models = await self._load([version for version in versions if version not in present], source, config)
        failed = [model for model in models if not model.loaded]
        reason = "".join(f"version {each.version} is at {each.state.value} state: {each.reason};" for each in failed)
        reason = reason or await self._change(staying, config)
        if reason:
            for model in models:
                model.tell(Drain())
        else:
            self.tell(Switch(source.id, models, staying))
            while any(model.loaded for model in models):  # in a turn with many messages
                await self.changed()
            logger.info("successfully loaded '%s'", source.id, extra=about(source.id))
        return reason

    async def _load(self, versions: Sequence[int], source: ModelSource, config: ModelConfig) -> list[Model]:
        """Load versions side by side; those that could be loaded wait to be told to serve."""
        find = partial(self.find_member, source.namespace)
        models = [
            self._model_class(source, config, version, self._context, find, self.continuing, self._note)
            for version in versions
        ]
        self.tell(Begin(source, models))
        if models:
            assert self._nursery is not None, "a repository that runs loads models"
            self._nursery.start_soon(self._keep, models)
            for model in models:
                await model.settled.wait()
        return models

    async def _change(self, models: Sequence[Model], config: ModelConfig) -> str:
        """Give versions that serve other instances; if one cannot have them, all keep what they had. Why not."""
        changed: list[tuple[Model, ModelConfig]] = []
        for model in models:
            logger.info("loading: %s:%d", model.id, model.version, extra=about(model.id))
            before = model.config
            reason = await model.change(config)
            self._forget_found(model.name)
            if reason:
                for each, former in changed:
                    await each.change(former)
                    self._forget_found(each.name)
                return f"version {model.version} is at {reason};"
            changed.append((model, before))
        return ""

    async def _keep(self, models: Sequence[Model]) -> None:
        """Run the versions of one load to their end."""
        async with trio.open_nursery() as nursery:
            for model in models:
                nursery.start_soon(model.run)
        await self._on_unused(models[0].source)

    def _note(self, model: Model) -> None:
        self.tell(StateChanged(model, model.state, model.reason))


def no_more_changes() -> UnavailableError:
    """The answer to who wants models to come or go while the server stops."""
    return UnavailableError("Server is stopping, models are not loaded or unloaded any more")
