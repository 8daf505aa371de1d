"""What keeps a simulated fleet as it is to be: the roster, the scaler, and what starts and ends replicas.

Roster (`engine.fleet.roster`), placement and scaling are the real ones. The rest does what Ray and the processes of a
fleet do (`cluster`): replicas tell of themselves, load and unload what they are told, and drain before they end;
gateways hear who the members are; one release takes the place of another one replica after the other. Intervals are a
fifth of the real ones, or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from ...engine.fleet.placement import replicas_needed
from ...engine.fleet.roster import GatewayTold, ReplicaTold, model_needs
from ...engine.fleet.scaling import LoadReading, ScalingSettings
from ..oracle.managed_fleet import WatchedRoster, WatchedScaler
from .events import Calendar
from .gateways import SimulatedGateway
from .managed_replicas import ManagedReplica

TELL_S = 0.2
LOOK_S = 0.1
SCALE_S = 0.2
SILENT_S = 0.8
SETTLE_S = 0.5
HEARD_S = 0.8
DRAINS_S = 6.0
"""So long a replica that is to end waits for others to have its models, at the longest."""
NOTICE_S = 1.0
"""So long it serves what comes after that, and says that it drains."""


@dataclass(frozen=True)
class ManagedPlan:
    """Attributes:
    sizes: of the models.
    room: of a replica; None if each has all models.
    keeps_first: a later release has version 1 of each model, too.
    first: so many replicas in the beginning.
    heard_s: see `engine.fleet.roster`, rule 3; with 0 routers have to wait for what moves.
    """

    sizes: dict[str, int]
    room: int | None
    copies: int
    keeps_first: bool
    load_s: float
    first: int
    scaling: ScalingSettings
    lost_readings: float
    heard_s: float

    @property
    def needed(self) -> int:
        """So many replicas the models need for their memory."""
        return 0 if self.room is None else replicas_needed(model_needs(self.sizes, {}, self.copies), self.room)

    def versions(self, release: int) -> tuple[int, ...]:
        """Of each model, which a release serves."""
        return (1, release) if self.keeps_first and release > 1 else (release,)


class FleetToManage(Protocol):
    """What of the swarm it takes."""

    replicas: dict[str, ManagedReplica]
    gateways: list[SimulatedGateway]

    def add(self, release: int) -> ManagedReplica: ...
    def drains(self, replica: ManagedReplica) -> None: ...
    def drain(self, replica: ManagedReplica) -> None: ...


class FleetManager:
    """Attributes:
    release: what new replicas are of.
    target: how many there are to be.
    rolled_s: when the latest release began to take the place of another one.
    """

    def __init__(
        self,
        plan: ManagedPlan,
        fleet: FleetToManage,
        calendar: Calendar,
        draw: Random,
        complain: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self.release = 1
        self.target = plan.first
        self.rolled_s = -math.inf
        self._plan = plan
        self._fleet = fleet
        self._calendar = calendar
        self._draw = draw
        self._complain = complain
        self._count = count
        self._scaler = WatchedScaler(plan.scaling, complain=complain)
        self._rolls: list[str] = []  # replicas of an earlier release that are to be replaced
        self._is_rolling = False
        self.lose_roster()

    def start(self) -> None:
        """With the first replicas."""
        for _ in range(self.target):
            self._add()
        for number, gateway in enumerate(self._fleet.gateways):
            self._calendar.after(LOOK_S * self._draw.random(), self._look, gateway, f"g{number}")
        self._calendar.after(SCALE_S, self._scale)

    def lose_roster(self) -> None:
        """Its process is started again, and knows nothing."""
        plan = self._plan
        self.roster = WatchedRoster(plan.room, plan.copies, silent_s=SILENT_S, settle_s=SETTLE_S, heard_s=plan.heard_s)
        self.roster.complain = self._complain
        self.roster.configure(plan.room, plan.copies, {}, float(self.release))

    # ---- replicas ----

    def _add(self) -> ManagedReplica:
        replica = self._fleet.add(self.release)
        self.began(replica)
        return replica

    def began(self, replica: ManagedReplica) -> None:
        """Its process has started."""
        self._calendar.after(TELL_S * self._draw.random(), self._tell_again, replica, replica.life)

    def _tell_again(self, replica: ManagedReplica, life: int) -> None:
        if replica.life == life and replica.alive:
            self._tell(replica)
            self._calendar.after(TELL_S * self._draw.uniform(0.9, 1.1), self._tell_again, replica, life)

    def _tell(self, replica: ManagedReplica) -> bool:
        """Whether it is to have models."""
        if replica.silent:
            return True
        plan = self._plan
        sizes = {} if plan.room is None else plan.sizes
        rates = {name: float(work.count) for name, work in replica.work.items()}
        told = ReplicaTold(
            replica.name,
            sizes,
            replica.ready,
            rates,
            replica.leaving,
            float(replica.release),
            changing=replica.changing,
        )
        wanted = self.roster.tell(replica.name, told, self._calendar.now_s)
        if not replica.leaving:
            holds = frozenset(plan.sizes) if wanted is None else wanted
            replica.hold(holds, told.ready - holds)
        return bool(wanted)

    def leave(self, replica: ManagedReplica) -> None:
        """It is to end: when others have its models, it says that it drains, and ends when it has nothing to do."""
        replica.leaving = True
        self._leave(replica, replica.life, self._calendar.now_s + DRAINS_S)

    def _leave(self, replica: ManagedReplica, life: int, until_s: float) -> None:
        if replica.life != life:
            return
        if self._tell(replica) and self._calendar.now_s < until_s:
            self._calendar.after(0.05, self._leave, replica, life, until_s)
        else:
            replica.draining = True
            self._fleet.drains(replica)
            self._calendar.after(NOTICE_S, self._fleet.drain, replica)

    def gone(self, replica: ManagedReplica) -> None:
        """It has ended as it should."""
        self.roster.leave(replica.name, self._calendar.now_s)

    def _look(self, gateway: SimulatedGateway, name: str) -> None:
        """As a gateway's process does: who belongs to the fleet?"""
        members, are_all = self.roster.tell_gateway(name, GatewayTold({}), self._calendar.now_s)
        for member in members:
            if member not in gateway.links and member in self._fleet.replicas:
                gateway.join(self._fleet.replicas[member])
        for member in list(gateway.links) if are_all else ():
            if member not in members:
                gateway.leave(member)
        self._calendar.after(LOOK_S, self._look, gateway, name)

    # ---- how many ----

    def _scale(self) -> None:
        self._calendar.after(SCALE_S, self._scale)
        standing = [each for each in self._fleet.replicas.values() if not each.leaving]
        readings: dict[str, list[LoadReading]] = {}
        for replica in standing:
            read = replica.read() if replica.alive else {}
            for name, reading in read.items() if self._draw.random() >= self._plan.lost_readings else ():
                readings.setdefault(name, []).append(reading)
        for _ in range(self.target - len(standing)):
            self._add()
        if not self._is_rolling:
            self._resize(standing, readings)

    def _resize(self, standing: list[ManagedReplica], readings: dict[str, list[LoadReading]]) -> None:
        told = any(each.alive for each in standing)
        wanted = self._scaler.decide(self.target, readings, self._calendar.now_s, self._plan.needed if told else 0)
        before = self.target
        if wanted != before:
            self._count("grown by queue time" if wanted > self.target else "shrunk by queue time")
            self.target = wanted
        for _ in range(self.target - max(len(standing), before)):
            self._add()
        alive = [each for each in standing if each.alive]
        if len(standing) > self.target and alive:
            self.leave(self._draw.choice(alive))

    def roll(self) -> None:
        """Another release takes the place of this one."""
        if self._is_rolling:
            return
        self._count("rolled")
        self.release += 1
        self.rolled_s = self._calendar.now_s
        self._is_rolling = True
        self._rolls = [each.name for each in self._fleet.replicas.values() if not each.leaving]
        plan = self._plan
        self.roster.configure(plan.room, plan.copies, {}, float(self.release))
        self._roll_on("")

    def _roll_on(self, leaving: str) -> None:
        """When the one before has ended, the next: a new one is started, then an old one drains."""
        replicas = self._fleet.replicas
        if leaving in replicas:
            self._calendar.after(0.1, self._roll_on, leaving)
            return
        self._rolls = [name for name in self._rolls if name in replicas and replicas[name].release < self.release]
        self._is_rolling = bool(self._rolls)
        if self._is_rolling:
            self._calendar.after(2 * TELL_S, self._replace, self._add())

    def _replace(self, new: ManagedReplica) -> None:
        replicas = self._fleet.replicas
        if self._plan.room is None and len(new.ready) < len(self._plan.sizes) and new.name in replicas:
            self._calendar.after(0.1, self._replace, new)  # it counts as started when it is ready
            return
        alive = [name for name in self._rolls if name in replicas and replicas[name].alive]
        old = next((name for name in alive if replicas[name].release < self.release), "")
        if old:
            self._rolls.remove(old)
            self.leave(replicas[old])
        self._calendar.after(0.1, self._roll_on, old)
