"""Simulated replicas: servers with models that have a queue, some instances and sequences. They hold executions against
what clients have sent: nothing is executed twice, and a request of a sequence finds what the one before it left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from random import Random

from ...engine.fleet.types import AttemptEnd, FleetRequest, ModelLoad, ReplicaReport
from ...engine.request import LATEST
from .events import Calendar

MODEL = "m"
READY = {MODEL: {1: True}}


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


@dataclass(eq=False, slots=True)
class _Live:
    """A sequence at a replica: whose it is, and which of its requests came last."""

    life: int
    index: int


@dataclass(eq=False, slots=True)
class ReplicaWork:
    """A request at a replica; `answer` is called once with what came of it."""

    ask: ClientAsk
    answer: Callable[[AttemptEnd], None]
    queued_s: float = 0.0


@dataclass(eq=False, slots=True)
class ModelWork:
    """What a replica has to do for a model, and has done.

    Attributes:
        busy: instances.
        late_queue_s: mean of late.
        count, queue_s, busy_s: of all requests since the start: how many, in queues, executing.
    """

    queue: deque[ReplicaWork] = field(default_factory=deque)
    busy: int = 0
    late_queue_s: float = 0.0
    count: int = 0
    queue_s: float = 0.0
    busy_s: float = 0.0


class SimulatedReplica:
    """One server.

    Attributes:
        models: as it reports them; another object when they have changed.
        work: by model.
        alive: its process is there.
        stopping: it refuses what comes; what is queued is answered.
        failing: each execution fails.
        slow: times as long as usual.
    """

    def __init__(
        self,
        name: str,
        calendar: Calendar,
        draw: Random,
        service_s: float,
        instances: int,
        queue: int,
        models: Mapping[str, Mapping[int, bool]] = READY,
    ) -> None:
        self.name = name
        self.models = models
        self.work: dict[str, ModelWork] = {}
        self.alive = self.failing = self.draining = self.stopping = False
        self.slow = 1.0
        self.executed = 0
        self.life = 0
        self.calendar = calendar
        self.draw = draw
        self.instances = instances
        self._service_s = service_s
        self._most = queue
        self._sequences: dict[tuple[str, int | str], _Live] = {}
        self.complain: Callable[[str], None] = print
        self.start()

    def start(self) -> None:
        """A new process, which knows nothing of the one before."""
        self.life += 1
        self.alive, self.draining, self.stopping, self.failing = True, False, False, False
        self.slow = 1.0
        self.work = {}
        self._sequences.clear()

    def kill(self) -> None:
        """What it had is never answered."""
        self.alive = False
        self.life += 1

    @property
    def idle(self) -> bool:
        """Nothing would be lost if it ended."""
        return not self._sequences and not any(work.queue or work.busy for work in self.work.values())

    def report(self) -> ReplicaReport:
        loads = {name: ModelLoad(len(work.queue) + work.busy, work.late_queue_s) for name, work in self.work.items()}
        return ReplicaReport(f"{self.name}/{self.life}", self.draining, self.models, loads)

    def has_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether a request for it would be taken, if there is room."""
        versions = self.models.get(name)
        return versions is not None and (any(versions.values()) if version == LATEST else versions.get(version, False))

    def take(self, work: ReplicaWork) -> None:
        """A request has arrived. What goes on with a sequence is served as long as that lives, also if the model is
        about to leave."""
        request = work.ask.request
        at = self.work.get(request.name)
        if at is None:
            at = self.work[request.name] = ModelWork()
        key = (request.name, request.sequence)
        lives = bool(request.sequence) and not request.start and key in self._sequences
        if self.stopping or not (lives or self.has_ready(request.name, request.version)):
            work.answer(AttemptEnd.ABSENT)
            return
        if len(at.queue) >= self._most:
            work.answer(AttemptEnd.REFUSED)
            return
        if request.start and request.sequence:
            self._sequences[key] = _Live(work.ask.life, -1)
        elif request.sequence and not lives:
            work.answer(AttemptEnd.NOT_STARTED)
            return
        work.queued_s = self.calendar.now_s
        at.queue.append(work)
        self._go_on(at)

    def drop(self, gone: Container[ReplicaWork]) -> None:
        """A connection is lost, and it notices: what came by it and is queued is cancelled, with its sequence."""
        for name, at in self.work.items():
            for work in at.queue:
                if work in gone:
                    self._sequences.pop((name, work.ask.request.sequence), None)
            at.queue = deque((each for each in at.queue if each not in gone), self._most)

    def _go_on(self, at: ModelWork) -> None:
        while at.queue and at.busy < self.instances:
            work = at.queue.popleft()
            waited_s = self.calendar.now_s - work.queued_s
            at.late_queue_s += (waited_s - at.late_queue_s) / 8
            at.count, at.queue_s, at.busy = at.count + 1, at.queue_s + waited_s, at.busy + 1
            self._execute(work.ask)
            service_s = self._service_s * self.slow * self.draw.uniform(0.5, 1.5)
            at.busy_s += service_s
            self.calendar.after(service_s, self._done, work, at, self.life)

    def _execute(self, ask: ClientAsk) -> None:
        self.executed += 1
        ask.executed.append(self.name)
        if len(ask.executed) > 1:
            self.complain(f"a request is executed twice, at {ask.executed}")
        if ask.request.sequence:
            self._execute_of_sequence(ask, ask.request)

    def _execute_of_sequence(self, ask: ClientAsk, request: FleetRequest) -> None:
        key = (request.name, request.sequence)
        live = self._sequences.get(key)
        if live is None or live.life != ask.life:
            self.complain(f"sequence {request.sequence}, life {ask.life} is executed at {self.name}, which has {live}")
        elif ask.index <= live.index:
            self.complain(f"request {ask.index} of sequence {request.sequence} is executed after {live.index}")
        elif ask.index != live.index + 1 and not ask.pipelined:
            self.complain(f"request {ask.index} of sequence {request.sequence} is executed next to {live.index}")
        else:
            live.index = ask.index
        if request.end and live is not None:
            del self._sequences[key]

    def _done(self, work: ReplicaWork, at: ModelWork, life: int) -> None:
        if life != self.life or not self.alive:
            return
        at.busy -= 1
        work.answer(AttemptEnd.FAILED if self.failing else AttemptEnd.ANSWERED)
        self._go_on(at)
