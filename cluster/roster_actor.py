"""The actor that keeps the roster of a fleet on Ray (`engine.fleet.roster`), found by its name."""

# pyright: reportMissingImports=false
# Ray is in no environment of the tools.

from __future__ import annotations

import time
from typing import Any

import ray

from ..engine.fleet.roster import FleetRoster, GatewayTold, ReplicaTold
from .settings import ClusterSettings

NAMESPACE = "trireme"


class RosterActor:
    """The roster, with the time of its process."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._release = 0.0
        self._roster = FleetRoster()

    def configure(self, settings: ClusterSettings, release: float) -> bool:
        """The fleet is to be so from this release on; whether its gateways are to be others than before."""
        before, self._settings, self._release = self._settings, settings, release
        self._roster.configure(settings.room, settings.copies, settings.models, release)
        return settings.of_gateways != before.of_gateways

    def tell(self, name: str, told: ReplicaTold, settings: ClusterSettings) -> frozenset[str] | None:
        """See `FleetRoster.tell`. The settings are those of its release: if this process has been started again it has
        those of the first one."""
        if told.release > self._release:
            self.configure(settings, told.release)
        return self._roster.tell(name, told, time.monotonic())

    def tell_gateway(self, name: str, told: GatewayTold) -> tuple[dict[str, ReplicaTold], bool]:
        """See `FleetRoster.tell_gateway`."""
        return self._roster.tell_gateway(name, told, time.monotonic())

    def gateways(self) -> dict[str, GatewayTold]:
        """See `FleetRoster.gateways`."""
        return self._roster.gateways(time.monotonic())

    def leave(self, name: str) -> None:
        """See `FleetRoster.leave`."""
        self._roster.leave(name, time.monotonic())

    def members(self) -> dict[str, ReplicaTold]:
        """See `FleetRoster.members`."""
        return self._roster.members(time.monotonic())

    def layout(self) -> Any:
        """See `FleetRoster.layout`."""
        return self._roster.layout


def find_roster(settings: ClusterSettings) -> Any:
    """The handle of the fleet's roster, which is made if there is none. It needs no CPU to itself, is started again
    wherever there is a node, and outlives who has made it."""
    actor = ray.remote(RosterActor).options(
        name=f"{settings.name}-roster",
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=-1,
        num_cpus=0,
    )
    return actor.remote(settings)
