"""Swarm runs of a fleet: gateways, replicas, and what goes wrong between them, drawn from a seed.

Kinds of runs:
- CALM: nothing goes wrong, but that a tenth of the reports is late: load is even.
- UPGRADES: replicas drain, end and come back, one after the other, some leave and others join: no request is lost.
- ROUGH: replicas die, connections break, some are slow or fail, reports are late, versions come and go.

What always holds: each request is answered once, and executed once at most; the requests of a sequence are executed in
order, by one process; requests go where they may go (`gateway`); retries stay within their budget; soon after the last
trouble everything is answered again; and nothing is left over.
"""

from __future__ import annotations

import enum
from collections import Counter
from functools import partial
from random import Random

from ...engine.fleet.types import FleetRequest, FleetSettings
from ..drawn_run import DrawnRun
from .events import FleetTime
from .gateway import SimulatedGateway
from .records import RequestRecord, SequenceRecord
from .replica import SimulatedReplica

REPORT_S = 0.1
RECONNECT_S = 0.2
RECOVERED_S = 1.0
"""After the last trouble: a connection has come back, and a report."""


class FleetTrouble(enum.Enum):
    """Kinds of runs."""

    CALM = "calm"
    UPGRADES = "upgrades"
    ROUGH = "rough"


def play_fleet(seed: int, trouble: FleetTrouble | None = None) -> DrawnRun:
    """Play one run to its end."""
    draw = Random(f"fleet {seed}")
    swarm = _Swarm(draw, trouble or draw.choices(list(FleetTrouble), (1, 3, 6))[0])
    swarm.play()
    return swarm.run


class _Swarm:
    """A run in the making."""

    def __init__(self, draw: Random, trouble: FleetTrouble) -> None:
        self.run = DrawnRun()
        self._draw = draw
        self._trouble = trouble
        self._time = FleetTime()
        self._length_s = draw.uniform(2.0, 6.0)
        self._settings = FleetSettings(
            slow_start_s=draw.choice((0.0, 1.0)),
            eject_s=draw.choice((0.2, 1.0)),
            retry_burst=draw.choice((2, 10)),
            most_attempts=draw.choice((2, 3)),
            lookups=8,
            load_bound=draw.choice((1.1, 1.25, 2.0)),
        )
        self._requests: list[RequestRecord] = []
        self._sequences: list[SequenceRecord] = []
        self._late_reports = draw.choice((0.0, 0.1, 0.5)) if trouble is not FleetTrouble.CALM else 0.1
        self._models = draw.choice(({"m": {1: True}}, {"m": {1: True, 2: True}}, {"m": {1: False, 2: True}}))
        self._made = 0
        self._replicas = [self._replica() for _ in range(draw.randint(2, 6))]
        self._gateways = [
            SimulatedGateway(self._time, draw, self._settings, self.run.complain, draw.randrange(1 << 30))
            for _ in range(draw.randint(1, 3))
        ]
        self._troubled_s = 0.0
        self._last_sequence = self._roaming = 0

    def _replica(self) -> SimulatedReplica:
        self._made += 1
        instances = 4 if self._trouble is FleetTrouble.CALM else self._draw.choice((1, 2, 4))
        return SimulatedReplica(f"r{self._made}", self._time, self._draw, dict(self._models), instances)

    def play(self) -> None:
        """To the end, and look at what came of it."""
        for gateway in self._gateways:
            for replica in self._replicas:
                self._follow(gateway, replica)
        self._time.run(1.0)
        begin_s = self._time.now_s = 1.0
        self._plan_requests(begin_s)
        if self._trouble is FleetTrouble.UPGRADES:
            self._time.after(0.2, self._upgrade)
        elif self._trouble is FleetTrouble.ROUGH:
            self._plan_rough(begin_s)
        self._time.run(begin_s + self._length_s + 60.0)
        self._judge()

    def _follow(self, gateway: SimulatedGateway, replica: SimulatedReplica) -> None:
        """Have a gateway know of a replica, and hear its reports, and come back to it."""
        link = gateway.join(replica)

        def hear() -> None:
            if gateway.links.get(replica.name) is not link or self._time.now_s > self._length_s + 50:
                return
            if not link.connected:
                self._time.after(RECONNECT_S, link.connect)
            elif self._draw.random() >= self._late_reports:
                link.hear()
            self._time.after(REPORT_S, hear)

        self._time.after(self._draw.uniform(0.3, 0.4), hear)

    # ---- clients ----

    def _plan_requests(self, begin_s: float) -> None:
        draw = self._draw
        capacity_hz = sum(4 if self._trouble is FleetTrouble.CALM else 1 for _ in self._replicas) * 100.0
        rate_hz = min(capacity_hz * draw.uniform(0.2, 0.8), 400.0)
        keyed = draw.choice((0.0, 0.0, 0.3)) if self._trouble is not FleetTrouble.CALM else 0.0
        at_s = begin_s
        while at_s < begin_s + self._length_s:
            at_s += draw.expovariate(rate_hz)
            sticky = b"%d" % draw.randrange(20) if draw.random() < keyed else None
            version = draw.choice((-1, -1, 2)) if self._models["m"].get(2) else -1
            self._time.at(at_s, partial(self._ask_plainly, FleetRequest("m", version, sticky=sticky)))
        for _ in range(draw.choice((0, 5, 30)) if self._trouble is not FleetTrouble.CALM else 0):
            self._time.at(begin_s + draw.uniform(0, self._length_s), self._begin_sequence)

    def _ask_plainly(self, asked: FleetRequest) -> None:
        """A request of its own; some clients give up."""
        gateway = self._draw.choice(self._gateways)
        gateway.ask(record := self._record(asked))
        if self._trouble is FleetTrouble.ROUGH and self._draw.random() < 0.02:
            self._time.after(self._draw.uniform(0, 0.02), lambda: gateway.give_up(record))

    def _record(self, asked: FleetRequest, sequence: SequenceRecord | None = None, number: int = 0) -> RequestRecord:
        record = RequestRecord(asked, self._time.now_s, sequence, number)
        self._requests.append(record)
        return record

    def _begin_sequence(self) -> None:
        """A client's sequence: by one gateway, perhaps without waiting for answers, or each request by any of them."""
        draw = self._draw
        self._last_sequence += 1
        name: int | str = draw.choice((self._last_sequence, f"s{self._last_sequence}"))
        sequence = SequenceRecord()
        self._sequences.append(sequence)
        length = draw.randint(1, 8)
        gateway = draw.choice(self._gateways)
        pipelined = draw.random() < 0.5
        roams = not pipelined and draw.random() < 0.5
        think_s = draw.choice((0.0, 0.005, 0.1))
        self._roaming += roams

        def ask(number: int) -> None:
            if sequence.broken or number == length:
                return
            asked = FleetRequest("m", sequence=name, start=number == 0, end=number == length - 1)
            through = draw.choice(self._gateways) if roams else gateway
            record = self._record(asked, sequence, number)
            if not pipelined:
                record.then = lambda _outcome: self._time.after(think_s, lambda: ask(number + 1))
            through.ask(record)
            if pipelined:
                self._time.after(think_s, lambda: ask(number + 1))

        ask(0)

    # ---- trouble ----

    def _plan_rough(self, begin_s: float) -> None:
        draw = self._draw
        for _ in range(draw.randint(1, 8)):
            at_s = begin_s + draw.uniform(0, 0.8 * self._length_s)
            lasts_s = draw.uniform(0.05, 1.0)
            kind = draw.choice((self._kill, self._cut, self._slow, self._fail, self._unload, self._upgrade_one))
            self._time.at(at_s, lambda do=kind, until_s=lasts_s: do(draw.choice(self._replicas), until_s))

    def _until(self, lasts_s: float) -> None:
        self._troubled_s = max(self._troubled_s, self._time.now_s + lasts_s)

    def _kill(self, replica: SimulatedReplica, lasts_s: float) -> None:
        if replica.up:
            self.run.counts["killed"] += 1
            self._until(lasts_s)
            self._end(replica, lasts_s)

    def _end(self, replica: SimulatedReplica, away_s: float) -> None:
        """The process ends, and is started again after a while."""
        replica.die()
        for gateway in self._gateways:
            if replica.name in gateway.links:
                gateway.links[replica.name].lose()
        self._time.after(away_s, replica.start)

    def _cut(self, replica: SimulatedReplica, lasts_s: float) -> None:
        self.run.counts["cut"] += 1
        self._until(RECONNECT_S)
        link = self._draw.choice(self._gateways).links.get(replica.name)
        if link is not None:
            link.lose()

    def _slow(self, replica: SimulatedReplica, lasts_s: float) -> None:
        self.run.counts["slow"] += 1
        self._until(lasts_s)
        replica.slowness, replica.queue_size = self._draw.choice((5.0, 50.0)), 5

        def recover() -> None:
            replica.slowness, replica.queue_size = 1.0, 1_000

        self._time.after(lasts_s, recover)

    def _fail(self, replica: SimulatedReplica, lasts_s: float) -> None:
        self.run.counts["failing"] += 1
        self._until(lasts_s + self._settings.eject_s)
        replica.failing = self._draw.choice((0.3, 1.0))
        self._time.after(lasts_s, lambda: setattr(replica, "failing", 0.0))

    def _unload(self, replica: SimulatedReplica, lasts_s: float) -> None:
        self.run.counts["unloaded"] += 1
        self._until(lasts_s)
        before, replica.models = replica.models, {"m": dict.fromkeys(self._models["m"], False)}
        self._time.after(
            lasts_s, lambda: setattr(replica, "models", {name: dict(each) for name, each in before.items()})
        )

    def _upgrade_one(self, replica: SimulatedReplica, _lasts_s: float) -> None:
        self._drain(replica, self._time.now_s + 2.0, lambda: None)

    def _upgrade(self) -> None:
        """All replicas that there are now, one after the other; then perhaps one leaves, and one joins."""
        left = list(self._replicas)

        def go_on() -> None:
            if left:
                self._drain(left.pop(), self._time.now_s + 30.0, lambda: self._time.after(0.6, go_on))
            elif self._draw.random() < 0.7:
                self._scale()

        go_on()

    def _scale(self) -> None:
        new = self._replica()
        self._replicas.append(new)
        for gateway in self._gateways:
            self._follow(gateway, new)
        self.run.counts["joined"] += 1
        self._time.after(0.6, lambda: self._drain(self._replicas[0], self._time.now_s + 30.0, self._leave))

    def _leave(self) -> None:
        self.run.counts["left"] += 1
        for gateway in self._gateways:
            gateway.leave(self._replicas[0].name)

    def _drain(self, replica: SimulatedReplica, limit_s: float, then: object) -> None:
        """As a server ends: it says that it drains, answers what comes, and ends when it has nothing any more."""
        if replica.draining or not replica.up:
            return
        replica.draining = True
        process = replica.process
        told_s = self._time.now_s + (0.0 if self._trouble is FleetTrouble.ROUGH else 20 * REPORT_S)
        self.run.counts["drained"] += 1

        def look() -> None:
            if replica.process != process or not replica.up:
                return
            if self._time.now_s < limit_s and (replica.busy or self._time.now_s < told_s):
                self._time.after(0.05, look)
                return
            self._until(0.1)
            self._end(replica, 0.1)
            if callable(then):
                then()

        look()

    # ---- what came of it ----

    def _judge(self) -> None:
        run = self.run
        for record in self._requests:
            self._judge_request(record)
        for sequence in self._sequences:
            numbers = [number for number, _ in sequence.executed]
            places = {place for _, place in sequence.executed}
            if numbers != sorted(set(numbers)) or len(places) > 1:
                run.complain(f"a sequence was executed as {sequence.executed}")
            run.counts["sequences whole" if not sequence.broken else "sequences broken"] += 1
        for gateway in self._gateways:
            if gateway.leftovers():
                run.complain(gateway.leftovers())
            if self._trouble is not FleetTrouble.ROUGH and gateway.router.sequences > self._roaming:
                run.complain(f"{gateway.router.sequences} sequences are known when all have ended")
            most = self._settings.retry_burst + self._settings.retry_budget * gateway.requests
            if gateway.retried > most:
                run.complain(f"{gateway.retried} retries of {gateway.requests} requests")
            run.counts["retried"] += gateway.retried
        if self._trouble is FleetTrouble.CALM:
            self._judge_load()
        run.counts[self._trouble.value] += 1

    def _judge_request(self, record: RequestRecord) -> None:
        run = self.run
        if len(record.outcomes) != 1:
            run.complain(f"a request has the outcomes {record.outcomes}")
            return
        if len(record.executed) > 1:
            run.complain(f"a request was executed at {record.executed}")
        (outcome,) = record.outcomes
        run.counts[outcome.split(":")[0]] += 1
        if outcome in ("answered", "given up"):
            return
        if self._trouble is not FleetTrouble.ROUGH:
            run.complain(f"a request ended with {outcome!r}, though replicas were replaced in order")
        elif record.sequence is None and record.came_s > self._troubled_s + RECOVERED_S + self._settings.wait_s:
            run.complain(f"a request ended with {outcome!r} long after the last trouble")

    def _judge_load(self) -> None:
        counts = Counter(place[0] for record in self._requests for place in record.executed)
        mean = sum(counts.values()) / len(self._replicas)
        for replica in self._replicas:
            if mean >= 100 and abs(counts[replica.name] - mean) > 0.2 * mean:
                self.run.complain(f"load is not even: {dict(counts)}")
