"""Loads that take long: they may hang, and are ended when their outcome is not wanted any more.

A stop of the server ends every load at once. An unload, and a load of something newer, wait a little: most loads of the
same model are soon over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import trio

from ..engine.description import ModelState
from ..engine.errors import UnavailableError
from ..engine.repository.known import Known
from .loading import ServerContext
from .messages import Drain, EndResize
from .model import Model

UNLOADED_MEANWHILE = "it was unloaded meanwhile, no version is available"
NEWER = "there is something newer to load"
STOPPING = "the server is stopping"
"""Why a load was ended."""

_LOOK_S = 1.0


@dataclass(slots=True)
class LoadUnderWay:
    """Of the versions of a model. `ended`: why its outcome is not wanted any more; empty as long as it is."""

    began_s: float
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What makes loads superfluous.

    Attributes:
        why: what they fail with.
        name: of the models; None for all.
        applies: whether it does so to a certain load. Runs on a thread.
    """

    why: str
    name: str | None
    applies: Callable[[Known], bool]


class SlowLoads:
    """The loads that are under way.

    Args:
        models: all that there are.
    """

    def __init__(self, context: ServerContext, models: Callable[[], Iterable[Model]]) -> None:
        self._context = context
        self._models = models
        self._loads: dict[str, LoadUnderWay] = {}  # by id

    @contextmanager
    def under_way(self, identity: str) -> Iterator[LoadUnderWay]:
        """While versions of a model are loaded. There is one load of a model at a time."""
        load = self._loads[identity] = LoadUnderWay(self._context.clock.now_s())
        try:
            yield load
        finally:
            del self._loads[identity]

    async def keep_ending(
        self, waiting: trio.CancelScope, known: Mapping[str, Known], by: Replacement, period_s: float = _LOOK_S
    ) -> None:
        """End loads that something replaces, as soon as they are slow, until `waiting` is cancelled.

        Args:
            known: what is loaded, by id.
        """
        with waiting:
            while True:
                before_s = self._context.clock.now_s() - self._context.options.load_patience_s
                slow = [(identity, load) for identity, load in self._loads.items() if load.began_s <= before_s]
                for identity, load in slow:
                    each = known.get(identity)
                    if each is None or by.name not in (None, each.source.name):
                        continue
                    if await self._context.executors.briefly(partial(by.applies, each)):
                        self._end(identity, load, by.why)
                await trio.sleep(period_s)

    def end_all(self) -> None:
        """End every load; the server stops."""
        for identity, load in list(self._loads.items()):
            self._end(identity, load, STOPPING)

    def _end(self, identity: str, load: LoadUnderWay, why: str) -> None:
        if self._loads.get(identity) is not load:
            return  # it has just come to its own end; there may be another by now
        load.ended = why
        for model in self._models():
            if model.id == identity and not model.loaded and model.state is ModelState.LOADING:
                model.tell(Drain(unloads=True))
            elif model.id == identity:
                model.tell(EndResize())


def no_more_changes() -> UnavailableError:
    """The answer to who wants models to come or go while the server stops."""
    return UnavailableError("Server is stopping, models are not loaded or unloaded any more")
