"""Looking at the repositories: which models there are, and what they are now (docs/reference/model-control.md).

A look never changes what is served. One that finds a model unchanged gives back what is known already.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from ..engine.config.model import ModelConfig
from ..engine.ensemble import members_of
from ..engine.errors import TriremeError
from ..engine.options import ServerOptions
from ..engine.repository.source import ModelSource, RepositorySource, Scan
from ..engine.repository.uploads import refuse_named_code
from .surroundings import Surroundings

logger = logging.getLogger("trireme.repository")

_FORGOTTEN_NS = -1


@dataclass(frozen=True, slots=True)
class Known:
    """A model that is to be served, as it was read last.

    Attributes:
        origin: what was looked at.
        source: what is loaded; the same, unless repository agents have put something else in its place.
        modified_ns: when `origin` had been changed last by then; below 0 if it could not be loaded.
        contents: equal as long as nothing but the configuration has changed.
    """

    origin: ModelSource
    source: ModelSource
    config: ModelConfig
    modified_ns: int
    contents: Hashable


@dataclass(frozen=True, slots=True)
class Override:
    """What a load request brings along for the models of one name.

    Attributes:
        source: the model's files, if they came with the request.
    """

    name: str
    config_json: str
    source: ModelSource | None


class Poller:
    """Reads models.

    Attributes:
        scan: what the last look found.
    """

    def __init__(self, source: RepositorySource, surroundings: Surroundings) -> None:
        self.scan = Scan(())
        self._source = source
        self._surroundings = surroundings

    async def rescan(self) -> None:
        """Look what the repositories hold.

        Raises:
            TriremeError: one cannot be read.
        """
        self.scan = await self._surroundings.executors.briefly(self._source.scan)

    def sources(self) -> dict[str, ModelSource]:
        """What the repositories held at the last look, by id."""
        return {source.id: source for source in self.scan.models}

    def named(self, name: str, override: Override | None = None) -> list[str]:
        """The ids of all models of a name; several only with namespacing. At least one, even if there is no such
        model."""
        if override is not None and override.source is not None:
            return [override.source.id]
        return [source.id for source in self.scan.models if source.name == name] or [name]

    async def check_override(self, override: Override) -> None:
        """With ``--allow-code-upload=false``: look whether what a load request brings along may choose what is run.

        Raises:
            InvalidArgumentError: it does.
        """
        own = [source for source in self.scan.models if source.name == override.name]
        await self._surroundings.executors.offload(partial(_check_override, override, own, self._surroundings.options))

    async def poll(
        self, sources: Mapping[str, ModelSource], known: Mapping[str, Known], override: Override | None = None
    ) -> dict[str, Known]:
        """Read models side by side.

        Args:
            sources: by id.
            known: what is known of them.

        Returns:
            By id; what is invalid is left out.
        """
        found: dict[str, Known] = {}

        async def look(source: ModelSource) -> None:
            config_json = override.config_json if override is not None and override.name == source.name else None
            read = await self._look(source, known.get(source.id), config_json)
            if read is not None:
                found[source.id] = read

        async with trio.open_nursery() as nursery:
            for source in sources.values():
                nursery.start_soon(look, source)
        return found

    async def poll_with_members(
        self, ids: Iterable[str], known: Mapping[str, Known], override: Override | None = None
    ) -> tuple[dict[str, Known], bool]:
        """Read models, and the members of those that are ensembles, however deep.

        Returns:
            What could be read, by id; and whether that is all of it.
        """
        there = self.sources()
        if override is not None and override.source is not None:
            there[override.source.id] = override.source
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
                    self._missing(each)
                    complete = False
            sources = {each: there[each] for each in waiting if each in there}
            found = await self.poll(sources, known, override)
            complete = complete and len(found) == len(sources)
            polled.update(found)
            waiting = []
            for each in found.values():
                for member in members(each.config):
                    identity = resolve({**known, **polled}, there, each.source.namespace, member) or member
                    if identity not in tried and identity not in waiting:
                        waiting.append(identity)
        return polled, complete

    def _missing(self, identity: str) -> None:
        if identity in self.scan.duplicates:
            logger.error("failed to poll model '%s': not unique across all model repositories", identity)
        else:
            logger.error("failed to poll model '%s': model not found in any model repository.", identity)

    async def _look(self, source: ModelSource, known: Known | None, config_json: str | None) -> Known | None:
        surroundings = self._surroundings

        def look() -> Known:
            modified_ns = source.modified_ns()
            fresh = config_json is not None or known is None or known.origin.temporary
            if not fresh and known is not None and _FORGOTTEN_NS < modified_ns <= known.modified_ns:
                return known
            contents = source.contents()
            opened, config = source.open(surroundings.options, config_json, surroundings.agents)
            if opened is not source:
                contents = opened.contents()
            return Known(source, opened, config, modified_ns, contents)

        try:
            return await surroundings.executors.offload(look)
        except TriremeError as error:
            logger.error("Poll failed for model directory '%s': %s", source.name, error)
        except Exception:
            # Whatever a model's files, or code that looks at them, come up with: it costs this model, not the server.
            logger.exception("Poll failed for model directory '%s'", source.name)
        return None


def _check_override(override: Override, own: Sequence[ModelSource], options: ServerOptions) -> None:
    for source in own or [None]:
        loaded = override.source or source
        given = None if loaded is None else _message(loaded, options, override.config_json)
        if given is not None:  # else there is no such model, or its configuration cannot be read, which a poll tells
            before = None if source is None else _message(source, options)
            refuse_named_code(override.name, given, before, brings_files=override.source is not None)


def _message(source: ModelSource, options: ServerOptions, config_json: str | None = None) -> Any | None:
    try:
        return source.message(options, config_json)
    except TriremeError:
        return None


def members(config: ModelConfig) -> tuple[str, ...]:
    """The names of the models that an ensemble needs; none for any other model."""
    return members_of(config) if config.has_ensemble_scheduling else ()


def resolve(known: Mapping[str, Known], there: Mapping[str, ModelSource], namespace: str, member: str) -> str | None:
    """Which model an ensemble of a repository means: the one beside it, else the only one of that name
    (docs/reference/model-control.md#namespaces).

    Returns:
        Its id; None if there is none, or several.
    """
    own = f"{namespace}::{member}" if namespace else member
    names = {identity: source.name for identity, source in there.items()}
    names.update((identity, each.source.name) for identity, each in known.items())
    matching = [identity for identity, name in names.items() if name == member]
    if own in matching:
        return own
    return matching[0] if len(matching) == 1 else None
