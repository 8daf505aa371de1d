"""Who belongs to the fleet: what its file says, now and whenever it changes (`actors.watched_file`).

A replica that is new joins; one that is not named any more leaves (`FleetServer.leave`). A faulty file changes nothing;
nor do other settings than those of replicas, which hold from the start of the gateway. If the file says that replicas
are looked for in Kubernetes, `kubernetes_membership` has them join and leave.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import trio

from ..actors.watched_file import WatchedFile, fingerprint
from ..engine.errors import TriremeError
from .fleet_file import FleetFile, load_fleet
from .server import FleetServer

logger = logging.getLogger("trireme.gateway")

POLL_S = 0.5
"""Between two looks at the file: orchestrators write it when replicas come and go."""


class Membership:
    """Follows one file.

    Args:
        first: what it said when the gateway was started.
        seen: what it was like then.
    """

    def __init__(self, path: Path, first: FleetFile, seen: tuple[int, int, int] | None, poll_s: float = POLL_S) -> None:
        self._file = WatchedFile(path, seen)
        self._now = first
        self._names_replicas = first.kubernetes is None
        self._poll_s = poll_s

    @classmethod
    async def open(cls, path: Path, poll_s: float = POLL_S) -> Membership:
        """Read the file.

        Raises:
            InvalidArgumentError: it cannot be read, or is faulty.
        """
        seen = await trio.to_thread.run_sync(fingerprint, path)
        return cls(path, await trio.to_thread.run_sync(load_fleet, path), seen, poll_s)

    @property
    def file(self) -> FleetFile:
        """What it said last."""
        return self._now

    def consoles(self) -> Mapping[str, str]:
        """Addresses of the replicas' consoles, as far as the file has them."""
        return {name: entry.console for name, entry in self._now.replicas.items() if entry.console}

    async def follow(
        self, server: FleetServer, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Have the fleet be as the file says, until cancelled. Started when all replicas of the first file belong to
        it."""
        if self._names_replicas:
            await self._apply(server)
        task_status.started()
        while True:
            await trio.sleep(self._poll_s)
            await self.look(server)

    async def look(self, server: FleetServer) -> None:
        """Look at the file, and read it if it has changed."""
        if not await self._file.has_changed():
            return
        try:
            now = await trio.to_thread.run_sync(load_fleet, self._file.path)
        except TriremeError as error:
            logger.error("the file of the fleet is refused, the fleet stays as it was: %s", error.message)
            return
        before, self._now = self._now, now
        others = (now.settings, now.report_interval_ms, now.connection, now.kubernetes)
        if others != (before.settings, before.report_interval_ms, before.connection, before.kubernetes):
            logger.warning("settings of [gateway], [connection] and [kubernetes] hold from the start of the gateway")
        if now.kubernetes is not None or not self._names_replicas:
            return
        await self._apply(server)
        logger.info("the file of the fleet was read again: %d replicas", len(now.replicas))

    async def _apply(self, server: FleetServer) -> None:
        wanted = self._now.replicas
        for name in server.members:
            if name not in wanted:
                server.leave(name)
        for name, member in wanted.items():
            await server.join(name, member.address, member.weight)
