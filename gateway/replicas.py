"""One replica of the fleet: its link, and what it has told (`links.LinkEvents`).

States: joining (it has never been reached), up, lost; and whichever of them, leaving: it gets nothing new, and goes
when it has nothing more to answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import trio

from ..engine.clock import Clock
from ..engine.fleet.router import FleetRouter
from ..engine.fleet.types import AttemptEnd, ModelLoad, ReplicaReport
from ..front_ends.link import LinkError
from .links import LinkEvents, ReplicaLink
from .models import FleetModels, loads_by_name

logger = logging.getLogger("trireme.gateway")


class RunningLink(ReplicaLink, Protocol):
    """A link with its task."""

    async def run(self) -> None:
        """Connect, and connect anew, until cancelled."""
        ...


class ReplicaOwner(Protocol):
    """What of `FleetServer` a replica tells."""

    exiting: bool
    router: FleetRouter
    models: FleetModels
    clock: Clock

    def heard_anew(self) -> None: ...
    def tell_change(self) -> None: ...
    def look_ahead(self) -> None: ...


StartLink = Callable[[str, LinkEvents], RunningLink]
"""Makes a link to an address, which is not connected yet."""


class Replica:
    """See above.

    Attributes:
        up: its link is connected.
        reported: it has told what it serves.
        leaving: it does not belong to the fleet any more.
        gone: nor does anything new go there, sequences included.
        sequences_scope: ends the time that sequences have there, while it leaves.
        sent: requests that are in flight there.
        retries: requests that came from another replica.
        ends: how often requests ended how.
        why: it is not connected.
        silence: why it is connected and has not told what it serves; empty if it has, or is about to.
        generation: of what it has told of its models (`actors.fleet_report`).
        reports: how many it has sent.
        told: the last report, without the models.
    """

    link: RunningLink

    def __init__(self, server: ReplicaOwner, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.up = self.reported = self.leaving = self.gone = False
        self.sent = 0
        self.retries = 0
        self.ends = dict.fromkeys(AttemptEnd, 0)
        self.why = "it has not been reached yet"
        self.silence = ""
        self._heard = ""  # its process, since it is connected
        self.generation = self.reports = 0
        self.told: dict[str, Any] = {}
        self._last = ReplicaReport("")
        self._server = server
        self.sequences_scope = trio.CancelScope()
        self._scope = trio.CancelScope()

    async def run(self, start_link: StartLink, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep the link, until closed."""
        self.link = start_link(self.address, self)
        task_status.started()
        with self._scope:
            await self.link.run()

    def close(self) -> None:
        """End the link, and what is in flight on it."""
        self._scope.cancel()

    @property
    def draining(self) -> bool:
        """It gets nothing new, but for what continues there."""
        return self.leaving or self.told.get("state") == "draining"

    @property
    def process(self) -> str:
        """Names the server's process there; empty before it has reported."""
        return self.told.get("server", "")

    @property
    def serves(self) -> bool:
        """Requests can go there."""
        return self.up and self.reported and self.told.get("state") == "ready"

    @property
    def state(self) -> str:
        if not self.up:
            return "lost" if self.reported else "joining"
        return "draining" if self.draining else str(self.told.get("state", "starting"))

    # See `LinkEvents`.

    def connected(self) -> None:
        self.up = True
        logger.info("replica %s at %s is connected", self.name, self.address)
        if not self.gone:
            self._server.router.connected(self.name, self._server.clock.now_s())
        self._changed()

    def lost(self, why: str) -> None:
        if (self.up or why != self.why) and not (self.gone or self._server.exiting):
            logger.warning("replica %s at %s is not connected: %s", self.name, self.address, why)
        self.up, self.why, self._heard = False, why, ""
        if not self.gone:
            self._server.models.lost(self.name)
            self._server.router.lost(self.name, self._server.clock.now_s())
        self._changed()

    def report(self, document: dict[str, Any]) -> None:
        if self.gone:
            return
        models = self._server.models
        models.lost(self.name, False)
        try:
            models.report(self.name, document)
            loads = {name: ModelLoad(count, wait_s) for name, count, wait_s in loads_by_name(document["loads"])}
            self.generation = document["generation"]
            self.told = {key: document[key] for key in ("server", "state", "inflight", "capacity")}
        except (LinkError, LookupError, TypeError, ValueError) as error:  # of another version, or none at all
            logger.error("the report of replica %s cannot be read: %s: %s", self.name, type(error).__name__, error)
            return
        self.reported = True
        self.reports += 1
        self.silence = ""
        anew, self._heard = self.process != self._heard, self.process
        self._last = ReplicaReport(self.process, self.draining, models.ready(self.name), loads)
        self._server.router.report(self.name, self._last, self._server.clock.now_s())
        if anew:
            self._server.heard_anew()
        self._changed()

    def unreported(self, why: str) -> None:
        if why != self.silence and not self.gone:
            logger.warning(
                "replica %s at %s gets no requests: it does not tell what it serves: %s", self.name, self.address, why
            )
        self.silence = why

    def room(self) -> None:
        if not self.gone:
            self._server.router.room(self.name, True, self._server.clock.now_s())
        self._changed()

    def tell_router(self) -> None:
        """It begins to leave the fleet, or stays after all."""
        if self.reported:
            self._last = replace(self._last, draining=self.draining)
            self._server.router.report(self.name, self._last, self._server.clock.now_s())
        self._changed()

    def _changed(self) -> None:
        self._server.tell_change()
        self._server.look_ahead()

    def __repr__(self) -> str:
        return f"<Replica {self.name}: {self.state}, {self.sent} requests>"
