"""Which replica may have a request of a fleet, stated naively: each decision of `engine.fleet.router` worked out from
scratch, from what it was told, or held against what the rules leave where there is a choice."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from zlib import crc32

from ...engine.fleet.router import FleetRouter
from ...engine.fleet.types import (
    AttemptEnd,
    FleetDecision,
    FleetSettings,
    Refuse,
    ReplicaReport,
    RequestToPlace,
    SendTo,
    WaitForReplica,
)

_MASK = (1 << 64) - 1
_NOT_TAKEN = (AttemptEnd.REFUSED, AttemptEnd.UNREACHABLE, AttemptEnd.ABSENT)
_LEAST_SENT = 5
"""So many failures in a row are enough to eject a replica, and fewer are not."""


@dataclass
class _Replica:
    """What a router was told of one."""

    weight: float
    connected: bool = False
    room: bool = True
    report: ReplicaReport | None = None
    reported_s: float = -math.inf
    failures: int = 0
    losses: list[float] = field(default_factory=list)
    absent: set[tuple[str, int]] = field(default_factory=set)  # refused since the latest report


@dataclass
class _Followed:
    """A sequence: where it is, by all that this gateway has seen; "" for lost, None for not known."""

    at: str | None = None
    in_flight: RequestToPlace | None = None
    line: deque[RequestToPlace] = field(default_factory=deque)


class NaiveFleet:
    """What a router was told, and which replicas its rules leave for a request."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings
        self.replicas: dict[str, _Replica] = {}
        self.sequences: dict[int | str, _Followed] = {}
        self.retries = 0
        self.requests = 0
        self._orders: dict[tuple[object, ...], list[str]] = {}

    def has_ready(self, name: str, request: RequestToPlace) -> bool:
        """Whether a replica can do what a request asks for."""
        replica = self.replicas.get(name)
        if replica is None or not replica.connected or replica.report is None:
            return False
        if (request.name, request.version) in replica.absent:
            return False
        versions = replica.report.models.get(request.name, {})
        return any(versions.values()) if request.version < 0 else versions.get(request.version, False)

    def able(self, request: RequestToPlace) -> list[str]:
        """Those that may have it, if it must be."""
        ready = [name for name in self.replicas if self.has_ready(name, request)]
        standing = [name for name in ready if not self.drains(name)] or ready
        return [name for name in standing if self.replicas[name].room and name not in request.tried]

    def drains(self, name: str) -> bool:
        report = self.replicas[name].report
        return report is not None and report.draining

    def good(self, request: RequestToPlace, ejected: set[str], now_s: float) -> list[str]:
        """Those of them that are to be preferred."""
        silent_s = self.settings.silent_s
        return [
            name
            for name in self.able(request)
            if name not in ejected and not self.drains(name) and now_s - self.replicas[name].reported_s <= silent_s
        ]

    def order(self, request: RequestToPlace) -> list[str]:
        """In which its sequence prefers those that have the model ready."""
        key = f"{request.name}\0{request.sequence!r}".encode()
        bucket = crc32(key) % 65_536
        names = [name for name in self.replicas if self.has_ready(name, request)]
        known = (bucket, *((name, self.replicas[name].weight) for name in sorted(names)))
        if known not in self._orders:
            firsts = [self._ranked((bucket + step * 40_503) % 65_536, names)[:1] for step in range(8)]
            order = [name for first in firsts for name in first]
            self._orders[known] = list(dict.fromkeys([*order, *self._ranked(bucket, names)]))
        return self._orders[known]

    def _ranked(self, bucket: int, names: list[str]) -> list[str]:
        return sorted(names, key=lambda name: _drawn(bucket, name) / self.replicas[name].weight)

    def sequences_at(self, name: str) -> int:
        return sum(each.at == name for each in self.sequences.values())


def _drawn(bucket: int, name: str) -> float:
    """Murmur3's finalizer of bucket and name, as an exponentially distributed number."""
    seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
    mixed = (bucket * 0x9E3779B97F4A7C15 & _MASK) ^ seed
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ mixed >> 33) * factor & _MASK
    mixed ^= mixed >> 33
    return -math.log((mixed + 0.5) / 2.0**64)


class WatchedFleetRouter(FleetRouter):
    """Complains when it decides what the rules do not leave.

    Args:
        complain: told what is wrong.
    """

    def __init__(self, settings: FleetSettings, chance: Random, *, complain: Callable[[str], None]) -> None:
        super().__init__(settings, chance)
        self.naive = NaiveFleet(settings)
        self._complain = complain

    # ---- the fleet ----

    def join(self, replica: str, now_s: float, weight: float = 1.0) -> None:
        super().join(replica, now_s, weight)
        known = self.naive.replicas.get(replica)
        if known is None:
            self.naive.replicas[replica] = _Replica(weight)
        else:
            known.weight = weight

    def leave(self, replica: str, now_s: float) -> None:
        super().leave(replica, now_s)
        del self.naive.replicas[replica]
        self._lost_with(replica)

    def connected(self, replica: str, now_s: float) -> None:
        super().connected(replica, now_s)
        known = self.naive.replicas[replica]
        known.connected = known.room = True

    def lost(self, replica: str, now_s: float) -> None:
        before = self._ejected(now_s)
        super().lost(replica, now_s)
        known = self.naive.replicas[replica]
        known.connected, known.report = False, None
        known.absent.clear()
        known.losses.append(now_s)
        self._lost_with(replica)
        known.losses = [each for each in known.losses if now_s - each < 10]
        self._check_ejection(replica, before, len(known.losses) >= 3, now_s)

    def room(self, replica: str, has_room: bool, now_s: float) -> None:
        super().room(replica, has_room, now_s)
        self.naive.replicas[replica].room = has_room

    def report(self, replica: str, report: ReplicaReport, now_s: float) -> None:
        super().report(replica, report, now_s)
        known = self.naive.replicas[replica]
        before, known.report, known.reported_s = known.report, report, now_s
        known.absent.clear()
        if before is not None and before.epoch != report.epoch:
            self._lost_with(replica)

    def _lost_with(self, replica: str) -> None:
        for each in self.naive.sequences.values():
            if each.at == replica:
                each.at = ""

    def _ejected(self, now_s: float) -> set[str]:
        return {each.name for each in self._members if now_s < each.ejected_s}

    def _check_ejection(self, replica: str, before: set[str], outlier: bool, now_s: float) -> None:
        """A replica is ejected if, and only if, it is an outlier and the fleet has enough others."""
        after = self._ejected(now_s)
        known, settings = self.naive.replicas[replica], self.naive.settings
        may = len(before) + 1 <= settings.eject_share * len(self.naive.replicas)
        if after - before - {replica}:
            self._complain(f"{after - before} are ejected, {replica} has failed")
        elif (replica in after) != ((outlier and may) or replica in before):
            self._complain(f"{replica} with {known.failures} failures is {'' if replica in after else 'not '}ejected")
        if outlier and may:
            known.failures = 0
            known.losses.clear()

    # ---- requests ----

    def place(self, request: RequestToPlace, now_s: float) -> FleetDecision:
        naive = self.naive
        naive.requests += 1
        followed = None
        if request.sequence:
            followed = naive.sequences.setdefault(request.sequence, _Followed())
            if followed.in_flight is not None or followed.line:
                followed.line.append(request)
        decision = super().place(request, now_s)
        if followed is not None and request in followed.line:
            if not isinstance(decision, WaitForReplica):
                self._complain(f"a request overtakes another one of sequence {request.sequence}: {decision}")
            return decision
        self._check(decision, now_s)
        return decision

    def tick(self, now_s: float) -> Sequence[SendTo | Refuse]:
        decided = super().tick(now_s)
        for decision in decided:
            request = decision.request
            followed = self.naive.sequences.get(request.sequence) if request.sequence else None
            if followed is not None and request in followed.line:
                if followed.line[0] is not request and not _is_late(decision, now_s):
                    self._complain(f"sequence {request.sequence} goes on with another request than its next one")
                followed.line.remove(request)
            self._check(decision, now_s)
        return decided

    def cancel(self, request: RequestToPlace, now_s: float) -> None:
        super().cancel(request, now_s)
        followed = self.naive.sequences.get(request.sequence)
        if followed is not None:
            if request in followed.line:
                followed.line.remove(request)
            elif followed.in_flight is request:
                followed.in_flight = None

    def settle(self, sent: SendTo, end: AttemptEnd, now_s: float) -> FleetDecision | None:
        before, request = self._ejected(now_s), sent.request
        tried, naive = request.tried, self.naive
        decision = super().settle(sent, end, now_s)
        known = naive.replicas.get(sent.replica)
        if known is not None and end is AttemptEnd.ABSENT and known.report is not None:
            known.absent.add((request.name, request.version))
        if known is not None and end in (AttemptEnd.FAILED, AttemptEnd.ANSWERED):
            known.failures = known.failures + 1 if end is AttemptEnd.FAILED else 0
            self._check_ejection(sent.replica, before, known.failures >= _LEAST_SENT, now_s)
        followed = naive.sequences.get(request.sequence) if request.sequence else None
        if followed is not None and followed.in_flight is request:
            self._follow(followed, sent, end)
        if decision is None:
            return None
        if isinstance(decision, SendTo):
            self._check_again(decision, end, tried, sent.replica)
        elif isinstance(decision, WaitForReplica):
            if end is not AttemptEnd.ABSENT:
                self._complain(f"a request waits that ended at {sent.replica}: {end}")
            self._count_retry()
        self._check(decision, now_s, again=True)
        return decision

    def _follow(self, followed: _Followed, sent: SendTo, end: AttemptEnd) -> None:
        """What the end of an attempt says of where its sequence is."""
        request = sent.request
        followed.in_flight = None
        if end is AttemptEnd.ANSWERED:
            if followed.at is None:
                followed.at = sent.replica
            if request.end:
                followed.at = None
        elif end is AttemptEnd.LOST or (end is AttemptEnd.NOT_STARTED and followed.at == sent.replica):
            followed.at = "" if followed.at is not None else None
        elif end in _NOT_TAKEN and request.start:
            followed.at = ""

    def _check_again(self, decision: SendTo, end: AttemptEnd, tried: tuple[str, ...], last: str) -> None:
        """Whether a request may be sent a further time."""
        request, naive = decision.request, self.naive
        settings = naive.settings
        if decision.replica in (*tried, last):
            self._complain(f"a request is sent to {decision.replica} again")
        drains = end in (AttemptEnd.REFUSED, AttemptEnd.ABSENT) and self.naive.drains(last)
        if (end is AttemptEnd.NOT_STARTED or drains) and request.sequence and not request.start:
            if len(tried) + 1 >= settings.lookups:
                self._complain(f"{len(tried) + 2} replicas are asked for a sequence")
            return
        if end not in _NOT_TAKEN:
            self._complain(f"a request that may have been executed is sent again: {end}")
        if request.sequence and not request.start:
            self._complain("a request of a sequence is sent again")
        if len(tried) + 2 > settings.most_attempts:
            self._complain(f"a request is sent {len(tried) + 2} times")
        self._count_retry()

    def _count_retry(self) -> None:
        naive, settings = self.naive, self.naive.settings
        naive.retries += 1
        if naive.retries > settings.retry_burst + settings.retry_budget * naive.requests + 1e-6:
            self._complain(f"{naive.retries} retries of {naive.requests} requests")

    # ---- decisions ----

    def _check(self, decision: FleetDecision, now_s: float, again: bool = False) -> None:
        request = decision.request
        if request.sequence:
            self._check_sequence(decision, now_s, again)
            return
        able = self.naive.able(request)
        if isinstance(decision, SendTo):
            good = self.naive.good(request, self._ejected(now_s), now_s)
            if decision.replica not in (good or able):
                self._complain(f"a request is sent to {decision.replica}, right are {good or able}")
        elif able and not _is_late(decision, now_s):
            self._complain(f"a request does not go on, though {able} may have it: {_told(decision)}")

    def _check_sequence(self, decision: FleetDecision, now_s: float, again: bool) -> None:
        request, naive = decision.request, self.naive
        followed = naive.sequences[request.sequence]
        if isinstance(decision, WaitForReplica):
            followed.in_flight = request
            replica = naive.replicas.get(followed.at or "")
            if replica is not None and replica.room:
                self._complain(f"a request of a sequence that is at {followed.at} waits")
            return
        if isinstance(decision, Refuse):
            followed.in_flight = None if followed.in_flight is request else followed.in_flight
            if followed.at and not _is_late(decision, now_s):
                self._complain(f"a sequence that is at {followed.at} is refused: {_told(decision)}")
            return
        followed.in_flight = request
        if not request.start:
            if followed.at == "":
                self._complain(f"a sequence that was lost goes on at {decision.replica}")
            elif followed.at is not None and decision.replica != followed.at:
                self._complain(f"a sequence that is at {followed.at} goes on at {decision.replica}")
            elif followed.at is None:
                self._check_lookup(decision)
            return
        if not (followed.at and not again):
            self._check_start(decision, now_s)
        followed.at = decision.replica

    def _check_lookup(self, decision: SendTo) -> None:
        untried = [name for name in self.naive.order(decision.request) if name not in decision.request.tried]
        if untried and decision.replica not in untried[:1]:
            self._complain(f"a sequence that is not known is looked for at {decision.replica}, right is {untried[0]}")

    def _check_start(self, decision: SendTo, now_s: float) -> None:
        """The first in order, but for those that have their part of the sequences."""
        request, naive = decision.request, self.naive
        good = naive.good(request, self._ejected(now_s), now_s)
        order = [name for name in naive.order(request) if name in good]
        if not good:
            return
        if decision.replica not in order:
            self._complain(f"a sequence begins at {decision.replica}, right are {order}")
            return
        passed_over = order[: order.index(decision.replica)]
        known = sum(each.at is not None or each.in_flight is not None for each in naive.sequences.values())
        least = math.floor(naive.settings.load_bound * known / len(naive.replicas) * 0.9)
        for name in passed_over:
            if naive.sequences_at(name) < least - 1:
                self._complain(f"a sequence begins at {decision.replica}, though {name} comes first")


def _is_late(decision: FleetDecision, now_s: float) -> bool:
    """Whether a request is refused because its time is over."""
    return isinstance(decision, Refuse) and decision.error.message.startswith(("Request timeout", "no replica is"))


def _told(decision: FleetDecision) -> str:
    return decision.error.message if isinstance(decision, Refuse) else "it waits"
