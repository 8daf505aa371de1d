"""What statistics must say of a model with instances: how often, how many, and for how long
(docs/reference/statistics.md#what-each-event-counts).

All of it is added up from what was seen outside: when a request was sent, queued, settled and answered, and when its
batch was executed. At the end of a run the server's own statistics are held against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...engine.errors import FailureReason
from ...engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry
from ..events import (
    AnswerFound,
    BatchSealed,
    ExecutionStarted,
    ReplyDelivered,
    RequestDropped,
    RequestQueued,
    RequestRejected,
    RequestRescheduled,
    RequestSubmitted,
)
from ..generations import model_of
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.queueing import EXPIRED, TOO_LATE
from ..invariants.state import WorldState
from .decisions import CANCELLED
from .leaving import Order, order_of
from .observed import CameToCache, DroppedAtDoor, Measured, ToldSettled

REASONS = {
    EXPIRED: FailureReason.REJECTED.value,
    TOO_LATE: FailureReason.REJECTED.value,
    "timeout of the corresponding sequence has been expired": FailureReason.REJECTED.value,
    CANCELLED: FailureReason.CANCELED.value,
}
"""Failures that are told apart, by their errors."""

PHASES = ("compute_input", "compute_infer", "compute_output")

SPANS = ("success", "queue", "cache_hit", *PHASES)

MOST_CALLS = 16
"""A miss costs two calls at least, and less than so many, with all waiting (`slow_caches`)."""

FIRST = "first responses"

Marks = tuple[int, int, int, int]
"""When an execution began, when its inputs were there, when its outputs were, and when it ended; in ns."""


@dataclass(slots=True)
class _Request:
    """A request that was queued. `ended_ns`: when it was settled or left the queue; -1 for not yet."""

    model: str
    rows: int
    received_ns: int
    queued_ns: int
    ended_ns: int = -1
    batch: int = 0
    marks: Marks | None = None
    responded: bool = False


@dataclass(slots=True)
class _Model:
    """What is to be counted for a model. `inexact`: when its answers were given is not seen; `unsure`: whether a
    request whose first answer was an error has had a response. `spans`: by name, how many, and the sums of their ns and
    of their whole us; `executions`: by rows, the ns of each phase."""

    decoupled: bool
    inexact: bool
    unsure: bool = False
    tally: Counter[str] = field(default_factory=Counter)
    spans: dict[str, list[int]] = field(default_factory=lambda: {name: [0, 0, 0] for name in SPANS})
    executions: dict[int, list[int]] = field(default_factory=dict)

    def spent(self, name: str, span_ns: int) -> None:
        span = self.spans[name]
        span[0] += 1
        span[1] += span_ns
        span[2] += span_ns // 1_000

    def executed(self, rows: int, marks: Marks) -> None:
        begin_ns, infer_ns, output_ns, end_ns = marks
        counted = self.executions.setdefault(rows, [0, 0, 0, 0])
        counted[0] += 1
        counted[1] += infer_ns - begin_ns
        counted[2] += output_ns - infer_ns
        counted[3] += end_ns - output_ns

    def whole(self) -> Counter[str]:
        """All of it, by the names of `tally_of`."""
        tally = self.tally.copy()
        for name, (number, span_ns, span_us) in self.spans.items():
            tally[name], tally[f"{name} ns"], tally[f"{name} us"] = number, span_ns, span_us
        for rows, (number, *phases_ns) in self.executions.items():
            tally[f"batches of {rows}"] = number
            for phase, phase_ns in zip(PHASES, phases_ns, strict=True):
                tally[f"batches of {rows}: {phase} ns"] = phase_ns
        return tally


class RightDurations(Invariant):
    """Each success, failure and execution is counted once, with its rows, its size and its reason; a request's queue
    time is from being queued to the beginning of its execution, its compute times are those of its batch, and all of it
    is from being received to being settled (docs/reference/statistics.md#what-each-event-counts)."""

    name = "statistics say how long everything took"

    def __init__(self, complain: Complain, state: WorldState, cache_ns: int = 0) -> None:
        super().__init__(complain)
        self._state = state
        self._cache_ns = cache_ns
        self._received: dict[int, int] = {}
        self._came_ns: dict[int, int] = {}
        self._requests: dict[int, _Request] = {}
        self._models: dict[str, _Model] = {}
        self._batches: dict[tuple[str, tuple[int, ...]], BatchSealed] = {}
        self._began: dict[int, int] = {}
        self._measured: dict[int, Marks] = {}

    def handlers(self) -> Handlers:
        return {
            RequestSubmitted: self._submitted,
            CameToCache: self._came,
            RequestQueued: self._queued,
            AnswerFound: self._found,
            RequestRescheduled: self._rescheduled,
            RequestRejected: self._left,
            RequestDropped: self._left,
            BatchSealed: self._sealed,
            ExecutionStarted: self._started,
            Measured: self._measure,
            ToldSettled: self._settled,
            ReplyDelivered: self._delivered,
            DroppedAtDoor: self._dropped_at_door,
        }

    def _of(self, name: str) -> _Model:
        model = self._models.get(name)
        if model is None:
            config = self._state.models[name].config
            inexact = config.decoupled and order_of(config) is not Order.NONE
            model = self._models[name] = _Model(config.decoupled, inexact)
        return model

    def _submitted(self, event: RequestSubmitted) -> None:
        self._received[event.request] = event.at_ns

    def _came(self, event: CameToCache) -> None:
        """With a slow cache a request counts as queued from here on."""
        self._came_ns[event.request] = event.at_ns

    def _queued(self, event: RequestQueued) -> None:
        received_ns = self._received.pop(event.request, event.at_ns)
        config = self._state.models[event.model].config
        if not config.has_ensemble_scheduling:
            queued_ns = event.at_ns
            if self._cache_ns and config.response_cache:
                queued_ns = self._came_ns.get(event.request, received_ns)
            self._requests[event.request] = _Request(event.model, event.rows, received_ns, queued_ns)

    def _found(self, event: AnswerFound) -> None:
        """To look it up takes no time, unless the cache is slow. It is a success that no instance had a part in."""
        if self._state.models[event.model].config.has_ensemble_scheduling:
            return
        model = self._of(event.model)
        took_ns = event.at_ns - self._received.pop(event.request, event.at_ns)
        model.spent("success", took_ns)
        model.spent("queue", 0)
        model.spent("cache_hit", took_ns if self._cache_ns else 0)

    def _left(self, event: RequestRejected | RequestDropped) -> None:
        request = self._requests.get(event.request)
        if request is not None:
            request.ended_ns = event.at_ns

    def _dropped_at_door(self, event: DroppedAtDoor) -> None:
        tally = self._of(event.core).tally
        tally["fail"] += 1
        tally["fail ns"] += event.at_ns - self._received.pop(event.request, event.at_ns)
        tally[REASONS.get(event.error, "")] += 1

    # Executions.

    def _sealed(self, event: BatchSealed) -> None:
        self._batches[event.model, event.requests] = event
        for number in event.requests:
            if number:
                self._requests[number].batch = event.batch

    def _started(self, event: ExecutionStarted) -> None:
        self._began[event.batch] = event.at_ns

    def _measure(self, event: Measured) -> None:
        if event.start_ns not in (self._began[event.batch], event.end_ns):
            self.broken(f"batch {event.batch} began at {self._began[event.batch]} ns; it says at {event.start_ns} ns")
        self._measured[event.batch] = event.start_ns, event.infer_ns, event.output_ns, event.end_ns

    def _settled(self, event: ToldSettled) -> None:
        """A batch that no instance ever began took no time."""
        now_ns = round(event.at_s * 1e9)
        batch = self._batches.pop((event.core, event.requests))
        marks = self._measured.pop(batch.batch, (now_ns, now_ns, now_ns, now_ns))
        model = self._of(batch.model)
        model.tally["execution_count"] += 1
        model.tally[f"sealed: {batch.reason}"] += 1
        model.executed(batch.rows, marks)
        for number in event.requests:
            request = self._requests.get(number)
            if request is not None:  # a request to a decoupled model may be over before its batch is
                request.ended_ns, request.marks = now_ns, marks

    def _rescheduled(self, event: RequestRescheduled) -> None:
        """Told just before its batch is settled: an execution that was a success, and queued anew from now on."""
        request = self._requests[event.request]
        marks = self._measured.get(request.batch)
        if marks is not None:
            self._succeeded(request, event.at_ns, marks)
        request.queued_ns = event.at_ns

    # Answers.

    def _delivered(self, event: ReplyDelivered) -> None:
        if event.late:
            return
        self._first_of(event)
        if not event.final:
            return
        request = self._requests.pop(event.request, None)
        if request is None:
            return
        model = self._of(request.model)
        if model.inexact:
            return
        ended_ns = event.at_ns if model.decoupled and request.batch else request.ended_ns
        if event.error:
            model.tally["fail"] += 1
            model.tally["fail ns"] += ended_ns - request.received_ns
            model.tally[REASONS.get(event.error, "")] += 1
        elif model.decoupled:  # its execution may go on
            began_ns = self._began[request.batch]
            self._succeeded(request, ended_ns, (began_ns, began_ns, ended_ns, ended_ns))
        elif request.marks is not None:
            self._succeeded(request, ended_ns, request.marks)

    def _first_of(self, event: ReplyDelivered) -> None:
        """The time until the first response of a model that gives any number of them."""
        request = self._requests.get(event.request)
        model = None if request is None else self._of(request.model)
        if request is None or model is None or not model.decoupled or request.responded:
            return
        request.responded = bool(event.answer or event.error)
        model.unsure = model.unsure or (bool(event.error) and request.batch > 0)
        if event.answer:
            model.tally[FIRST] += 1
            model.tally[f"{FIRST} ms"] += (event.at_ns - request.received_ns) // 1_000_000

    def _succeeded(self, request: _Request, ended_ns: int, marks: Marks) -> None:
        model = self._of(request.model)
        model.tally["inference_count"] += request.rows
        began_ns, infer_ns, output_ns, end_ns = marks
        model.spent("success", ended_ns - request.received_ns)
        model.spent("queue", began_ns - request.queued_ns)
        model.spent("compute_input", infer_ns - began_ns)
        model.spent("compute_infer", output_ns - infer_ns)
        model.spent("compute_output", end_ns - output_ns)

    # The server's own.

    def reported(self, entries: Iterable[ModelStatisticsEntry], serving: Mapping[str, str]) -> None:
        for entry in entries:
            label = serving[entry.name]
            model = self._models.get(label)
            if model is None or model.inexact or model_of(label) != entry.name:
                continue
            own, right = tally_of(entry.statistics), model.whole()
            misses = entry.statistics.cache_miss
            if not misses.count * 2 * self._cache_ns <= misses.ns <= misses.count * MOST_CALLS * self._cache_ns:
                self.broken(f"statistics of '{label}': {misses.count} misses of the cache took {misses.ns} ns")
            own["success ns"] -= misses.ns  # which counts as a part of the requests
            own["success us"] -= misses.us
            names = {name for name in own | right if name and not (model.unsure and name.startswith(FIRST))}
            wrong = sorted(name for name in names if own[name] != right[name])
            if wrong:
                text = ", ".join(f"{name} is {own[name]}, right is {right[name]}" for name in wrong)
                self.broken(f"statistics of '{label}': {text}")


def tally_of(own: ModelStatistics) -> Counter[str]:
    """What a model's statistics say, by the names that are used here."""
    tally = Counter(
        {
            "inference_count": own.inference_count,
            "execution_count": own.execution_count,
            "fail": own.fail.count,
            "fail ns": own.fail.ns,
            FailureReason.REJECTED.value: own.failures[FailureReason.REJECTED],
            FailureReason.CANCELED.value: own.failures[FailureReason.CANCELED],
        }
    )
    for name in SPANS:
        duration = getattr(own, name)
        tally[name], tally[f"{name} ns"], tally[f"{name} us"] = duration.count, duration.ns, duration.us
    if own.first_responses is not None:
        tally[FIRST] = own.first_responses.buckets()[-1][1]
        tally[f"{FIRST} ms"] = round(own.first_responses.total)
    for reason, count in own.sealed.items():
        tally[f"sealed: {reason.value}"] = count
    for rows, batch in own.batches.items():
        tally[f"batches of {rows}"] = batch.compute_infer.count
        for phase in PHASES:
            tally[f"batches of {rows}: {phase} ns"] = getattr(batch, phase).ns
    return tally
