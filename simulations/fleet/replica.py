"""A simulated replica: a queue, instances, sequences, and what it says of itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from ...engine.fleet.types import AttemptEnd, ModelLoad, ReplicaReport
from .events import FleetTime
from .records import RequestRecord

Versions = dict[str, dict[int, bool]]


@dataclass(eq=False, slots=True)
class Attempt:
    """A request at a replica. `ended` is called once, unless the replica dies or the attempt is given up before."""

    record: RequestRecord
    ended: Callable[[AttemptEnd], None]
    given_up: bool = False


class SimulatedReplica:
    """One replica, whose process may end and be started again.

    Attributes:
        process: how often it has been started again.
        up, draining: its state.
        models: what it has, which is a new object whenever that changes.
        slowness: by how much requests take longer than usual.
        failing: of its requests, so many fail.
    """

    def __init__(self, name: str, time: FleetTime, draw: Random, models: Versions, instances: int) -> None:
        self.name = name
        self.process = 0
        self.up = True
        self.draining = False
        self.models = models
        self.slowness = 1.0
        self.failing = 0.0
        self.queue_size = 1_000
        self._time = time
        self._draw = draw
        self._instances = instances
        self._queue: deque[tuple[Attempt, float]] = deque()
        self._running = 0
        self._sequences: dict[tuple[str, int | str], object] = {}
        self._queue_s = 0.0

    @property
    def busy(self) -> bool:
        """It has requests or sequences."""
        return bool(self._queue or self._running or self._sequences)

    def report(self) -> ReplicaReport:
        """What it says of itself now."""
        pending = len(self._queue) + self._running
        loads: Mapping[str, ModelLoad] = {"m": ModelLoad(pending, self._queue_s)} if pending else {}
        return ReplicaReport(f"{self.name} {self.process}", self.draining, self.models, loads)

    def receive(self, attempt: Attempt) -> None:
        """A request has come."""
        asked = attempt.record.asked
        key = (asked.name, asked.sequence)
        versions = self.models.get(asked.name, {})
        if not (any(versions.values()) if asked.version < 0 else versions.get(asked.version, False)):
            attempt.ended(AttemptEnd.REFUSED)
        elif asked.sequence and not asked.start and key not in self._sequences:
            attempt.ended(AttemptEnd.NOT_STARTED)
        elif len(self._queue) >= self.queue_size:
            attempt.ended(AttemptEnd.REFUSED)
        else:
            if asked.sequence:
                self._sequences[key] = None
            self._queue.append((attempt, self._time.now_s))
            self._go_on()

    def _go_on(self) -> None:
        while self._queue and self._running < self._instances:
            attempt, came_s = self._queue.popleft()
            if attempt.given_up:
                continue
            self._running += 1
            self._queue_s += 0.2 * (self._time.now_s - came_s - self._queue_s)
            process = self.process
            attempt.record.executed.append((self.name, process))
            if attempt.record.sequence is not None:
                attempt.record.sequence.executed.append((attempt.record.number, (self.name, process)))
            service_s = self._draw.expovariate(1 / 0.01) * self.slowness
            self._time.after(service_s, lambda each=attempt, which=process: self._executed(each, which))

    def _executed(self, attempt: Attempt, process: int) -> None:
        if process != self.process or not self.up:
            return
        self._running -= 1
        asked = attempt.record.asked
        if asked.sequence and asked.end:
            self._sequences.pop((asked.name, asked.sequence), None)
        failed = not asked.sequence and self._draw.random() < self.failing
        attempt.ended(AttemptEnd.FAILED if failed else AttemptEnd.ANSWERED)
        self._go_on()

    def die(self) -> None:
        """The process ends at once."""
        self.up = False
        self._queue.clear()
        self._running = 0
        self._sequences.clear()

    def start(self) -> None:
        """It is started again."""
        self.process += 1
        self.up = True
        self.draining = False
        self._queue_s = 0.0
