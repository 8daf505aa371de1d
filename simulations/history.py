"""The history of a simulated world: its events in order, their canonical bytes, and the hash of these.

The `Recorder` writes it. Listeners (invariants, counters) register by kind of event, so that an event costs nothing for
kinds without a listener.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, get_args

from ..engine.errors import InvalidArgumentError, TriremeError
from ..engine.job import ExecutionBatch, Job, Outcome
from ..engine.request import InferenceRequest, InferenceResponse
from .events import BatchSealed, Event, ExecutionEnded, ExecutionStarted
from .oracle.observed import Measured

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
        lines = (json.dumps(_as_dict(event), separators=(",", ":")) for event in self.events)
        return "".join(line + "\n" for line in lines).encode("ascii")

    def digest(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def read_history(lines: Iterable[str]) -> History:
    """A history from its canonical form.

    Raises:
        InvalidArgumentError: a line is no event; the text has its number.
    """
    kinds = {kind.__name__: kind for kind in get_args(Event)}
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            kind = kinds[values.pop("event")]
            events.append(kind(**{name: _tuples(value) for name, value in values.items()}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"line {number} of the history is no event: {error}") from error
    return History(tuple(events))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def _as_dict(event: Event) -> dict[str, Any]:
    return {"event": type(event).__name__} | {field.name: getattr(event, field.name) for field in fields(event)}


Handlers = Mapping[type, Callable[[Any], None]]
"""By kind of event, what to call with each."""


class Now(Protocol):
    """Where the time of events comes from."""

    def now_ns(self) -> int: ...


class Recorder:
    """Writes a history. Everything that watches the same world shares one."""

    def __init__(self, clock: Now) -> None:
        self.now_ns = clock.now_ns
        self._events: list[Event] = []
        self._listeners: dict[type, list[Callable[[Any], None]]] = {}
        self._requests = 0
        self._batches = 0
        self._sealed: dict[Job, int] = {}  # by the first job of a batch that is no padding
        self._running: dict[ExecutionBatch, int] = {}

    def listen(self, handlers: Handlers) -> None:
        """Call these from now on. Listeners of one kind are called in the order in which they came."""
        for kind, handler in handlers.items():
            self._listeners.setdefault(kind, []).append(handler)

    def close(self) -> None:
        """Let go of the events and the listeners."""
        self._events = []
        self._listeners.clear()

    def record(self, event: Event) -> None:
        self._events.append(event)
        for handler in self._listeners.get(type(event), ()):
            handler(event)

    def tell(self, observation: object) -> None:
        """Let listeners know of something that is no part of the history."""
        for handler in self._listeners.get(type(observation), ()):
            handler(observation)

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    def batch_sealed(self, model: str, jobs: Sequence[Job], instance: str, reason: str) -> None:
        """A scheduler sealed a batch: number it."""
        self._batches += 1
        first = _first(jobs)
        self._sealed[first] = self._batches
        numbers = tuple([request_number(job) for job in jobs])
        rows = sum([job.rows for job in jobs])
        self.record(
            BatchSealed(self.now_ns(), self._batches, model, first.model_version, instance, reason, numbers, rows)
        )

    def batch_started(self, batch: ExecutionBatch) -> int:
        """An instance took this batch; its number."""
        number = self._running[batch] = self._sealed.pop(_first(batch.jobs))
        self.record(ExecutionStarted(self.now_ns(), number))
        return number

    def batch_ended(self, batch: ExecutionBatch, ending: str) -> None:
        number, now_ns = self._running.pop(batch), self.now_ns()
        self.tell(Measured(number, *_completed(batch.marks, now_ns)))
        self.record(ExecutionEnded(now_ns, number, ending))

    def number_of(self, batch: ExecutionBatch) -> int:
        """Number of a batch in execution; 0 for one that this recorder has not seen start."""
        return self._running.get(batch, 0)

    def history(self) -> History:
        """What was recorded so far."""
        return History(tuple(self._events))


def _completed(marks: Sequence[int], now_ns: int) -> Iterator[int]:
    """The time marks of a batch that is over by now: one that was not taken equals the next one."""
    start_ns, *later = (mark if mark >= 0 else None for mark in marks)
    yield now_ns if start_ns is None else start_ns
    for index, mark in enumerate(later):
        yield next((each for each in later[index:] if each is not None), now_ns) if mark is None else mark


def _first(jobs: Sequence[Job]) -> Job:
    """The first job of a batch that is no padding; there is one."""
    for job in jobs:
        if not job.is_null:
            return job
    raise AssertionError("a batch has a job that is no padding")


def error_text(outcome: Outcome) -> str:
    """An error's text, as it stands in events: that of a cancellation is empty, so its kind is named; "" for no
    error."""
    return outcome.message or outcome.kind.value if isinstance(outcome, TriremeError) else ""


ANSWER = "answer"
"""The parameter of a response that tells its number among the answers of a decoupled model."""


def answer_number(outcome: Outcome) -> int:
    """The number of a response among the answers of a decoupled model; 0 for anything else."""
    if isinstance(outcome, InferenceResponse) and outcome.parameters:
        return int(outcome.parameters.get(ANSWER, 0))
    return 0


def request_number(asked: Job | InferenceRequest) -> int:
    """Its number in the history: its id, if a client of the world gave it one."""
    number = asked.id
    return int(number) if number.isdecimal() else 0
