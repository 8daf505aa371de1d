"""Swarm runs of a fleet: gateways and replicas in virtual time, where everything that may happen is drawn from a seed.

A run has a *safety* phase, in which faults strike, and a *liveness* phase, in which none does and nothing may fail. The
promises, besides those that replicas look at themselves (`replicas`) and the rules of the router (`oracle.fleet`):

 1. Each request is answered, once.
 2. A request fails of a fault only: of that of a replica where it was, or where its sequence was.
 3. So none fails because of an upgrade, a scale-in or a scale-out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ...engine.fleet.types import AttemptEnd, FleetRequest, FleetSettings
from ..drawn_run import DrawnRun
from ..oracle.fleet import WatchedFleetRouter
from .events import Calendar
from .gateways import SimulatedGateway
from .replicas import MODEL, ClientAsk, SimulatedReplica

BEGIN_S = 1.0
"""When the first requests come."""
FAULTS_S = 3.0
"""So long is the safety phase."""
CALM_S = 4.0
"""And so long it takes at most until the last fault is forgotten: what was ejected has come back."""
END_S = 40.0
NOTICE_S = 0.4
"""After which a partition is noticed."""
UNHEARD_S = 0.8
"""So long, of which it drains for a second before it stops, reports may get lost without an effect."""
NOT_TAKEN = (AttemptEnd.REFUSED, AttemptEnd.UNREACHABLE, AttemptEnd.ABSENT)
"""Another replica may take the request."""


@dataclass(frozen=True)
class FleetPlan:
    """What is drawn before a run.

    Attributes:
        faults: killed, partitioned, failing replicas come up.
        changes: so do upgrades, scale-ins and scale-outs.
        hops: clients change gateways within a sequence.
    """

    gateways: int
    replicas: int
    faults: float
    changes: float
    hops: bool
    rate: float
    service_s: float
    instances: int
    queue: int
    lost_reports: float
    late_reports: float
    sequences: int
    keys: int
    settings: FleetSettings


def draw_fleet(draw: Random) -> FleetPlan:
    replicas = draw.choice((1, 2, 3, 3, 5, 8, 12))
    service_s = draw.choice((0.002, 0.01, 0.03))
    instances = draw.choice((1, 2))
    hops = draw.random() < 0.3
    return FleetPlan(
        gateways=draw.choice((1, 2, 3)),
        replicas=replicas,
        faults=draw.choice((0.0, 0.0, 0.5, 1.5)) if not hops else 0.0,
        changes=draw.choice((0.0, 0.5, 1.0)),
        hops=hops,
        rate=min(0.5 * replicas * instances / service_s, 20.0) * draw.choice((0.3, 1.0)),
        service_s=service_s,
        instances=instances,
        queue=draw.choice((2, 1000, 1000)),
        lost_reports=draw.choice((0.0, 0.1, 0.5)),
        late_reports=draw.choice((0.0, 0.1, 0.5)),
        sequences=draw.choice((0, 2, 4)),
        keys=draw.choice((0, 1, 20)),
        settings=FleetSettings(
            retry_budget=draw.choice((0.02, 0.3)),
            retry_burst=draw.choice((1, 10)),
            lookups=12 if hops else 4,
            eject_s=0.5,
            eject_most_s=2.0,
            slow_start_s=draw.choice((0.0, 1.0)),
            stale_s=draw.choice((0.3, 1.0)),
            silent_s=draw.choice((0.5, 2.0)),
            wait_s=draw.choice((0.5, 3.0)),
        ),
    )


def play_fleet(seed: int) -> DrawnRun:
    """Play one run to its end, or to the first violation."""
    draw = Random(f"fleet {seed}")
    swarm = FleetSwarm(draw_fleet(draw), draw)
    swarm.play()
    return swarm.run


class FleetSwarm:
    """A run in the making.

    Attributes:
        surge: times as many requests as usual.
    """

    surge = 1.0

    def __init__(self, plan: FleetPlan, draw: Random) -> None:
        self.plan = plan
        self.run = DrawnRun()
        self.calendar = Calendar()
        self._draw = draw
        self.begin_s = BEGIN_S
        self._ids = 0
        self._lives = 0
        self._faulty: dict[str, list[list[float]]] = {}  # by replica: since when, until when
        self.replicas: dict[str, SimulatedReplica] = {}
        self.gateways: list[SimulatedGateway] = []
        for number in range(plan.gateways):
            router = WatchedFleetRouter(plan.settings, Random(f"{draw.random()} {number}"), complain=self.complain)
            gateway = SimulatedGateway(router, self.calendar, draw, self.complain, interval_s=0.1)
            gateway.lost_reports, gateway.late_reports = plan.lost_reports, plan.late_reports
            self.gateways.append(gateway)
        for _ in range(plan.replicas):
            self._scale_out()

    def complain(self, text: str) -> None:
        self.run.complain(f"at {self.calendar.now_s:.4f} s: {text}")

    def play(self) -> None:
        """To the end, or the first violation."""
        plan, draw, calendar = self.plan, self._draw, self.calendar
        calendar.at(self.begin_s, self._traffic)
        for number in range(plan.sequences):
            calendar.at(self.begin_s + draw.random(), self._sequence, number)
        for rate, happen in ((plan.faults, self._fault), (plan.changes, self._change)):
            time_s = self.begin_s + (draw.expovariate(rate) if rate else math.inf)
            while time_s < self.begin_s + FAULTS_S:
                calendar.at(time_s, happen)
                time_s += draw.expovariate(rate)
        calendar.run(END_S, self._goes_on)
        if not self.run.violation:
            for gateway in self.gateways:
                for ask in gateway.waiting:
                    self.complain(f"a request of {ask.submitted_s:.3f} s is never answered: {ask.ends}")

    def _goes_on(self) -> bool:
        if self.calendar.now_s <= self._ends_s + 1:
            return not self.run.violation
        return not self.run.violation and any(gateway.waiting for gateway in self.gateways)

    @property
    def _ends_s(self) -> float:
        """When the last requests come."""
        return self.begin_s + FAULTS_S + CALM_S + 1

    # ---- clients ----

    def _traffic(self) -> None:
        """Requests without a sequence, until the end of the liveness phase."""
        draw, plan = self._draw, self.plan
        now_s = self.calendar.now_s
        if now_s > self._ends_s:
            return
        calms_down = FAULTS_S < now_s - self.begin_s < FAULTS_S + CALM_S
        self.calendar.after(draw.expovariate(plan.rate * self.surge) * (4 if calms_down else 1), self._traffic)
        for _ in range(draw.choice((1, 1, 1, 4))):
            sticky = str(draw.randrange(plan.keys)).encode() if plan.keys and draw.random() < 0.5 else None
            gateway = draw.choice(self.gateways)
            ask = ClientAsk(self.request(sticky), then=self._answered)
            gateway.submit(ask)
            if draw.random() < 0.05:
                self.calendar.after(0.05 * draw.random(), gateway.give_up, ask)

    def request(self, sticky: bytes | None) -> FleetRequest:
        """What a client asks for."""
        return FleetRequest(MODEL, sticky=sticky)

    def model_of(self, number: int) -> str:
        """Which model a client's sequences are for."""
        del number
        return MODEL

    def _answered(self, ask: ClientAsk) -> None:
        self.run.counts["answered" if ask.answer == "ok" else "failed"] += 1
        if len(ask.ends) > 1:
            self.run.counts["looked up" if ask.request.sequence and not ask.request.start else "retried"] += 1
        if ask.answer.startswith("refused"):
            self.run.counts["refused"] += 1
        if ask.answer not in ("ok", "given up"):
            self._explain(ask, ask.submitted_s)
        elif ask.answer == "ok" and not ask.executed:
            self.complain("a request is answered and was not executed")

    def _explain(self, ask: ClientAsk, since_s: float, at: str = "") -> None:
        """Promise 2: which fault a failure comes of."""
        for replica, end, sent_s, ended_s in ask.ends[-1:]:
            refused = end is AttemptEnd.REFUSED and self.plan.queue < 1000
            if refused or self._was_faulty(replica, sent_s, ended_s):
                return
            if end in NOT_TAKEN and self._is_unheard(replica, ended_s):
                return
            if end in NOT_TAKEN and self._alone(replica, sent_s, ended_s):
                return
        if at and self._was_faulty(at, since_s, self.calendar.now_s):
            return
        if not ask.ends and all(self._was_faulty(each, since_s, self.calendar.now_s) for each in self.replicas):
            return
        self.complain(f"a request of {ask.submitted_s:.3f} s fails without a fault: {ask.answer}, {ask.ends}")

    def _is_unheard(self, replica: str, at_s: float) -> bool:
        """Whether all its reports have been lost of late, those included that say that it drains."""
        links = [gateway.links[replica] for gateway in self.gateways if replica in gateway.links]
        return any(at_s - link.told_s > UNHEARD_S for link in links)

    def _alone(self, replica: str, since_s: float, until_s: float) -> bool:
        """Whether all others could not take what one refused."""
        others = [each for name, each in self.replicas.items() if name != replica]
        return all(each.draining or self._was_faulty(each.name, since_s, until_s) for each in others)

    def _was_faulty(self, replica: str, since_s: float, until_s: float) -> bool:
        return any(begin <= until_s and since_s <= end for begin, end in self._faulty.get(replica, ()))

    def _sequence(self, number: int) -> None:
        """A client that sends sequences, one after the other."""
        if self.calendar.now_s > self._ends_s:
            return
        self._lives += 1
        if self.plan.hops:  # who changes gateways takes another id each time
            number = 1000 + self._lives
        gateway = self._draw.choice(self.gateways)
        length = self._draw.choice((1, 2, 5, 10))
        pipelined = not self.plan.hops and self._draw.random() < 0.3
        _SequenceClient(self, number, self._lives, gateway, length, pipelined).go_on()

    # ---- what happens ----

    def _fault(self) -> None:
        kinds: list[Callable[[SimulatedReplica], None]] = [self._kill, self._cut, self._fail, self._slow]
        standing = [each for each in self.replicas.values() if each.alive and not each.draining]
        if standing:
            self._draw.choice(kinds)(self._draw.choice(standing))

    def _strike(self, replica: SimulatedReplica, last_s: float) -> None:
        """Something is wrong with it for so long, and a moment more."""
        now_s = self.calendar.now_s
        self._faulty.setdefault(replica.name, []).append([now_s, now_s + last_s])

    def _kill(self, replica: SimulatedReplica) -> None:
        self.run.counts["killed"] += 1
        away_s = 0.2 + self._draw.random()
        self._strike(replica, away_s + 0.2)
        replica.kill()
        for gateway in self.gateways:
            link = gateway.links.get(replica.name)
            if link is not None:
                self.calendar.after(0.002 * self._draw.random(), link.lose)
        self.calendar.after(away_s, self._restart, replica)

    def _restart(self, replica: SimulatedReplica) -> None:
        if replica.name in self.replicas:
            replica.start()

    def _cut(self, replica: SimulatedReplica) -> None:
        """A partition between it and one gateway, or all."""
        self.run.counts["cut"] += 1
        lasts_s = self._draw.choice((0.1, 1.0))
        self._strike(replica, NOTICE_S + lasts_s + 0.2)
        gateways = self.gateways if self._draw.random() < 0.5 else [self._draw.choice(self.gateways)]
        for gateway in gateways:
            link = gateway.links.get(replica.name)
            if link is not None:
                link.cut = True
                self.calendar.after(NOTICE_S, link.lose)
                self.calendar.after(NOTICE_S + lasts_s, setattr, link, "cut", False)

    def _fail(self, replica: SimulatedReplica) -> None:
        """It answers everything with errors."""
        self.run.counts["failing"] += 1
        replica.failing = True
        self._strike(replica, 1.2)
        self.calendar.after(1.0, setattr, replica, "failing", False)

    def _slow(self, replica: SimulatedReplica) -> None:
        self.run.counts["slow"] += 1
        replica.slow = 10.0
        self.calendar.after(1.0, setattr, replica, "slow", 1.0)

    def _change(self) -> None:
        draw = self._draw
        standing = [each for each in self.replicas.values() if each.alive and not each.draining]
        kind = draw.choice(("out", "in", "upgrade"))
        if kind == "out":
            self.run.counts["scaled out"] += 1
            self._scale_out()
        elif len(standing) > 1:
            replica = draw.choice(standing)
            self.run.counts["scaled in" if kind == "in" else "upgraded"] += 1
            replica.draining = True
            self.calendar.after(1.0, self._drain, replica, kind == "upgrade")

    def _scale_out(self) -> None:
        plan = self.plan
        replica = SimulatedReplica(
            self._new_name(), self.calendar, self._draw, plan.service_s, plan.instances, plan.queue
        )
        replica.complain = self.complain
        self.replicas[replica.name] = replica
        for gateway in self.gateways:
            gateway.join(replica)

    def _new_name(self) -> str:
        self._ids += 1
        return f"r{self._ids}"

    def _drain(self, replica: SimulatedReplica, comes_back: bool) -> None:
        """When it has nothing more to do it stops; then it leaves the fleet, or comes back as another process."""
        if not replica.alive or not replica.draining:
            return  # it was killed meanwhile
        knowing = [each for each in self.gateways if replica.name in each.links]
        at_it = any(gateway.router.sequences_at(replica.name) for gateway in knowing)
        if not replica.stopping and (not replica.idle or at_it) and self.calendar.now_s < END_S - 10:
            self.calendar.after(0.1, self._drain, replica, comes_back)
            return
        if not replica.stopping:
            self._stop(replica)
            self.calendar.after(0.3, self._drain, replica, comes_back)
            return
        if comes_back:
            replica.kill()
            for gateway in self.gateways:
                gateway.links[replica.name].lose(told=True)
            self.calendar.after(0.3, self._restart, replica)
            return
        self._end(replica)

    def _stop(self, replica: SimulatedReplica) -> None:
        """It refuses what comes from now on."""
        replica.stopping = True

    def _end(self, replica: SimulatedReplica) -> None:
        """It has nothing to do any more, and leaves the fleet."""
        del self.replicas[replica.name]
        for gateway in self.gateways:
            gateway.leave(replica.name)
        replica.kill()


class _SequenceClient:
    """Sends the requests of one sequence, in order, one after the other or at once; if one fails, it starts again."""

    def __init__(
        self, swarm: FleetSwarm, number: int, life: int, gateway: SimulatedGateway, length: int, pipelined: bool
    ) -> None:
        self._swarm = swarm
        self._id = number
        self._life = life
        self._model = swarm.model_of(number)
        self._gateway = gateway
        self._length = length
        self._pipelined = pipelined
        self._next = 0
        self._left = 0
        self._at = ""
        self._failed = False
        self._began_s = swarm.calendar.now_s

    def go_on(self) -> None:
        """Send the next request, or all that are left."""
        if self._next >= self._length:
            return
        for _ in range(self._length - self._next if self._pipelined else 1):
            index, self._next = self._next, self._next + 1
            last = self._next == self._length
            request = FleetRequest(self._model, sequence=self._id, start=index == 0, end=last)
            self._left += 1
            gateway = self._swarm._draw.choice(self._swarm.gateways) if self._swarm.plan.hops else self._gateway
            gateway.submit(ClientAsk(request, self._life, index, self._pipelined, then=self._answered))

    def _answered(self, ask: ClientAsk) -> None:
        swarm = self._swarm
        self._left -= 1
        swarm.run.counts["sequence answered" if ask.answer == "ok" else "sequence failed"] += 1
        if len(ask.ends) > 1:
            swarm.run.counts["retried" if ask.request.start else "looked up"] += 1
        if ask.answer == "ok":
            if not ask.executed:
                swarm.complain("a request is answered and was not executed")
            self._at = ask.executed[0] if ask.executed else ""
        elif not self._failed:
            self._failed = True
            swarm._explain(ask, self._began_s, self._at)
        if self._left:
            return
        think_s = swarm._draw.choice((0.01, 0.1, 0.5))
        if self._failed or self._next == self._length:
            swarm.calendar.after(think_s, swarm._sequence, self._id)
        else:
            swarm.calendar.after(think_s, self.go_on)
