"""A simulated gateway: the router, as `gateway.server` drives it, and its links to replicas, which may break.

It holds each decision against what it has told the router (`DecisionCheck`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ...engine.fleet.router import FleetRouter
from ...engine.fleet.types import AttemptEnd, FleetDecision, FleetSettings, Refuse, ReplicaReport, SendTo
from .events import FleetTime
from .records import RequestRecord
from .replica import Attempt, SimulatedReplica

_NOT_EXECUTED = (AttemptEnd.REFUSED, AttemptEnd.UNREACHABLE, AttemptEnd.NOT_STARTED)


class SimulatedLink:
    """From a gateway to a replica, for one connection after the other.

    Attributes:
        connected, full: its state.
        told: the latest report of this connection.
        on_way: requests without an answer, and whether they have arrived.
    """

    def __init__(self, gateway: SimulatedGateway, replica: SimulatedReplica) -> None:
        self.gateway = gateway
        self.replica = replica
        self.connected = False
        self.told: ReplicaReport | None = None
        self.on_way: dict[Attempt, tuple[SendTo, bool]] = {}
        self.full = False
        self._connection = self._unwritten = 0

    def connect(self) -> None:
        """It is there, unless it is already, or the replica is not; a report follows."""
        if self.connected or not self.replica.up or self.replica.name not in self.gateway.links:
            return
        self.connected = True
        self._connection += 1
        self._unwritten, self.full = 0, False
        self.gateway.router.connected(self.replica.name, self.gateway.time.now_s)
        self.hear()

    def lose(self) -> None:
        """The connection breaks. What was on its way over it has failed."""
        if not self.connected:
            return
        self.connected = False
        self.told = None
        on_way, self.on_way = self.on_way, {}
        for attempt, (sent, arrived) in on_way.items():
            attempt.given_up = True
            end = AttemptEnd.LOST if arrived else AttemptEnd.UNREACHABLE
            self.gateway.settle(sent, attempt.record, end)
        self.gateway.router.lost(self.replica.name, self.gateway.time.now_s)
        self.gateway.look()

    def hear(self) -> None:
        """A report comes, of now."""
        report, connection = self.replica.report(), self._connection

        def arrive() -> None:
            if self.connected and self._connection == connection and self.replica.name in self.gateway.links:
                self.told = report
                self.gateway.router.report(self.replica.name, report, self.gateway.time.now_s)
                self.gateway.look()

        self.gateway.time.after(self.gateway.delay_s(), arrive)

    def send(self, sent: SendTo, record: RequestRecord) -> None:
        """Put a request on its way."""
        attempt = Attempt(record, lambda end: self._answer(attempt, end))
        self.on_way[attempt] = (sent, False)
        self._unwritten += 1
        if self._unwritten >= self.gateway.link_room:
            self.full = True
            self.gateway.router.room(self.replica.name, False, self.gateway.time.now_s)
        connection = self._connection

        def arrive() -> None:
            if connection == self._connection and self.connected:
                self._write_one()
            if attempt in self.on_way:
                self.on_way[attempt] = (sent, True)
                self.replica.receive(attempt)

        self.gateway.time.after(self.gateway.delay_s(), arrive)

    def _write_one(self) -> None:
        self._unwritten -= 1
        if self.full:
            self.full = False
            if self.replica.name in self.gateway.links:
                self.gateway.router.room(self.replica.name, True, self.gateway.time.now_s)
                self.gateway.look()

    def _answer(self, attempt: Attempt, end: AttemptEnd) -> None:
        def arrive() -> None:
            if (found := self.on_way.pop(attempt, None)) is not None:
                self.gateway.settle(found[0], attempt.record, end)

        self.gateway.time.after(self.gateway.delay_s(), arrive)


class SimulatedGateway:
    """One gateway.

    Args:
        complain: called with what is wrong.

    Attributes:
        requests, retried: how many, and how many of them were sent again; sequences that were looked for not counted.
        link_room: so many requests may be on their way over a link.
    """

    def __init__(
        self, time: FleetTime, draw: Random, settings: FleetSettings, complain: Callable[[str], None], seed: int
    ) -> None:
        self.time = time
        self.router = FleetRouter(settings, Random(seed))
        self.links: dict[str, SimulatedLink] = {}
        self.requests = self.retried = 0
        self.link_room = draw.choice((1, 3, 1_000))
        self._settings = settings
        self._draw = draw
        self._complain = complain
        self._waiting: dict[object, RequestRecord] = {}
        self._due_s = -1.0

    def delay_s(self) -> float:
        """Of a message."""
        return self._draw.uniform(0.0001, 0.001)

    def join(self, replica: SimulatedReplica) -> SimulatedLink:
        """A replica is a member from now on."""
        link = self.links[replica.name] = SimulatedLink(self, replica)
        self.router.join(replica.name, self.time.now_s)
        self.time.after(self._draw.uniform(0.001, 0.3), link.connect)
        return link

    def leave(self, name: str) -> None:
        """It is not, any more."""
        link = self.links.pop(name)
        self.router.leave(name, self.time.now_s)
        for attempt, (sent, arrived) in list(link.on_way.items()):
            attempt.given_up = True
            self.settle(sent, attempt.record, AttemptEnd.LOST if arrived else AttemptEnd.UNREACHABLE)
        link.on_way.clear()
        self.look()

    def ask(self, record: RequestRecord) -> None:
        """A client asks."""
        self.requests += 1
        self._follow(self.router.place(record.asked, self.time.now_s), record)
        self.look()

    def give_up(self, record: RequestRecord) -> None:
        """The client does not want an answer any more."""
        if record.outcomes:
            return
        if self._waiting.pop(record.asked, None) is not None:
            self.router.cancel(record.asked, self.time.now_s)
            record.finish("given up")
            self.look()
            return
        for link in self.links.values():
            for attempt, (sent, _) in list(link.on_way.items()):
                if attempt.record is record:
                    del link.on_way[attempt]
                    attempt.given_up = True
                    self.settle(sent, record, AttemptEnd.CANCELLED)
                    return

    def settle(self, sent: SendTo, record: RequestRecord, end: AttemptEnd) -> None:
        """An attempt has ended."""
        decision = self.router.settle(sent, end, self.time.now_s)
        if decision is None:
            record.finish("given up" if end is AttemptEnd.CANCELLED else end.value)
        else:
            if isinstance(decision, SendTo):
                if end not in _NOT_EXECUTED:
                    self._complain(f"sent again after {end.value}")
                self.retried += end is not AttemptEnd.NOT_STARTED
            self._follow(decision, record)
        self.look()

    def _follow(self, decision: FleetDecision, record: RequestRecord) -> None:
        if isinstance(decision, SendTo):
            self._check(decision, record)
            record.sent_to.append(decision.replica)
            self.links[decision.replica].send(decision, record)
        elif isinstance(decision, Refuse):
            record.finish(f"refused: {decision.error.message}")
        else:
            self._waiting[record.asked] = record

    def _check(self, sent: SendTo, record: RequestRecord) -> None:
        link, asked = self.links.get(sent.replica), sent.request
        if link is None or not link.connected or link.told is None:
            self._complain(f"sent to {sent.replica}, which is not there")
            raise LookupError(sent.replica)
        versions = link.told.models.get(asked.name, {})
        ready = any(versions.values()) if asked.version < 0 else versions.get(asked.version, False)
        if (not ready or link.told.draining) and not (asked.sequence and not asked.start):
            self._complain(f"sent to {sent.replica}, which drains or has no such version")
        if sent.replica in record.sent_to:
            self._complain(f"sent to {sent.replica} again")
        if link.full:
            self._complain(f"sent to {sent.replica}, whose link has no room")
        if len(record.sent_to) >= (self._settings.lookups if asked.sequence else self._settings.most_attempts):
            self._complain(f"sent {len(record.sent_to) + 1} times")

    def look(self) -> None:
        """Have the router go on, now and when it wants to."""
        while self.router.next_s() <= self.time.now_s:
            decisions = self.router.tick(self.time.now_s)
            for decision in decisions:
                self._follow(decision, self._waiting.pop(decision.request))
            if not decisions:
                break
        due_s = self.router.next_s()
        if due_s != self._due_s and self.time.now_s < due_s < 1e9:
            self._due_s = due_s
            self.time.at(due_s, self.look)

    def leftovers(self) -> str:
        """What is wrong when everything is over."""
        statistics = self.router.statistics(self.time.now_s)
        in_flight = {name: each.in_flight for name, each in statistics.items() if each.in_flight}
        if in_flight or self._waiting:
            return f"in flight when all is over: {in_flight}, {len(self._waiting)} wait"
        placed = sum(each.sequences for each in statistics.values())
        return (
            f"{placed} sequences at replicas, {self.router.sequences} known" if placed > self.router.sequences else ""
        )
