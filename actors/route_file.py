"""The file of routes of a server: read when it starts, and again when it changes (`watched_file`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import trio

from ..engine.errors import TriremeError
from ..engine.routing.documents import placed_error, read_routes
from ..engine.routing.route import ModelRoute, RouteError
from .routes import Routes
from .watched_file import POLL_S, WatchedFile, fingerprint, read_text

logger = logging.getLogger("trireme.routes")


class RouteFile:
    """One file."""

    def __init__(self, path: Path, poll_s: float = POLL_S) -> None:
        self._file = WatchedFile(path, fingerprint(path))
        self._poll_s = poll_s

    async def read(self) -> Sequence[ModelRoute]:
        """What it says by itself, whatever models there are.

        Raises:
            InvalidArgumentError: it cannot be read, or is faulty.
        """
        return (await self._load())[1]

    async def _load(self) -> tuple[str, Sequence[ModelRoute]]:
        return await trio.to_thread.run_sync(load_routes, self._file.path)

    async def _apply(self, routes: Routes) -> int:
        """How many there are."""
        text, found = await self._load()
        try:
            await routes.read_file(found)
        except RouteError as error:
            if any(route.name == error.route for route in found):
                raise placed_error(text, str(self._file.path), error) from error
            raise  # of a route that was set while the server ran
        return len(found)

    async def follow(self, routes: Routes) -> None:
        """Have the routes be as it says, now and whenever it changes. From then on a faulty file changes nothing.

        Raises:
            InvalidArgumentError: it is faulty, by itself or as to its targets.
        """
        await self._apply(routes)
        routes.start_soon(self._keep_looking, routes)

    async def _keep_looking(self, routes: Routes) -> None:
        while True:
            await trio.sleep(self._poll_s)
            await self.look(routes)

    async def look(self, routes: Routes) -> None:
        """Look at it, and read it if it has changed."""
        if not await self._file.has_changed():
            return
        try:
            count = await self._apply(routes)
        except TriremeError as error:
            routes.updates["refused"] += 1
            logger.error("the file of routes is refused, the routes stay as they were: %s", error.message)
            return
        logger.info("the file of routes was read again, it has %d", count)


def load_routes(path: Path) -> tuple[str, Sequence[ModelRoute]]:
    """What stands in a file, and the routes that it says. Blocks.

    Raises:
        InvalidArgumentError: it cannot be read, or is faulty.
    """
    text = read_text(path)
    return text, read_routes(text, str(path))
