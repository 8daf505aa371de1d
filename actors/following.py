"""Following the repositories: models are looked at side by side, and loaded as soon as that can be.

Rules:
 1. Models whose files are here are looked at together, and loaded together. One whose files are elsewhere is looked at
    by itself: fetching it holds up only what needs it (`engine.repository.arrivals`).
 2. What is under way is not looked at again before that is over. What has changed meanwhile is found by the next look.
 3. Loads of models that need each other go one after the other (`NameLocks`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

import trio

from ..engine.repository.arrivals import Arrivals
from ..engine.repository.known import Known, members, resolve
from ..engine.repository.source import ModelSource
from .poller import Poller

logger = logging.getLogger("trireme.repository")


class Follower:
    """See above.

    Args:
        known: what is known of the models, by id.
        hold: waits until no other operation changes these models, or what they need, or what needs them.
        load: loads models that were looked at.
    """

    def __init__(
        self,
        poller: Poller,
        known: Mapping[str, Known],
        hold: Callable[[Iterable[str]], AbstractAsyncContextManager[None]],
        load: Callable[[Mapping[str, Known]], Awaitable[None]],
    ) -> None:
        self._poller = poller
        self._known = known
        self._hold = hold
        self._load = load
        self._arrivals: Arrivals[Known] = Arrivals()

    def under_way(self, models: Iterable[str]) -> bool:
        """Whether any of these ids is being looked at or loaded."""
        return any(each in self._arrivals for each in models)

    async def follow_all(self, models: Iterable[str], *, with_members: bool = False) -> bool:
        """Look at models and load them; whether all of them could be read.

        Args:
            models: ids.
            with_members: also the members of those that are ensembles, however deep.
        """
        complete = True
        async with trio.open_nursery() as nursery:

            async def follow(batch: Mapping[str, ModelSource]) -> None:
                nonlocal complete
                read = await self._look(batch)
                complete = complete and len(read) == len(batch)
                if with_members:
                    begin(need for known in read.values() for need in self._needs(known, read))
                await self.load()

            def begin(wanted: Iterable[str]) -> None:
                nonlocal complete
                there = self._poller.sources()
                new = [each for each in dict.fromkeys(wanted) if each not in self._arrivals and each not in self._known]
                for each in new:
                    if each not in there:
                        self._poller.missing(each)
                        complete = False
                for batch in _batches({each: there[each] for each in new if each in there}):
                    self._arrivals.begin(batch)
                    nursery.start_soon(follow, batch)

            begin(models)
        return complete

    async def look(self, sources: Mapping[str, ModelSource], nursery: trio.Nursery) -> None:
        """Look at what may have changed. What was found is left to `load`; models whose files are elsewhere are
        followed in tasks of their own."""
        new = {each: source for each, source in sources.items() if each not in self._arrivals}
        near = {each: source for each, source in new.items() if not source.distant}
        for identity, source in new.items():
            if source.distant and not self._poller.is_current(source):
                self._arrivals.begin([identity])
                nursery.start_soon(self._follow_apart, {identity: source})
        self._arrivals.begin(near)
        await self._look(near)

    async def _follow_apart(self, batch: Mapping[str, ModelSource]) -> None:
        try:
            await self._look(batch)
            await self.load()
        except Exception:
            # A defect, or a machine that is out of threads: what is served goes on, and the next look tries again.
            logger.exception("following %s failed unexpectedly", ", ".join(f"model '{each}'" for each in batch))

    async def _look(self, batch: Mapping[str, ModelSource]) -> dict[str, Known]:
        """Look at models that were begun. What could be read."""
        read: dict[str, Known] = {}
        try:
            read = await self._poller.poll(batch)
            for identity, known in read.items():
                if self._known.get(identity) is not known:
                    self._arrivals.arrived(identity, known, self._needs(known, read))
        finally:
            self._arrivals.end(batch)
        return read

    async def load(self) -> None:
        """Load what can be loaded by now."""
        taken = self._arrivals.take()
        if not taken:
            return
        try:
            needs = (need for known in taken.values() for need in self._needs(known, taken))
            async with self._hold([*taken, *needs]):
                await self._load(taken)
        finally:
            self._arrivals.end(taken)

    def _needs(self, known: Known, others: Mapping[str, Known]) -> Collection[str]:
        """The ids of a model's members."""
        names = members(known.config)
        if not names:
            return ()
        there, all_known = self._poller.sources(), {**self._known, **others}
        return [resolve(all_known, there, known.source.namespace, name) or name for name in names]


def _batches(sources: Mapping[str, ModelSource]) -> list[dict[str, ModelSource]]:
    """Rule 1."""
    near = {each: source for each, source in sources.items() if not source.distant}
    return [*([near] if near else []), *({each: source} for each, source in sources.items() if source.distant)]
