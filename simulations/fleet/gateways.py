"""Simulated gateways, each with a router of the real kind, and their links to replicas, with delays and partitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from random import Random

from ...engine.fleet.router import FleetRouter
from ...engine.fleet.types import AttemptEnd, FleetDecision, ReplicaReport, SendTo, WaitForReplica
from .events import Calendar
from .replicas import ClientAsk, ReplicaWork, SimulatedReplica

DELAY_S = 0.0005
"""From a gateway to a replica, and back, at the longest."""


class SimulatedLink:
    """From one gateway to one replica; it connects by itself.

    Attributes:
        cut: a partition: nothing gets through, and after a while both sides notice.
        told_s: when the latest report that has come was made.
    """

    def __init__(self, gateway: SimulatedGateway, replica: SimulatedReplica, draw: Random) -> None:
        self.replica = replica
        self.cut = self.closed = False
        self.up = False
        self.told_s = gateway.calendar.now_s
        self._gateway = gateway
        self._draw = draw
        self._connection = 0
        self._in_flight: dict[ReplicaWork, SendTo] = {}
        self._sent_s: dict[ReplicaWork, float] = {}
        self._there_s = self._back_s = 0.0
        self.connect()

    def connect(self) -> None:
        """Try to, again and again."""
        calendar = self._gateway.calendar
        if self.closed or self.up:
            return
        if self.cut or not self.replica.alive or self.replica.stopping:
            calendar.after(0.02 + 0.02 * self._draw.random(), self.connect)
            return
        self.up = True
        self._connection += 1
        self._gateway.hear(lambda router, now_s: router.connected(self.replica.name, now_s))
        self._report(self._connection)

    def lose(self, told: bool = False) -> None:
        """The connection is lost, and what is in flight with it; whether that was executed is known only if the replica
        has told before it ended."""
        if not self.up:
            return
        self.up = False
        self._connection += 1
        held, self._in_flight = list(self._in_flight.items()), {}
        self.replica.drop({work for work, _ in held})
        for work, sent in held:
            end = AttemptEnd.UNREACHABLE if told and not work.ask.executed else AttemptEnd.LOST
            self._gateway.settle(work.ask, sent, end, self._sent_s.pop(work))
        if not self.closed:
            self._gateway.hear(lambda router, now_s: router.lost(self.replica.name, now_s))
            self._gateway.calendar.after(0.02, self.connect)

    def close(self) -> None:
        """The replica has left the fleet."""
        self.closed = True
        self.lose(told=True)

    def send(self, ask: ClientAsk, sent: SendTo) -> None:
        calendar = self._gateway.calendar
        if not self.up:
            calendar.after(0.0, self._gateway.settle, ask, sent, AttemptEnd.UNREACHABLE, calendar.now_s)
            return
        connection = self._connection
        work = ReplicaWork(ask, lambda end: self._answer(work, end, connection))
        self._in_flight[work], self._sent_s[work] = sent, calendar.now_s
        self._there_s = max(self._there_s, calendar.now_s + DELAY_S * self._draw.random())
        calendar.at(self._there_s, self._arrive, work, connection)

    def _arrive(self, work: ReplicaWork, connection: int) -> None:
        if connection == self._connection and not self.cut and self.replica.alive:
            self.replica.take(work)

    def _answer(self, work: ReplicaWork, end: AttemptEnd, connection: int) -> None:
        if connection == self._connection and not self.cut:
            calendar = self._gateway.calendar
            self._back_s = max(self._back_s, calendar.now_s + DELAY_S * self._draw.random())
            calendar.at(self._back_s, self._answered, work, end, connection)

    def _answered(self, work: ReplicaWork, end: AttemptEnd, connection: int) -> None:
        if connection == self._connection and not self.cut:
            self._gateway.settle(work.ask, self._in_flight.pop(work), end, self._sent_s.pop(work))

    def _report(self, connection: int) -> None:
        """Each interval: as it is, later, or not at all; but the first one of a connection always comes."""
        gateway = self._gateway
        if connection != self._connection or not self.replica.alive:
            return
        first = gateway.reported.get(self.replica.name) != connection
        if not self.cut and (first or self._draw.random() >= gateway.lost_reports):
            late_s = 0.0 if first or self._draw.random() >= gateway.late_reports else 5 * gateway.interval_s
            delay_s = late_s * self._draw.random() + DELAY_S * self._draw.random()
            gateway.calendar.after(delay_s, self._told, self.replica.report(), connection, gateway.calendar.now_s)
        gateway.calendar.after(gateway.interval_s * (0.9 + 0.2 * self._draw.random()), self._report, connection)

    def _told(self, report: ReplicaReport, connection: int, made_s: float) -> None:
        if connection == self._connection and not self.cut:
            self._gateway.reported[self.replica.name] = connection
            self.told_s = max(self.told_s, made_s)
            self._gateway.hear(lambda router, now_s: router.report(self.replica.name, report, now_s))


class SimulatedGateway:
    """Attributes:
    interval_s: between reports.
    lost_reports, late_reports: parts of all.
    reported: of which replicas a report has come, on which connection.
    """

    def __init__(
        self, router: FleetRouter, calendar: Calendar, draw: Random, complain: Callable[[str], None], interval_s: float
    ) -> None:
        self.router = router
        self.calendar = calendar
        self.interval_s = interval_s
        self.lost_reports = self.late_reports = 0.0
        self.reported: dict[str, int] = {}
        self.links: dict[str, SimulatedLink] = {}
        self._draw = draw
        self._complain = complain
        self._asks: dict[object, ClientAsk] = {}
        self._held: set[object] = set()  # those of them that wait for the router
        self._wakes_s = math.inf

    @property
    def waiting(self) -> Iterable[ClientAsk]:
        """Those without an answer."""
        return self._asks.values()

    def join(self, replica: SimulatedReplica) -> None:
        self.router.join(replica.name, self.calendar.now_s)
        self.links[replica.name] = SimulatedLink(self, replica, self._draw)

    def leave(self, name: str) -> None:
        """At once; what is in flight there is lost."""
        self.router.leave(name, self.calendar.now_s)
        self.links.pop(name).close()
        self._pump()

    def submit(self, ask: ClientAsk) -> None:
        """A client's request has come."""
        ask.submitted_s = self.calendar.now_s
        self._asks[ask.request] = ask
        self._act(self.router.place(ask.request, self.calendar.now_s))
        self._pump()

    def give_up(self, ask: ClientAsk) -> None:
        """The client has gone; for a request that is in flight nothing is done."""
        if ask.request in self._held:
            self._held.discard(ask.request)
            self.router.cancel(ask.request, self.calendar.now_s)
            self._reply(ask, "given up")
            self._pump()

    def settle(self, ask: ClientAsk, sent: SendTo, end: AttemptEnd, sent_s: float) -> None:
        """An attempt has ended."""
        now_s = self.calendar.now_s
        ask.ends.append((sent.replica, end, sent_s, now_s))
        decision = self.router.settle(sent, end, now_s)
        if decision is None:
            self._reply(ask, "ok" if end is AttemptEnd.ANSWERED else end.value)
        else:
            self._act(decision)
        self._pump()

    def hear(self, tell: Callable[[FleetRouter, float], None]) -> None:
        """Something has happened that the router is to know."""
        tell(self.router, self.calendar.now_s)
        self._pump()

    def _pump(self) -> None:
        now_s = self.calendar.now_s
        for _ in range(1000):
            due_s = self.router.due_s
            if due_s > now_s:
                break
            for decision in self.router.tick(now_s):
                self._act(decision)
        else:
            self._complain("the router has always something to do, and time does not pass")
            return
        if due_s < self._wakes_s:
            self._wakes_s = due_s
            self.calendar.at(due_s, self._wake)

    def _wake(self) -> None:
        self._wakes_s = math.inf
        self._pump()

    def _act(self, decision: FleetDecision) -> None:
        ask = self._asks.get(decision.request)
        if isinstance(decision, WaitForReplica):
            self._held.add(decision.request)
            return
        self._held.discard(decision.request)
        if ask is None:
            self._complain(f"a request that is answered is decided about: {decision}")
        elif isinstance(decision, SendTo):
            link = self.links.get(decision.replica)
            if link is None:
                self._complain(f"a request is sent to {decision.replica}, which has left")
            else:
                link.send(ask, decision)
        else:
            self._reply(ask, f"refused: {decision.error.message}")

    def _reply(self, ask: ClientAsk, answer: str) -> None:
        if self._asks.pop(ask.request, None) is None:
            self._complain(f"a request is answered twice: {ask.answer}, then {answer}")
            return
        ask.answer = answer
        if ask.then is not None:
            ask.then(ask)
