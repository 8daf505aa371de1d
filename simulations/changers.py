"""Who has models loaded and unloaded: a client, or a model that serves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from ..actors import InferenceServer
from ..actors.facade import Management
from ..engine.backends.services import ModelAccess
from ..engine.errors import TriremeError


class Inside:
    """Has models loaded and unloaded as a model does that serves."""

    def __init__(self, calls: ModelAccess) -> None:
        self._calls = calls

    async def load(self, model: str) -> None:
        await self._done(partial(self._calls.load_model, model, {}))

    async def unload(self, model: str, dependents: bool) -> None:
        await self._done(partial(self._calls.unload_model, model, dependents))

    async def _done(self, begin: Callable[[Callable[[TriremeError | None], None]], None]) -> None:
        done, errors = trio.Event(), list[TriremeError | None]()

        def over(error: TriremeError | None) -> None:
            errors.append(error)
            done.set()

        begin(over)
        await done.wait()
        if errors[0] is not None:
            raise errors[0]


class FromOutside:
    """The same, as a client."""

    def __init__(self, server: InferenceServer | Management) -> None:
        self.unload = server.unload_model
        self._server = server

    async def load(self, model: str) -> None:
        await self._server.load_model(model, {})
