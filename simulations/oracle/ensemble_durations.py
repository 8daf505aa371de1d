"""What statistics must say of ensembles: how often, and for how long
(docs/reference/statistics.md#what-each-event-counts)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ...engine.metrics.statistics import ModelStatisticsEntry
from ..events import (
    AnswerFound,
    BatchSealed,
    ReplyDelivered,
    RequestAnswered,
    RequestQueued,
    RequestSubmitted,
    StepSubmitted,
)
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState
from .durations import PHASES, Marks, tally_of
from .observed import Measured


@dataclass(slots=True)
class _Sums:
    """What the steps of a request took, by phase, and when the first of their executions began; -1 for none."""

    spans_ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    began_ns: int = -1

    def add(self, spans_ns: Iterable[int], began_ns: int) -> None:
        self.spans_ns = [mine + its for mine, its in zip(self.spans_ns, spans_ns, strict=True)]
        self.began_ns = began_ns if self.began_ns < 0 else min(self.began_ns, began_ns)


@dataclass(slots=True)
class _Carried:
    """A request to an ensemble."""

    label: str
    rows: int
    received_ns: int
    queued_ns: int
    sums: _Sums = field(default_factory=_Sums)


class RightSums(Invariant):
    """A request to an ensemble that succeeds is one execution of its size; its compute times are the sums over its
    steps, and its queue time is what passed before the first of their executions began. One that fails counts twice.
    Ensembles with decoupled members are left out: how long these took at each answer is not seen."""

    name = "statistics of ensembles sum up their steps"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._received: dict[int, int] = {}
        self._carried: dict[int, _Carried] = {}
        self._parents: dict[int, int] = {}
        self._batches: dict[int, int] = {}  # by request, where it was executed last
        self._measured: dict[int, Marks] = {}
        self._over: dict[int, tuple[_Sums, int]] = {}  # of steps that are ensembles, and when they were answered
        self._tallies: dict[str, Counter[str]] = {}
        self._inexact: set[str] = set()

    def handlers(self) -> Handlers:
        if not any(view.config.has_ensemble_scheduling for view in self._state.models.values()):
            return {}
        return {
            RequestSubmitted: self._submitted,
            StepSubmitted: self._step,
            RequestQueued: self._queued,
            AnswerFound: self._found,
            BatchSealed: self._sealed,
            Measured: self._measure,
            RequestAnswered: self._answered,
            ReplyDelivered: self._delivered,
        }

    def _is_ensemble(self, label: str) -> bool:
        return self._state.models[label].config.has_ensemble_scheduling

    def _tally(self, label: str) -> Counter[str]:
        return self._tallies.setdefault(label, Counter())

    def _submitted(self, event: RequestSubmitted) -> None:
        self._received[event.request] = event.at_ns

    def _step(self, event: StepSubmitted) -> None:
        self._parents[event.request] = event.parent

    def _queued(self, event: RequestQueued) -> None:
        received_ns = self._received.pop(event.request, event.at_ns)
        config = self._state.models[event.model].config
        if config.has_ensemble_scheduling:
            self._carried[event.request] = _Carried(event.model, event.rows, received_ns, event.at_ns)
        elif config.decoupled and event.request in self._parents:
            self._leave_out(event.request)

    def _leave_out(self, request: int) -> None:
        """The ensembles that a step is of, from the inside out."""
        while (parent := self._parents.get(request, 0)) and parent in self._carried:
            self._inexact.add(self._carried[parent].label)
            request = parent

    def _found(self, event: AnswerFound) -> None:
        received_ns = self._received.pop(event.request, event.at_ns)
        if self._is_ensemble(event.model):
            self._count(event.model, {"success": event.at_ns - received_ns, "queue": 0, "cache_hit": 0})

    def _sealed(self, event: BatchSealed) -> None:
        for request in event.requests:
            if request in self._parents:
                self._batches[request] = event.batch

    def _measure(self, event: Measured) -> None:
        self._measured[event.batch] = event.start_ns, event.infer_ns, event.output_ns, event.end_ns

    def _answered(self, event: RequestAnswered) -> None:
        """A step is over for its ensemble."""
        self._received.pop(event.request, None)
        parent = self._parents.pop(event.request, 0)
        batch = self._batches.pop(event.request, 0)
        inner = self._over.pop(event.request, None)
        carried = self._carried.get(parent)
        if carried is None or event.error:
            return
        if inner is not None:
            sums, ended_ns = inner
            carried.sums.add(sums.spans_ns, sums.began_ns if sums.began_ns >= 0 else ended_ns)
        elif batch in self._measured:
            marks = self._measured[batch]
            carried.sums.add([end - begin for begin, end in pairwise(marks)], marks[0])
        elif batch:
            self._inexact.add(carried.label)

    def _delivered(self, event: ReplyDelivered) -> None:
        carried = self._carried.pop(event.request, None) if event.final and not event.late else None
        if carried is None:
            return
        took_ns = event.at_ns - carried.received_ns
        tally = self._tally(carried.label)
        if event.error:
            tally["fail"] += 2
            tally["fail ns"] += 2 * took_ns
            return
        sums = carried.sums
        if event.request in self._parents:
            self._over[event.request] = sums, event.at_ns
        tally["inference_count"] += carried.rows
        tally["execution_count"] += 1
        tally["sealed: no batching"] += 1
        tally[f"batches of {carried.rows}"] += 1
        for phase, span_ns in zip(PHASES, sums.spans_ns, strict=True):
            tally[f"batches of {carried.rows}: {phase} ns"] += span_ns
        queue_ns = (sums.began_ns if sums.began_ns >= 0 else event.at_ns) - carried.queued_ns
        spans = {"success": took_ns, "queue": queue_ns, **dict(zip(PHASES, sums.spans_ns, strict=True))}
        self._count(carried.label, spans)

    def _count(self, label: str, spans_ns: Mapping[str, int]) -> None:
        tally = self._tally(label)
        for name, span_ns in spans_ns.items():
            tally[name] += 1
            tally[f"{name} ns"] += span_ns
            tally[f"{name} us"] += span_ns // 1_000

    def reported(self, entries: Iterable[ModelStatisticsEntry], serving: Mapping[str, str]) -> None:
        for entry in entries:
            label = serving[entry.name]
            tally = self._tallies.get(label)
            if tally is None or label in self._inexact or entry.statistics.cache_miss.count:
                continue
            own = tally_of(entry.statistics)
            wrong = sorted(name for name in own | tally if own[name] != tally[name])
            if wrong:
                text = ", ".join(f"{name} is {own[name]}, right is {tally[name]}" for name in wrong)
                self.broken(f"statistics of ensemble '{label}': {text}")
