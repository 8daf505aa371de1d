"""Looking at the repositories: which models there are, and what they are now (docs/reference/model-control.md).

A look never changes what is served. One that finds a model unchanged gives back what is known already.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

from ..engine.cancellation import Cancellation
from ..engine.config.model import model_config
from ..engine.errors import TriremeError
from ..engine.repository.known import FORGOTTEN_NS, Known, Override, check_override, members, resolve
from ..engine.repository.source import ModelSource, RepositorySource, Scan
from .loading import ServerContext
from .repository import SlowLoads

logger = logging.getLogger("trireme.repository")


@dataclass(slots=True, eq=False)
class Poller:
    """Reads models.

    Args:
        known: what is known of them, by id.
        made: gets the sources that were made for a load, which have to be disposed of, with what each was made of.
        slow: is told of each look: one that takes long may be ended.

    Attributes:
        scan: what the last look found.
        ended: by id, why the last look at a model was ended; those that were.
    """

    _source: RepositorySource
    _context: ServerContext
    _known: Mapping[str, Known]
    _made: dict[ModelSource, ModelSource]
    _slow: SlowLoads
    scan: Scan = field(default=Scan(()), init=False)
    ended: dict[str, str] = field(default_factory=dict, init=False)
    _sources: Mapping[str, ModelSource] = field(default_factory=dict, init=False)
    _ids: dict[str, list[str]] = field(default_factory=dict, init=False)  # by name

    async def rescan(self) -> None:
        """Look what the repositories hold. Raises `TriremeError` if one cannot be read."""
        self.scan = scan = await self._context.executors.look(self._source.scan)
        self._sources = {source.id: source for source in scan.models}
        self._ids = {}
        for identity, source in self._sources.items():
            self._ids.setdefault(source.name, []).append(identity)

    def sources(self) -> Mapping[str, ModelSource]:
        """What the repositories held at the last look, by id. There may be many: it is not made anew for each call."""
        return self._sources

    def is_current(self, source: ModelSource) -> bool:
        """Whether a model is known as it is. Only for one that is distant: it reads no files for that."""
        known = self._known.get(source.id)
        return known is not None and _is_current(known, source.modified_ns())

    def named(self, name: str, override: Override | None = None) -> list[str]:
        """The ids of all models of a name; several only with namespacing. At least one, even if there is no such
        model."""
        if override is not None and override.source is not None:
            return [override.source.id]
        return [*self._ids.get(name, ())] or [name]

    async def versions_by_policy(self, name: str) -> frozenset[int] | None:
        """The versions that the policies of the models of a name choose, by their files as they are now; None if that
        cannot be told before they are loaded."""
        sources = self._sources_of(name)
        if not sources or any(source.distant for source in sources):
            return None
        found = await self._context.executors.offload(lambda: [self._versions(source) for source in sources])
        return None if None in found else frozenset[int]().union(*filter(None, found))

    def _sources_of(self, name: str) -> list[ModelSource]:
        return [self._sources[identity] for identity in self._ids.get(name, ())]

    def _versions(self, source: ModelSource) -> tuple[int, ...] | None:
        try:
            message = source.message(self._context.options)
            if message is None:
                return source.versions(source.open(self._context.options, None, self._context.agents)[1])
            agents = message.model_repository_agents.agents  # they may put another model in its place
            return None if agents else source.versions(model_config(message))
        except (TriremeError, OSError):
            return None  # which its load will say

    async def check_override(self, override: Override) -> None:
        """With ``--allow-code-upload=false``: look whether what a load request brings along may choose what is run.

        Raises:
            InvalidArgumentError: it does.
        """
        own = self._sources_of(override.name)
        await self._context.executors.offload(partial(check_override, override, own, self._context.options))

    async def poll(self, sources: Mapping[str, ModelSource], override: Override | None = None) -> dict[str, Known]:
        """Read models side by side. Sources and models by id; what is invalid is left out."""
        found: dict[str, Known] = {}

        async def look(source: ModelSource) -> None:
            config_json = override.config_json if override is not None and override.name == source.name else None
            read = await self._look(source, self._known.get(source.id), config_json)
            if read is not None:
                found[source.id] = read.known
                self._made.update(read.made)

        async with trio.open_nursery() as nursery:
            for source in sources.values():
                nursery.start_soon(look, source)
        return found

    async def poll_with_members(
        self, ids: Iterable[str], override: Override | None = None
    ) -> tuple[dict[str, Known], bool]:
        """Read models, and the members of those that are ensembles, however deep.

        Returns:
            What could be read, by id; and whether that is all of it.
        """
        known, there = self._known, self.sources()
        if override is not None and override.source is not None:
            there = {**there, override.source.id: override.source}
        polled: dict[str, Known] = {}
        asked = set(ids)
        tried: set[str] = set()
        complete = True
        waiting = list(asked)
        while waiting:
            tried.update(waiting)
            for each in waiting:
                if each in known and each not in there and each not in asked:
                    polled[each] = known[each]  # it exists only in memory
                elif each not in there:
                    self.missing(each)
                    complete = False
            sources = {each: there[each] for each in waiting if each in there}
            found = await self.poll(sources, override)
            complete = complete and len(found) == len(sources)
            polled.update(found)
            waiting = []
            for each in found.values():
                for member in members(each.config):
                    identity = resolve({**known, **polled}, there, each.source.namespace, member) or member
                    if identity not in tried and identity not in waiting:
                        waiting.append(identity)
        return polled, complete

    def missing(self, identity: str) -> None:
        """Log that there is no such model."""
        if identity in self.scan.duplicates:
            logger.error("failed to poll model '%s': not unique across all model repositories", identity)
        else:
            logger.error("failed to poll model '%s': model not found in any model repository.", identity)

    async def _look(self, source: ModelSource, known: Known | None, config_json: str | None) -> _Looked | None:
        look = partial(self._look_on_thread, source, known, config_json)
        executors = self._context.executors
        offload = executors.fetch if source.distant else executors.offload_cancellable
        self.ended.pop(source.id, None)
        try:
            with self._slow.look(source.name) as under_way:
                return await offload(look, _Looked.dispose)
            self.ended[source.id] = under_way.ended
            logger.error("Poll failed for model directory '%s': %s", source.name, under_way.ended)
        except TriremeError as error:
            logger.error("Poll failed for model directory '%s': %s", source.name, error)
        except Exception:
            # Whatever a model's files, or code that looks at them, come up with: it costs this model, not the server.
            logger.exception("Poll failed for model directory '%s'", source.name)
        return None

    def _look_on_thread(
        self, source: ModelSource, known: Known | None, config_json: str | None, cancellation: Cancellation
    ) -> _Looked:
        context = self._context
        modified_ns = source.modified_ns()
        if config_json is None and known is not None and _is_current(known, modified_ns):
            return _Looked(known)
        made: dict[ModelSource, ModelSource] = {}
        fetched = source.fetch(context.options, config_json, cancellation)
        with contextlib.ExitStack() as undo:
            if fetched is not source:
                undo.callback(fetched.dispose)
                made[fetched] = source
            contents = fetched.contents()
            opened, config = fetched.open(context.options, config_json, context.agents)
            if opened is not fetched:
                contents = opened.contents()
                made = {opened: fetched, **made}
            undo.pop_all()
        return _Looked(Known(source, opened, config, modified_ns, contents), made)


def _is_current(known: Known, modified_ns: int) -> bool:
    """Whether a look would bring nothing new."""
    return not known.origin.temporary and FORGOTTEN_NS < modified_ns <= known.modified_ns


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a look at a model has found, and the sources that it has made, each with what it was made of."""

    known: Known
    made: Mapping[ModelSource, ModelSource] = field(default_factory=dict)

    def dispose(self) -> None:
        """It is not wanted any more."""
        for source in self.made:
            source.dispose()
