"""What happened in a simulated world: events with virtual times, their canonical bytes, and the hash of these.

Requests are numbered in the order in which the world's clients sent them, batches in the order in which instances took
them; both from 1. A request that did not come through the world's clients has number 0.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TypeVar

from ..engine.execution import ExecutionBatch
from .clock import VirtualClock


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """A client sent a request. `timeout_us` is the queue timeout that it asked for, 0 for none."""

    at_ns: int
    request: int
    model: str
    rows: int
    priority: int
    timeout_us: int


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """A client has its answer: an error's text, or "" for a response."""

    at_ns: int
    request: int
    error: str


@dataclass(frozen=True, slots=True)
class RequestAbandoned:
    """A client gave up waiting."""

    at_ns: int
    request: int


@dataclass(frozen=True, slots=True)
class BatchSealed:
    """A scheduler closed a batch for an instance. Seen when the instance takes it, which is at the same instant, since
    only idle instances are given batches. `reason` is a `SealReason`'s value."""

    at_ns: int
    batch: int
    model: str
    version: int
    instance: str
    reason: str
    requests: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    at_ns: int
    batch: int


@dataclass(frozen=True, slots=True)
class ExecutionEnded:
    """`ending` is "done" (each request has an answer, be it an error), "given up" (it hung, or the server stopped), or
    the name of the exception that the instance died of."""

    at_ns: int
    batch: int
    ending: str


@dataclass(frozen=True, slots=True)
class KernelStarted:
    """A GPU began a kernel, or a copy: `engine` is an `Engine`'s value, `units` what it occupies of it."""

    at_ns: int
    gpu: str
    stream: int
    kernel: str
    engine: str
    units: int
    batch: int


@dataclass(frozen=True, slots=True)
class KernelEnded:
    at_ns: int
    gpu: str
    stream: int
    kernel: str
    batch: int


Event = (
    RequestSubmitted
    | RequestAnswered
    | RequestAbandoned
    | BatchSealed
    | ExecutionStarted
    | ExecutionEnded
    | KernelStarted
    | KernelEnded
)
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class History:
    """Everything that happened, in order."""

    events: tuple[Event, ...]

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def to_bytes(self) -> bytes:
        """The canonical form: JSON lines, one an event, in ASCII."""
        lines = (
            json.dumps({"event": type(event).__name__, **asdict(event)}, separators=(",", ":")) for event in self.events
        )
        return "".join(line + "\n" for line in lines).encode("ascii")

    def digest(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


class Recorder:
    """Writes a history. Everything that watches the same world shares one."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._requests = 0
        self._batches = 0
        self._running: dict[ExecutionBatch, int] = {}

    @staticmethod
    def now_ns() -> int:
        return VirtualClock.now_ns()

    def record(self, event: Event) -> None:
        self._events.append(event)

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    def batch_started(self, batch: ExecutionBatch) -> int:
        """An instance took this batch: number it, and record so."""
        self._batches += 1
        number = self._running[batch] = self._batches
        now_ns = self.now_ns()
        first = batch.jobs[0]
        requests = tuple(int(job.id) if job.id.isdecimal() else 0 for job in batch.jobs)
        self.record(
            BatchSealed(
                now_ns,
                number,
                first.model_name,
                first.model_version,
                batch.instance_name,
                batch.sealed.value,
                requests,
                batch.rows,
            )
        )
        self.record(ExecutionStarted(now_ns, number))
        return number

    def batch_ended(self, batch: ExecutionBatch, ending: str) -> None:
        self.record(ExecutionEnded(self.now_ns(), self._running.pop(batch), ending))

    def number_of(self, batch: ExecutionBatch) -> int:
        """Number of a batch in execution; 0 for one that this recorder has not seen start."""
        return self._running.get(batch, 0)

    def history(self) -> History:
        """What was recorded so far."""
        return History(tuple(self._events))
