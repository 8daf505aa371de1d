"""The replicas of a fleet, as one gateway knows them, and which of them have a model ready.

Rules:
 1. A replica can have requests for a version of a model while it is connected, has reported, and has said that the
    version is ready. If it refuses one all the same, since it is not, it has no more of them until it reports again.
    One that is ejected, silent, or drains, has new ones only if no other can.
 2. How busy a replica is: what this gateway has in flight there, and what others had when it last reported. The latter
    counts less the older the report is, and nothing after `stale_s`. Both count for as much longer as requests have
    waited in queues there of late.
 3. Outliers: `_FAILURES` failures in a row, or lost connections in `_FLAPPING_S`, eject a replica for `eject_s`,
    and for twice as long each further time, up to `eject_most_s`; a part of `eject_share` at most is ejected at once.
    A replica that has not been ejected for `eject_most_s` counts as one that never was.
 4. Slow start: a replica that is new, has come back, or was ejected, gets its share by and by, in `slow_start_s`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

from ..request import LATEST
from .hashing import Rendezvous
from .types import FleetSettings, ReplicaReport

GroupKey = tuple[str, int]

_FAILURES = 5
_FLAPPING = 3
_FLAPPING_S = 10.0
_LEAST_START = 0.1
_ABOUT_AS_BUSY = 1.02
_HALF = 0.5
_BASE_S = 0.01
"""Of a request's time, beside its time in queues: so much a pending request counts where none has waited."""
_SAMPLE = 8
_MEAN_S = 0.01


class FleetMember:
    """One replica.

    Attributes:
        connected, room: of the link to it; `has_room` sets the latter.
        report: the latest; None before the first one of a connection.
        in_flight: requests that this gateway has there.
        sequences: that this gateway knows to be there.
        losses: how often it was lost with the sequences that were there.
        usable_s: when it reported last; minus infinity while it has no room, or drains.
        since_s: when it became one that may have requests.
        ejected_s: until when it is ejected.
        keys: of the groups that it is in.
        outdated: it has refused what its report says that it has ready.
    """

    __slots__ = (
        "_busy",
        "_ejections",
        "_failures",
        "_losses",
        "_others",
        "_waits",
        "connected",
        "ejected_s",
        "failed",
        "in_flight",
        "keys",
        "losses",
        "name",
        "outdated",
        "report",
        "reported_s",
        "retried",
        "room",
        "sent",
        "sequences",
        "since_s",
        "usable_s",
        "weight",
    )

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.connected = False
        self.room = True
        self.report: ReplicaReport | None = None
        self.reported_s = self.usable_s = -math.inf
        self.in_flight = 0
        self.sequences = self.losses = 0
        self.since_s = -math.inf
        self.ejected_s = -math.inf
        self.keys: frozenset[GroupKey] = frozenset()
        self.outdated = False
        self.sent = self.failed = self.retried = 0
        self._busy = False  # others have requests there, or some have waited
        self._others = 0.0
        self._waits: dict[str, float] = {}  # in queues of late, seconds, by model; as it has reported
        self._ejections = 0
        self._failures = 0
        self._losses: list[float] = []

    @property
    def drains(self) -> bool:
        """It serves what comes, and is to get nothing new."""
        return self.report is not None and self.report.draining

    def take(self, report: ReplicaReport, now_s: float) -> bool:
        """It has reported; whether it is another process than before."""
        before, self.report, self.reported_s = self.report, report, now_s
        pending = sum(load.pending for load in report.loads.values())
        self._others = max(pending - self.in_flight, 0)
        self._waits = {name: load.queue_s for name, load in report.loads.items() if load.queue_s}
        self._busy = self._others > 0 or bool(self._waits)
        self._look()
        return before is not None and before.epoch != report.epoch

    def has_room(self, room: bool) -> None:
        """The link to it takes more, or does not."""
        self.room = room
        self._look()

    def _look(self) -> None:
        self.usable_s = self.reported_s if self.room and not self.drains else -math.inf

    def pending(self, now_s: float, stale_s: float) -> float:
        """Rule 2, without queues."""
        age_s = now_s - self.reported_s
        return self.in_flight + (self._others * (1 - age_s / stale_s) if age_s < stale_s else 0.0)

    def cost(self, name: str, now_s: float, settings: FleetSettings) -> float:
        """How long one more request for a model may take there, about, for as much weight as it has; rule 2."""
        busy, time_s = self.in_flight + 1.0, _BASE_S
        if self._busy and (age_s := now_s - self.reported_s) < settings.stale_s:
            fresh = 1 - age_s / settings.stale_s
            busy += self._others * fresh
            time_s += self._waits.get(name, 0.0) * fresh
        settled = now_s - self.since_s >= settings.slow_start_s
        return busy * time_s / (self.weight if settled else self.share(now_s, settings))

    def share(self, now_s: float, settings: FleetSettings) -> float:
        """Its weight; rule 4."""
        since_s = now_s - self.since_s
        if since_s >= settings.slow_start_s:
            return self.weight
        if since_s <= 0:
            return self.weight * _LEAST_START
        return self.weight * max(since_s / settings.slow_start_s, _LEAST_START)

    def answered(self) -> None:
        """It has done what was asked for."""
        self._failures = 0

    def has_failed(self) -> bool:
        """A request has failed there; whether that makes it an outlier."""
        self.failed += 1
        self._failures += 1
        return self._failures >= _FAILURES

    def was_lost(self, now_s: float) -> bool:
        """The connection was lost; whether that makes it an outlier."""
        self._losses = [*(each for each in self._losses if now_s - each < _FLAPPING_S), now_s]
        return len(self._losses) >= _FLAPPING

    def eject(self, now_s: float, settings: FleetSettings) -> None:
        """Rule 3."""
        if now_s - self.ejected_s > settings.eject_most_s:
            self._ejections = 0
        self.ejected_s = now_s + min(settings.eject_s * 2**self._ejections, settings.eject_most_s)
        self.since_s = self.ejected_s
        self._ejections += 1
        self._failures = 0
        self._losses.clear()

    def __repr__(self) -> str:
        state = "connected" if self.connected else "away"
        return f"<FleetMember {self.name} {state}: {self.in_flight} in flight, {self.sequences} sequences>"


class FleetGroup:
    """Those that have a version of a model ready.

    Attributes:
        members: to have new requests, in no order.
        draining: to have what they have already.
    """

    def __init__(self) -> None:
        self.members: list[FleetMember] = []
        self.draining: list[FleetMember] = []
        self._mean = 0.0
        self._mean_s = -math.inf
        self._mean_left = 0
        self._mean_from = 0
        self._places: dict[str, tuple[list[FleetMember], int]] = {}
        self._order: Rendezvous | None = None

    def __len__(self) -> int:
        return len(self._places)

    @property
    def able(self) -> list[FleetMember]:
        """To have new requests, if they must be had."""
        return self.members or self.draining

    def mean_pending(self, now_s: float, stale_s: float) -> float:
        """What a replica has pending, mean over some of them: `_SAMPLE` at most, others each time. It is taken anew
        after `_MEAN_S`, and after as many requests as replicas were looked at: so it costs a request one look."""
        self._mean_left -= 1
        if self._mean_left <= 0 or now_s - self._mean_s > _MEAN_S:
            able = self.able
            begin = self._mean_from if self._mean_from < len(able) else 0
            sample = able[begin : begin + _SAMPLE]
            self._mean_from = begin + _SAMPLE
            self._mean = sum([each.pending(now_s, stale_s) for each in sample]) / len(sample)
            self._mean_s, self._mean_left = now_s, len(sample)
        return self._mean

    @property
    def order(self) -> Rendezvous:
        """In which keys prefer them, those that drain as well; made when it is first asked for."""
        if self._order is None:
            self._order = Rendezvous()
            for member in (*self.members, *self.draining):
                self._order.add(member.name, member.weight)
        return self._order

    def add(self, member: FleetMember) -> None:
        self._enlist(member)
        if self._order is not None:
            self._order.add(member.name, member.weight)

    def remove(self, member: FleetMember) -> None:
        self._delist(member)
        if self._order is not None:
            self._order.remove(member.name)

    def update(self, member: FleetMember) -> None:
        """It may drain now, or not any more."""
        self._delist(member)
        self._enlist(member)

    def _enlist(self, member: FleetMember) -> None:
        members = self.draining if member.drains else self.members
        self._places[member.name] = members, len(members)
        members.append(member)

    def _delist(self, member: FleetMember) -> None:
        members, place = self._places.pop(member.name)
        last = members.pop()
        if last is not member:
            members[place] = last
            self._places[last.name] = members, place


class FleetMembers:
    """All replicas.

    Attributes:
        groups: by model and version, `LATEST` for any; those that have been ready are kept, even if they are empty.
    """

    def __init__(self, settings: FleetSettings, chance: Random) -> None:
        self.settings = settings
        self.by_name: dict[str, FleetMember] = {}
        self.groups: dict[GroupKey, FleetGroup] = {}
        self._chance = chance

    def place(self, member: FleetMember) -> None:
        """Have it in the groups that it belongs to now (rule 1)."""
        keys = frozenset(_keys(member)) if self.by_name.get(member.name) is member else frozenset[GroupKey]()
        for key in member.keys - keys:
            self.groups[key].remove(member)
        for key in member.keys & keys:
            self.groups[key].update(member)
        for key in keys - member.keys:
            group = self.groups.get(key)
            if group is None:
                group = self.groups[key] = FleetGroup()
            group.add(member)
        member.keys = keys
        member.outdated = False

    def absent(self, member: FleetMember, key: GroupKey) -> None:
        """It does not have ready what it has reported; so it is, until its next report."""
        if key in member.keys:
            self.groups[key].remove(member)
            member.keys -= {key}
            member.outdated = True

    def pick(self, group: FleetGroup, name: str, now_s: float, tried: tuple[str, ...]) -> FleetMember | None:
        """The less busy one of two, at random; None if there is none that may have a request.

        Args:
            tried: names of those that may not.
        """
        members = group.members or group.draining
        count = len(members)
        if count > 2:
            chance, usable = self._chance.random, self.usable
            found: FleetMember | None = None
            for _ in range(4):
                member = members[int(chance() * count)]
                if member is not found and usable(member, now_s) and member.name not in tried:
                    if found is not None:
                        settings = self.settings
                        is_less = member.cost(name, now_s, settings) < found.cost(name, now_s, settings)
                        return member if is_less else found
                    found = member
        elif count == 2 and not tried:
            one, other = members
            if self.usable(one, now_s) and self.usable(other, now_s):
                settings = self.settings
                cost, other_cost = one.cost(name, now_s, settings), other.cost(name, now_s, settings)
                if self._chance.random() < _HALF:  # of two that are about as busy, any: see `_least_busy`
                    return one if cost <= _ABOUT_AS_BUSY * other_cost else other
                return other if other_cost <= _ABOUT_AS_BUSY * cost else one
        if tried:
            members = [each for each in members if each.name not in tried]
        return self._least_busy(members, name, now_s)

    def _least_busy(self, members: list[FleetMember], name: str, now_s: float) -> FleetMember | None:
        """Of a few, or if it is not easy to find one that can be used. Of those that are about as busy, any: or all
        gateways of a fleet that is idle would choose the same one."""
        able = [each for each in members if self.usable(each, now_s)] or [each for each in members if each.room]
        if not able:
            return None
        settings = self.settings
        costs = [each.cost(name, now_s, settings) for each in able]
        most = _ABOUT_AS_BUSY * min(costs)
        found = [each for each, cost in zip(able, costs, strict=True) if cost <= most]
        return found[int(self._chance.random() * len(found))]

    def usable(self, member: FleetMember, now_s: float) -> bool:
        """Whether a request may go there while there are others that may have it."""
        return now_s >= member.ejected_s and now_s - member.usable_s <= self.settings.silent_s

    def eject(self, member: FleetMember, now_s: float) -> None:
        """Rule 3, but for as many as may be ejected."""
        ejected = sum(now_s < each.ejected_s for each in self.by_name.values())
        if ejected + 1 <= self.settings.eject_share * len(self.by_name):
            member.eject(now_s, self.settings)

    def __iter__(self) -> Iterator[FleetMember]:
        return iter(self.by_name.values())


def _keys(member: FleetMember) -> Iterator[GroupKey]:
    report = member.report
    if not member.connected or report is None:
        return
    for name, versions in report.models.items():
        ready = [version for version, is_ready in versions.items() if is_ready]
        if ready:
            yield name, LATEST
        for version in ready:
            yield name, version
