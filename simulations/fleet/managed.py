"""Swarm runs of a fleet that manages itself: as in `swarm`, but replicas hold some of several models, by memory
(`engine.fleet.roster`), come and go by how long requests wait (`engine.fleet.scaling`), and are replaced, one after the
other, by those of a later release with another version of each model. Besides what goes wrong there, the roster is
lost, replicas are not heard of, and surges of requests come.

Promises, besides those of `swarm` and the rules of roster, placement and scaler (`oracle.managed_fleet`):

 1. A model that was ready once is always ready somewhere, but for a fault of the replicas that had it.
 2. After such a fault it is ready again within `RECOVERED_S` of the last one's end.
 3. Requests fail of faults only; so none fails because replicas come or go, models move, or a release is replaced.
 4. What a replica has in memory, and what it loads, needs no more than its room; but for models that wait for each
    other's, when nothing has moved for long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from ...engine.fleet.placement import ModelNeed, replicas_needed
from ...engine.fleet.scaling import ScalingSettings
from ...engine.fleet.types import AttemptEnd, FleetRequest, FleetSettings
from ...engine.request import LATEST
from ..drawn_run import DrawnRun
from .managed_replicas import ManagedReplica
from .manager import HEARD_S, NOTICE_S, SILENT_S, FleetManager, ManagedPlan
from .replicas import ClientAsk, SimulatedReplica
from .swarm import NOT_TAKEN, FleetPlan, FleetSwarm

STARTED_S = 3.0
"""By then the first replicas have all models."""
RECOVERED_S = 4.0


def draw_managed_fleet(draw: Random) -> tuple[FleetPlan, ManagedPlan]:
    sizes = {f"m{number}": draw.choice((1, 2, 3)) for number in range(draw.choice((1, 3, 5)))}
    first = draw.choice((1, 2, 3))
    least = draw.randint(1, first)
    room = -(-sum(sizes.values()) // least) + max(sizes.values())  # enough for the fewest replicas that there may be
    if draw.random() < 0.4:  # or as little as a model needs: then their memory says how many there must be
        room = max(sizes.values()) + draw.choice((0, 1, 2))
    service_s = draw.choice((0.01, 0.03))
    up_s = draw.choice((0.2, 0.4))
    most = max(draw.choice((first, 6)), replicas_needed({name: ModelNeed(size) for name, size in sizes.items()}, room))
    scaling = ScalingSettings(least, most, draw.choice((0.005, 0.03)), up_s, 0.8, 0.6)
    if draw.random() < 0.5:
        part = draw.choice((0.2, 0.6, 1.5))  # of what it takes to be busy: planned with care, or too boldly
        scaling = replace(scaling, capacities={name: part / service_s for name in sizes if draw.random() < 0.7})
    managed = ManagedPlan(
        sizes=sizes,
        room=None if draw.random() < 0.2 else room,
        copies=draw.choice((1, 1, 2)),
        keeps_first=draw.random() < 0.5,
        load_s=draw.choice((0.02, 0.1)),
        first=first,
        scaling=scaling,
        lost_readings=draw.choice((0.0, 0.1, 0.5)),
        heard_s=draw.choice((0.0, HEARD_S)),
    )
    plan = FleetPlan(
        gateways=draw.choice((1, 2, 3)),
        replicas=0,
        faults=draw.choice((0.0, 0.0, 0.5, 1.0)),
        changes=draw.choice((0.5, 1.5)),
        hops=False,
        rate=draw.choice((0.2, 0.7)) / service_s,
        service_s=service_s,
        instances=draw.choice((1, 2)),
        queue=draw.choice((20, 1000, 1000)),
        lost_reports=draw.choice((0.0, 0.05)),
        late_reports=draw.choice((0.0, 0.1, 0.5)),
        sequences=draw.choice((0, 2, 4)),
        keys=draw.choice((0, 1, 20)),
        settings=FleetSettings(
            eject_s=0.5, eject_most_s=2.0, slow_start_s=1.0, silent_s=2.0, wait_s=draw.choice((1.5, 3.0))
        ),
    )
    return plan, managed


def play_managed_fleet(seed: int) -> DrawnRun:
    """Play one run to its end, or to the first violation."""
    draw = Random(f"managed fleet {seed}")
    swarm = ManagedSwarm(*draw_managed_fleet(draw), draw)
    swarm.play()
    return swarm.run


class ModelPlaces:
    """Where a model has been ready.

    Attributes:
        held: by replica, the latest time: since when, until when.
        gaps: when it was nowhere: since when, until when.
    """

    def __init__(self) -> None:
        self.held: dict[str, list[float]] = {}
        self.gaps: list[list[float]] = []

    @property
    def holders(self) -> list[str]:
        """Where it is ready now."""
        return [name for name, (_, until_s) in self.held.items() if until_s == math.inf]

    def held_within(self, since_s: float, until_s: float) -> list[str]:
        return [name for name, (begin_s, end_s) in self.held.items() if begin_s <= until_s and since_s <= end_s]

    def known_within(self, since_s: float, until_s: float) -> list[str]:
        """Those that all gateways have heard of by the end."""
        held = self.held.items()
        return [name for name, (begin_s, end_s) in held if begin_s + HEARD_S <= until_s and since_s <= end_s]

    def gap_within(self, since_s: float, until_s: float) -> bool:
        return any(begin_s <= until_s and since_s <= end_s for begin_s, end_s in self.gaps)


class ManagedSwarm(FleetSwarm):
    """A run in the making."""

    replicas: dict[str, ManagedReplica]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, plan: FleetPlan, managed: ManagedPlan, draw: Random) -> None:
        super().__init__(plan, draw)
        self.managed = managed
        self.begin_s = STARTED_S
        self._places = {name: ModelPlaces() for name in managed.sizes}
        self._models = list(managed.sizes)
        self._begun_s: dict[str, float] = {}
        self._moved_s = 0.0
        self._replaced: set[tuple[str, str]] = set()
        """Replicas that drain, with the models that others had when they began to."""
        self.manager = FleetManager(managed, self, self.calendar, draw, self.complain, self._count)
        self.manager.start()

    def play(self) -> None:
        """To the end, or the first violation."""
        super().play()
        for name, places in self._places.items():
            is_late = not places.gaps or self.calendar.now_s > places.gaps[-1][0] + RECOVERED_S
            if not self.run.violation and not places.holders and is_late:
                self.complain(f"at the end '{name}' is ready nowhere")
        self.run.counts["loaded"] += sum(each.loads for each in self.replicas.values())

    def _count(self, what: str) -> None:
        self.run.counts[what] += 1

    # ---- what clients ask for ----

    def request(self, sticky: bytes | None) -> FleetRequest:
        """For the first model most often, and sometimes for the version that all releases have."""
        draw = self._draw
        name = self._models[int(len(self._models) * draw.random() ** 3)]
        version = 1 if self.managed.keeps_first and draw.random() < 0.3 else LATEST
        return FleetRequest(name, version, sticky=sticky)

    def model_of(self, number: int) -> str:
        return self._models[number % len(self._models)]

    def _explain(self, ask: ClientAsk, since_s: float, at: str = "") -> None:
        now_s = self.calendar.now_s
        places = self._places[ask.request.name]
        heard_s = since_s - HEARD_S
        holders = places.known_within(since_s, now_s)
        for replica, end, sent_s, ended_s in ask.ends[-1:]:
            full = end is AttemptEnd.REFUSED and self.plan.queue < 1000
            if full or self._was_faulty(replica, sent_s, ended_s):
                return
            holders = [name for name in holders if name != replica or end not in NOT_TAKEN]
        if at and self._was_faulty(at, since_s, now_s):
            return
        if places.gap_within(heard_s, now_s):
            return
        holders = holders or places.held_within(since_s, now_s)  # where no gateway may have heard of it yet
        staying = {name for name, each in self.replicas.items() if not each.draining}
        holders = [name for name in holders if name in staying] or holders
        if holders and all(self._was_faulty(name, heard_s, now_s) for name in holders):
            return
        self.complain(
            f"a request of {ask.submitted_s:.3f} s for '{ask.request.name}' in version {ask.request.version} fails "
            f"without a fault: {ask.answer}, {ask.ends}, of {places.held}"
        )

    # ---- where models are ready ----

    def _look_at_room(self, replica: ManagedReplica) -> None:
        """Promise 4, when a replica begins to load."""
        managed = self.managed
        needs = sum(managed.sizes[name] for name in replica.models)
        if managed.room is None or needs <= managed.room:
            return
        self._count("beyond its room")
        since_s = self.calendar.now_s - self._moved_s
        if since_s < SILENT_S + managed.heard_s:
            self.complain(
                f"{replica.name} has {sorted(replica.models)} in memory, {needs - managed.room} more than its room, "
                f"{since_s:.2f} s after something has moved"
            )

    def _look_at(self, name: str) -> None:
        """It has become ready somewhere, or is not any more."""
        now_s, places = self.calendar.now_s, self._places[name]
        self._moved_s = now_s
        had = places.holders
        for replica in self.replicas.values():
            is_there = replica.alive and not replica.stopping and replica.has_ready(name)
            if is_there and replica.name not in had:
                places.held[replica.name] = [now_s, math.inf]
            elif not is_there and replica.name in had:
                places.held[replica.name][1] = now_s
        for replica_name in had:
            if replica_name not in self.replicas:
                places.held[replica_name][1] = now_s
        if had and not places.holders:
            self._begin_gap(name, places, now_s)
        elif not had and places.gaps and places.holders:
            self._end_gap(name, places, now_s)

    def _begin_gap(self, name: str, places: ModelPlaces, now_s: float) -> None:
        """Promise 1. A roster hears a while later that a replica is gone, and who drains does not turn back. So faults
        count of those that had the model, and of those that were to get it, if they left none of them in peace."""
        since_s = now_s - NOTICE_S - 1.5 * SILENT_S
        had = places.held_within(since_s, now_s)
        was_there = any((each, name) in self._replaced for each in had)
        in_peace = not (self._struck(had, since_s) or (was_there and self._none_in_peace(since_s)))
        if in_peace and not self._has_no_room(name):
            self.complain(f"'{name}' is ready nowhere any more, without a fault: {places.held}")
        self._count("nowhere")
        places.gaps.append([now_s, math.inf])

    def _has_no_room(self, name: str) -> bool:
        """Whether it has no place, since a replica was struck shortly before the latest release came, or later. Those
        of the release before load nothing any more, so what was lost takes the room of the few of the new one."""
        since_s = self.manager.rolled_s - RECOVERED_S
        return name in self.manager.roster.layout.unplaced and self._struck(self._faulty, since_s)

    def _struck(self, replicas: Iterable[str], since_s: float) -> bool:
        return any(self._was_faulty(each, since_s, self.calendar.now_s) for each in replicas)

    def _none_in_peace(self, since_s: float) -> bool:
        """Whether, of those that stay, each was struck since then, or began in place of one that was and is gone."""
        staying = [each for each in self.replicas.values() if not each.leaving]
        replaces = self._struck((each for each in self._faulty if each not in self.replicas), since_s)
        return bool(staying) and all(
            self._struck((each.name,), since_s) or (replaces and self._begun_s[each.name] >= since_s)
            for each in staying
        )

    def _end_gap(self, name: str, places: ModelPlaces, now_s: float) -> None:
        """Promise 2."""
        began_s, _ = places.gaps[-1]
        places.gaps[-1][1] = now_s
        faults = [end_s for spans in self._faulty.values() for begin_s, end_s in spans if begin_s <= now_s]
        took_s = now_s - max(began_s, *(min(end_s, now_s) for end_s in faults))
        if took_s > RECOVERED_S:
            self.complain(f"'{name}' is ready again {took_s:.2f} s after the last fault")

    # ---- what happens ----

    def add(self, release: int) -> ManagedReplica:
        """Another replica, which is started."""
        plan, managed = self.plan, self.managed
        replica = ManagedReplica(
            self._new_name(),
            self.calendar,
            self._draw,
            plan.service_s,
            plan.instances,
            plan.queue,
            release=release,
            versions=managed.versions,
            load_s=managed.load_s,
            changed=self._look_at,
            begins=self._look_at_room,
        )
        replica.complain = self.complain
        self.replicas[replica.name] = replica
        self._begun_s[replica.name] = self.calendar.now_s
        return replica

    def drains(self, replica: ManagedReplica) -> None:
        """It says from now on that it drains: others have its models, or would have if nothing had struck them."""
        staying = [each for each in self.replicas.values() if not each.leaving]
        now_s = self.calendar.now_s
        for name in self._models:
            have = [each for each in staying if each.alive and each.has_ready(name)]
            if have or all(self._was_faulty(each.name, now_s, now_s) for each in staying):
                self._replaced.add((replica.name, name))

    def drain(self, replica: ManagedReplica) -> None:
        """It is to end, and gets nothing new."""
        self._drain(replica, comes_back=False)

    def _stop(self, replica: SimulatedReplica) -> None:
        super()._stop(replica)
        self._look_at_all()

    def _end(self, replica: SimulatedReplica) -> None:
        del self.replicas[replica.name]
        replica.kill()
        for gateway in self.gateways:
            link = gateway.links.get(replica.name)
            if link is not None:
                link.lose(told=True)
        assert isinstance(replica, ManagedReplica)
        self.manager.gone(replica)

    def _kill(self, replica: SimulatedReplica) -> None:
        super()._kill(replica)
        self._look_at_all()

    def _restart(self, replica: SimulatedReplica) -> None:
        """Under its name; or, if it was to end anyway, never, and then another one takes its place."""
        assert isinstance(replica, ManagedReplica)
        if self.replicas.get(replica.name) is not replica:
            return
        if replica.leaving or self._draw.random() < 0.5:
            del self.replicas[replica.name]
        else:
            replica.release = self.manager.release
            replica.start()
            self.manager.began(replica)

    def _look_at_all(self) -> None:
        for name in self._models:
            self._look_at(name)

    def _fault(self) -> None:
        if self._draw.random() < 0.8:
            super()._fault()
            return
        standing = [each for each in self.replicas.values() if each.alive and not each.leaving]
        if standing:
            self._silence(self._draw.choice(standing))

    def _silence(self, replica: ManagedReplica) -> None:
        """The roster does not hear of it, so it does not belong to the fleet for a while."""
        self._count("silent")
        lasts_s = SILENT_S + 0.5
        self._strike(replica, lasts_s + HEARD_S)
        replica.silent = True
        self.calendar.after(lasts_s, setattr, replica, "silent", False)

    def _change(self) -> None:
        kind = self._draw.choice(("roll", "roster lost", "surge", "surge"))
        if kind == "roll":
            self.manager.roll()
        elif kind == "roster lost":
            self._count("roster lost")
            self.manager.lose_roster()
        else:
            self._count("surge")
            self.surge = 4.0
            self.calendar.after(1.5, setattr, self, "surge", 1.0)
