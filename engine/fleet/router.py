"""The router of a gateway: which replica gets a request. No I/O, and no clock but `now_s`.

Rules:
 1. Sequences. The first request of a sequence places it: at the first replica in the order of its correlation id
    (`hashing`) that has no more than `load_bound` times the mean of sequences. Later requests follow it. One request of
    a sequence is on its way at a time, those behind it wait in order. A sequence that this gateway does not know is
    asked for at the first replicas of that order, those that drain included, one after the other, as long as they
    say that it was not started there: so gateways agree without talking. With its replica a sequence is lost; further
    requests of it are refused, as a replica refuses what was not started.
 2. Other requests go to replicas that have the version of the model ready (`members`): those with the same sticky key
    to the first one in the order of the key that is not much busier than the mean; all others to the less busy one of
    two that are chosen at random.
 3. If there is none, but there was one, or nothing is known yet, the request waits: for `wait_s` at most, and not
    beyond its deadline. At most `most_waiting` do.
 4. A request is sent again only if it surely was not executed, `most_attempts` times at most, to replicas that it has
    not been at; never one of a sequence, but for the first; and only while there are fewer retries than `retry_budget`
    of all requests. If a replica did not have the model any more, and no other is known to, it waits (rule 3): a model
    that moves is ready in its new place, which this gateway is about to hear.

States of a request:

    place ─▶ SendTo ─settle▶ None (the replica's answer counts)
      │        ▲  └─settle▶ SendTo (rules 1 and 4), WaitForReplica, Refuse
      │        └──tick── WaitForReplica ─tick▶ Refuse
      └─▶ Refuse             └─cancel▶ gone
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from ..errors import InvalidArgumentError, NotFoundError, RefusalReason, TriremeError, UnavailableError
from ..request import LATEST
from .hashing import bucket_of, sequence_key
from .members import FleetGroup, FleetMember, FleetMembers
from .sequences import KnownSequence, KnownSequences
from .types import (
    NOT_STARTED_TEXT,
    AttemptEnd,
    FleetDecision,
    FleetSettings,
    Refuse,
    ReplicaReport,
    RequestToPlace,
    SendTo,
    WaitForReplica,
)

_NOT_EXECUTED = (AttemptEnd.REFUSED, AttemptEnd.UNREACHABLE, AttemptEnd.ABSENT)
_ANSWERED = AttemptEnd.ANSWERED  # a member of an enumeration takes longer to look up
_PREFERRED = 8
"""Replicas that are looked at for a sticky key."""


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """What a router knows of a replica.

    Attributes:
        in_flight, sequences: of this gateway, now.
        sent, failed, retried: requests, since the start; the last, those that another replica had not taken.
    """

    connected: bool
    ejected: bool
    in_flight: int
    sequences: int
    sent: int
    failed: int
    retried: int


class FleetRouter:
    """Decides for one gateway. See `types` for what it is asked and answers.

    Args:
        chance: for the choice between replicas.

    Attributes:
        due_s: when `tick` is to be called; infinite for never, minus infinite for at once.
    """

    def __init__(self, settings: FleetSettings, chance: Random) -> None:
        self._settings = settings
        self._members = FleetMembers(settings, chance)
        self._sequences = KnownSequences(settings.sequence_idle_s, settings.most_sequences)
        self._waiting: dict[RequestToPlace, float] = {}  # for a replica, until when
        self._behind: dict[RequestToPlace, float] = {}  # another request of their sequence
        self._next_s = math.inf  # when the time of one that waits is over
        self.due_s = math.inf
        self._in_line: list[KnownSequence] = []  # whose next request may go
        self._retries = float(settings.retry_burst)

    # ---- the fleet ----

    def join(self, replica: str, now_s: float, weight: float = 1.0) -> None:
        """A replica is a member from now on, or has another weight."""
        member = self._members.by_name.get(replica)
        if member is None:
            self._members.by_name[replica] = FleetMember(replica, weight)
        elif member.weight != weight:
            self._out_of_groups(member)
            member.weight = weight
            self._changed(member)

    def leave(self, replica: str, now_s: float) -> None:
        """It is not a member any more. What it has in flight is settled as before."""
        member = self._members.by_name.pop(replica)
        self._sequences.lose(member)
        self._changed(member)

    def connected(self, replica: str, now_s: float) -> None:
        """There is a connection; a report is about to come."""
        member = self._members.by_name[replica]
        member.connected = True
        member.has_room(True)
        member.since_s = max(now_s, member.ejected_s)

    def lost(self, replica: str, now_s: float) -> None:
        """The connection is lost; what was in flight is settled by itself."""
        member = self._members.by_name[replica]
        member.connected = False
        member.report = None
        self._sequences.lose(member)
        self._changed(member)
        if member.was_lost(now_s):
            self._members.eject(member, now_s)

    def room(self, replica: str, has_room: bool, now_s: float) -> None:
        """The link to it takes more, or does not."""
        member = self._members.by_name[replica]
        if has_room and not member.room:
            self.due_s = -math.inf
        member.has_room(has_room)

    def report(self, replica: str, report: ReplicaReport, now_s: float) -> None:
        """It has told what it is now."""
        member = self._members.by_name[replica]
        before = member.report
        if member.take(report, now_s):
            self._sequences.lose(member)
        same = before is not None and before.models is report.models and before.draining is report.draining
        if not same or member.outdated:
            self._changed(member)

    def _changed(self, member: FleetMember) -> None:
        self._members.place(member)
        self.due_s = -math.inf

    def _out_of_groups(self, member: FleetMember) -> None:
        connected, member.connected = member.connected, False
        self._members.place(member)
        member.connected = connected

    # ---- requests ----

    def place(self, request: RequestToPlace, now_s: float) -> FleetDecision:
        """What is to be done with a request that has come."""
        settings = self._settings
        if self._retries < settings.retry_burst:
            self._retries = min(self._retries + settings.retry_budget, float(settings.retry_burst))
        if not request.sequence:
            return self._decide(request, now_s)
        known = self._sequences.get(request, now_s)
        if known.current is not None or known.line:
            known.line.append(request)
            self._behind[request] = request.deadline_s
            self._due_by(request.deadline_s)
            return WaitForReplica(request, request.deadline_s)
        return self._decide(request, now_s)

    def cancel(self, request: RequestToPlace, now_s: float) -> None:
        """A request is given up that waits."""
        self._waiting.pop(request, None)
        known = self._sequences.find(request) if request.sequence else None
        if known is None:
            return
        if self._behind.pop(request, None) is not None:
            known.line.remove(request)
        elif known.current is request:
            self._go_on(known, request)

    def settle(self, sent: SendTo, end: AttemptEnd, now_s: float) -> FleetDecision | None:
        """A request that was sent has ended so; None if what the replica said counts."""
        request, member = sent.request, sent.member
        member.in_flight -= 1
        if end is _ANSWERED:
            member.answered()
            return self._settle_sequence(request, member, end, now_s) if request.sequence else None
        if end is AttemptEnd.FAILED:
            if member.has_failed():
                self._members.eject(member, now_s)
        elif end is AttemptEnd.ABSENT:
            self._members.absent(member, (request.name, request.version))
        if request.sequence:
            return self._settle_sequence(request, member, end, now_s)
        if not self._may_retry(request, end):
            return None
        found = self._retry(request, member, now_s)
        if found is not None:
            return self._send(request, found, retry=True)
        return self._wait_for_another(request, end, now_s)

    def _may_retry(self, request: RequestToPlace, end: AttemptEnd) -> bool:
        """Rule 4, but for where."""
        return end in _NOT_EXECUTED and self._retries >= 1 and len(request.tried) + 1 < self._settings.most_attempts

    def _wait_for_another(self, request: RequestToPlace, end: AttemptEnd, now_s: float) -> FleetDecision | None:
        """Rule 4, for a request that `_retry` has found no replica for; None if it does not wait."""
        if end is not AttemptEnd.ABSENT:
            return None
        self._retries -= 1
        return self._wait(request, now_s)

    def _retry(self, request: RequestToPlace, member: FleetMember, now_s: float) -> FleetMember | None:
        """Rule 4: where else a request goes that may be sent again; None if there is no such replica."""
        request.tried = (*request.tried, member.name)
        group = self._members.groups.get((request.name, request.version))
        if group is None or not len(group):
            return None
        place = self._place_sequence if request.sequence else self._choose
        found = place(request, group, now_s)
        if found is None or found.name in request.tried:
            return None
        self._retries -= 1
        found.retried += 1
        return found

    def _settle_sequence(
        self, request: RequestToPlace, member: FleetMember, end: AttemptEnd, now_s: float
    ) -> FleetDecision | None:
        known = self._sequences.find(request)
        if known is None or known.current is not request:
            return None
        looked_for = known.member is None and not known.lost
        not_there = end is AttemptEnd.NOT_STARTED or (end in _NOT_EXECUTED and member.drains and not request.start)
        if not_there and looked_for:
            request.tried = (*request.tried, member.name)
            found = self._look_up(request)
            if found is not None:
                return self._send(request, found, retry=True)
        elif end is AttemptEnd.ANSWERED and looked_for:
            known.move(member)
        elif end in _NOT_EXECUTED and request.start:
            known.move(None)
            if self._may_retry(request, end):
                found = self._retry(request, member, now_s)
                if found is not None:
                    known.move(found)
                    return self._send(request, found, retry=True)
                decision = self._wait_for_another(request, end, now_s)
                if isinstance(decision, WaitForReplica):
                    return decision
            known.lose()  # those behind it would be taken for an older sequence of the same id
        elif end in (AttemptEnd.LOST, AttemptEnd.NOT_STARTED) and known.member is member:
            known.lose()
        self._go_on(known, request, ended=request.end and end is AttemptEnd.ANSWERED)
        return None

    def _go_on(self, known: KnownSequence, request: RequestToPlace, ended: bool = False) -> None:
        """A request of a sequence is over: the next one may go."""
        known.current = None
        if ended:
            known.move(None)
        if known.line:
            self._in_line.append(known)
            self.due_s = -math.inf
        elif known.member is None and not known.lost:
            self._sequences.forget(known)

    # ---- decisions ----

    def _decide(self, request: RequestToPlace, now_s: float) -> FleetDecision:
        """What is to be done with a request whose turn it is."""
        group = self._members.groups.get((request.name, request.version))
        if not request.sequence:
            if group is None or not (group.members or group.draining):
                return self._without(request, now_s, was_ready=group is not None)
            found = self._choose(request, group, now_s)
            return self._wait(request, now_s) if found is None else self._send(request, found)
        known = self._sequences.get(request, now_s)
        known.current = request
        decision = self._decide_sequence(request, known, group, now_s)
        if isinstance(decision, Refuse):
            self._go_on(known, request)
        return decision

    def _decide_sequence(
        self, request: RequestToPlace, known: KnownSequence, group: FleetGroup | None, now_s: float
    ) -> FleetDecision:
        """Rule 1. A sequence whose place is known goes on there, also while the replica drains."""
        found = known.member
        if found is None:
            if known.lost and not request.start:
                return Refuse(request, _not_started(request))
            if group is None or not len(group):
                return self._without(request, now_s, was_ready=group is not None)
            if request.start:
                found = self._place_sequence(request, group, now_s)
                known.move(found)
            else:
                found = self._look_up(request)
                if found is None:
                    return Refuse(request, _not_started(request))
        return self._wait(request, now_s) if found is None or not found.room else self._send(request, found)

    def _place_sequence(self, request: RequestToPlace, group: FleetGroup, now_s: float) -> FleetMember | None:
        members = self._members
        bucket = bucket_of(sequence_key(request.name, request.sequence))
        most = math.ceil(self._settings.load_bound * len(self._sequences) / len(members.by_name))
        fallback = None
        for member in self._in_order(group, bucket):
            if member.name not in request.tried and members.usable(member, now_s):
                if member.sequences < most:
                    return member
                fallback = fallback or member
        return fallback or group.able[0]

    def _in_order(self, group: FleetGroup, bucket: int) -> Iterator[FleetMember]:
        """In which a key prefers those of a group."""
        by_name = self._members.by_name
        return (by_name[name] for name in group.order.in_order(bucket))

    def _look_up(self, request: RequestToPlace) -> FleetMember | None:
        """The next one to be asked for a sequence that is not known."""
        group = self._members.groups.get((request.name, request.version))
        if group is None or len(request.tried) >= self._settings.lookups:
            return None
        bucket = bucket_of(sequence_key(request.name, request.sequence))
        return next((each for each in self._in_order(group, bucket) if each.name not in request.tried), None)

    def _choose(self, request: RequestToPlace, group: FleetGroup, now_s: float) -> FleetMember | None:
        """Rule 2."""
        if request.sticky is not None:
            found = self._choose_sticky(request, request.sticky, group, now_s)
            if found is not None:
                return found
        return self._members.pick(group, request.name, now_s, request.tried)

    def _choose_sticky(
        self, request: RequestToPlace, sticky: bytes, group: FleetGroup, now_s: float
    ) -> FleetMember | None:
        """One of the first few; None if all of them are busy, or cannot be used."""
        members, stale_s = self._members, self._settings.stale_s
        most = self._settings.load_bound * group.mean_pending(now_s, stale_s) + 1
        by_name, tried = members.by_name, request.tried
        for name in islice(group.order.in_order(bucket_of(sticky)), _PREFERRED):
            member = by_name[name]
            if name not in tried and members.usable(member, now_s) and member.pending(now_s, stale_s) <= most:
                return member
        return None

    def _send(self, request: RequestToPlace, member: FleetMember, retry: bool = False) -> SendTo:
        member.in_flight += 1
        member.sent += 1
        return SendTo(request, member.name, retry, member)

    # ---- waiting ----

    def _without(self, request: RequestToPlace, now_s: float, *, was_ready: bool) -> FleetDecision:
        """There is none that has the model ready; rule 3."""
        reports = [each.report for each in self._members if each.report is not None]
        if was_ready or not reports:
            return self._wait(request, now_s)
        if not any(request.name in report.models for report in reports):
            text = f"Request for unknown model: '{request.name}' is not found"
        elif request.version == LATEST:
            text = f"Request for unknown model: '{request.name}' has no available versions"
        else:
            text = f"Request for unknown model: '{request.name}' version {request.version} is not found"
        return Refuse(request, NotFoundError(text))

    def _wait(self, request: RequestToPlace, now_s: float) -> FleetDecision:
        """Rule 3. A request that waits already does so until it was to."""
        due_s = self._waiting.get(request)
        if due_s is None:
            if len(self._waiting) >= self._settings.most_waiting:
                return Refuse(request, _too_many(request))
            due_s = self._waiting[request] = min(request.deadline_s, now_s + self._settings.wait_s)
            self._due_by(due_s)
        return WaitForReplica(request, due_s)

    def _due_by(self, when_s: float) -> None:
        """The time of one that waits is over then."""
        self._next_s = min(self._next_s, when_s)
        self.due_s = min(self.due_s, when_s)

    def tick(self, now_s: float) -> Sequence[SendTo | Refuse]:
        """What is decided now of requests that waited."""
        decided: list[SendTo | Refuse] = []
        if self.due_s == -math.inf:
            self.due_s = self._next_s
            for request in list(self._waiting):
                self._decide_again(request, now_s, decided)
        while self._in_line:
            known = self._in_line.pop()
            while known.line and known.current is None:
                request = known.line.popleft()
                del self._behind[request]
                self._decide_again(request, now_s, decided)
        if now_s >= self._next_s:
            for waiting in (self._waiting, self._behind):
                for request in [each for each, due_s in waiting.items() if due_s <= now_s]:
                    decided.append(Refuse(request, _waited(request, now_s)))
                    self.cancel(request, now_s)
            self._next_s = min((*self._waiting.values(), *self._behind.values()), default=math.inf)
            if self.due_s > -math.inf:
                self.due_s = self._next_s
        return decided

    def _decide_again(self, request: RequestToPlace, now_s: float, decided: list[SendTo | Refuse]) -> None:
        decision = self._decide(request, now_s)
        if not isinstance(decision, WaitForReplica):
            self._waiting.pop(request, None)
            decided.append(decision)

    # ---- what is told of it ----

    def sequences_at(self, replica: str) -> int:
        """How many sequences this gateway knows to be there."""
        return self._members.by_name[replica].sequences

    @property
    def sequences(self) -> int:
        """How many this gateway knows."""
        return len(self._sequences)

    def statistics(self, now_s: float) -> dict[str, ReplicaStatistics]:
        """Of each replica."""
        return {
            each.name: ReplicaStatistics(
                each.connected,
                now_s < each.ejected_s,
                each.in_flight,
                each.sequences,
                each.sent,
                each.failed,
                each.retried,
            )
            for each in self._members
        }

    def __repr__(self) -> str:
        members = len(self._members.by_name)
        return f"<FleetRouter of {members} replicas: {len(self._waiting)} wait, {len(self._sequences)} sequences>"


def _not_started(request: RequestToPlace) -> TriremeError:
    return InvalidArgumentError(
        f"inference request for sequence {request.sequence} to model '{request.name}' {NOT_STARTED_TEXT}"
    )


def _too_many(request: RequestToPlace) -> TriremeError:
    return UnavailableError(
        f"too many requests wait for a replica with model '{request.name}'", refusal=RefusalReason.BUDGET
    )


def _waited(request: RequestToPlace, now_s: float) -> TriremeError:
    if now_s >= request.deadline_s:
        return UnavailableError("Request timeout expired", refusal=RefusalReason.QUEUE_TIMEOUT)
    return UnavailableError(f"no replica is ready for model '{request.name}'", refusal=RefusalReason.NOT_READY)
