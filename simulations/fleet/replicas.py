"""Simulated replicas: servers with one model, a queue, some instances and sequences. They hold executions against what
clients have sent: nothing is executed twice, and a request of a sequence finds what the one before it left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from random import Random

from ...engine.fleet.types import AttemptEnd, FleetRequest, ModelLoad, ReplicaReport
from .events import Calendar

MODEL = "m"
READY = {MODEL: {1: True}}
NOTHING: dict[str, dict[int, bool]] = {}


@dataclass(eq=False)
class ClientAsk:
    """A client's request, with what only the simulation knows.

    Attributes:
        life: of its sequence: each START of a client begins a new one.
        index: its place in that; 0 for the first.
        pipelined: its client does not wait for the answers before it, some of which may be refused.
        submitted_s: when its gateway got it.
        ends: what came of its attempts: at which replica, how, when it was sent, when it ended.
        executed: at which replicas.
        answer: what the client got; empty as long as it waits.
    """

    request: FleetRequest
    life: int = 0
    index: int = 0
    pipelined: bool = False
    submitted_s: float = 0.0
    ends: list[tuple[str, AttemptEnd, float, float]] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    answer: str = ""
    then: Callable[[ClientAsk], None] | None = None


@dataclass(eq=False)
class _Live:
    """A sequence at a replica: whose it is, and which of its requests came last."""

    life: int
    index: int


@dataclass(eq=False)
class ReplicaWork:
    """A request at a replica; `answer` is called once with what came of it."""

    ask: ClientAsk
    answer: Callable[[AttemptEnd], None]


class SimulatedReplica:
    """One server.

    Attributes:
        alive: its process is there.
        stopping: it refuses what comes; what is queued is answered.
        failing: each execution fails.
        slow: times as long as usual.
    """

    def __init__(
        self, name: str, calendar: Calendar, draw: Random, service_s: float, instances: int, queue: int
    ) -> None:
        self.name = name
        self.alive = self.failing = self.draining = self.stopping = False
        self.slow = 1.0
        self.executed = 0
        self._life = 0
        self._calendar = calendar
        self._draw = draw
        self._service_s = service_s
        self._instances = instances
        self._most = queue
        self._queue: deque[tuple[float, ReplicaWork]] = deque(maxlen=queue)
        self._busy = 0
        self._queue_s = 0.0
        self._sequences: dict[int | str, _Live] = {}
        self.complain: Callable[[str], None] = print
        self.start()

    def start(self) -> None:
        """A new process, which knows nothing of the one before."""
        self._life += 1
        self.alive, self.draining, self.stopping, self.failing = True, False, False, False
        self.slow, self._busy, self._queue_s = 1.0, 0, 0.0
        self._queue.clear()
        self._sequences.clear()

    def kill(self) -> None:
        """What it had is never answered."""
        self.alive = False
        self._life += 1

    @property
    def idle(self) -> bool:
        """Nothing would be lost if it ended."""
        return not self._sequences and not self._queue and not self._busy

    def report(self) -> ReplicaReport:
        load = ModelLoad(len(self._queue) + self._busy, self._queue_s)
        return ReplicaReport(f"{self.name}/{self._life}", self.draining, READY, {MODEL: load})

    def take(self, work: ReplicaWork) -> None:
        """A request has arrived."""
        request = work.ask.request
        if self.stopping or len(self._queue) >= self._most:
            work.answer(AttemptEnd.REFUSED)
            return
        if request.sequence:
            if request.start:
                self._sequences[request.sequence] = _Live(work.ask.life, -1)
            elif request.sequence not in self._sequences:
                work.answer(AttemptEnd.NOT_STARTED)
                return
        self._queue.append((self._calendar.now_s, work))
        self._go_on()

    def drop(self, gone: Container[ReplicaWork]) -> None:
        """A connection is lost, and it notices: what came by it and is queued is cancelled, with its sequence."""
        for _, work in self._queue:
            if work in gone:
                self._sequences.pop(work.ask.request.sequence, None)
        kept = [each for each in self._queue if each[1] not in gone]
        self._queue = deque(kept, self._most)

    def _go_on(self) -> None:
        while self._queue and self._busy < self._instances:
            queued_s, work = self._queue.popleft()
            waited_s = self._calendar.now_s - queued_s
            self._queue_s += (waited_s - self._queue_s) / 8
            self._busy += 1
            self._execute(work.ask)
            service_s = self._service_s * self.slow * self._draw.uniform(0.5, 1.5)
            self._calendar.after(service_s, self._done, work, self._life)

    def _execute(self, ask: ClientAsk) -> None:
        self.executed += 1
        ask.executed.append(self.name)
        if len(ask.executed) > 1:
            self.complain(f"a request is executed twice, at {ask.executed}")
        request = ask.request
        if not request.sequence:
            return
        live = self._sequences.get(request.sequence)
        if live is None or live.life != ask.life:
            self.complain(f"sequence {request.sequence}, life {ask.life} is executed at {self.name}, which has {live}")
        elif ask.index <= live.index:
            self.complain(f"request {ask.index} of sequence {request.sequence} is executed after {live.index}")
        elif ask.index != live.index + 1 and not ask.pipelined:
            self.complain(f"request {ask.index} of sequence {request.sequence} is executed next to {live.index}")
        else:
            live.index = ask.index
        if request.end and live is not None:
            del self._sequences[request.sequence]

    def _done(self, work: ReplicaWork, life: int) -> None:
        if life != self._life or not self.alive:
            return
        self._busy -= 1
        work.answer(AttemptEnd.FAILED if self.failing else AttemptEnd.ANSWERED)
        self._go_on()
