"""Ensembles: every step once, when its inputs are there, and one answer when all is over (scheduling.md §7.3)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..events import (
    CancelHeard,
    ReplyDelivered,
    RequestAnswered,
    RequestDropped,
    RequestQueued,
    ServerStopping,
    StepSubmitted,
)
from ..generations import model_of
from ..graphs import Graphs, is_step
from ..history import Handlers
from ..plan import ModelPlan
from .base import Complain, Invariant
from .batches import TOLERANCE_NS
from .serving import STOPPING


@dataclass(slots=True)
class Carried:
    """A request to an ensemble on its way.

    Attributes:
        ensemble: its generation.
        plan: what it is made of.
        needed: the steps that belong to it.
        submitted, inflight, done: those of them that were sent to their members, have no answer yet, have a good one.
        failed: a step was answered with an error.
        given_up: its client, or the server, gave it up.
    """

    ensemble: str
    plan: ModelPlan
    needed: frozenset[int]
    submitted: set[int] = field(default_factory=set)
    inflight: dict[int, None] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    failed: bool = False
    given_up: bool = False
    dropped: bool = False

    def is_fed(self, step: int) -> bool:
        """Whether all that a step takes is there."""
        return self.done.issuperset(filter(None, self.plan.steps[step - 1].takes))


class StepsOnce(Invariant):
    """Every step that is needed is sent to its member once, as soon as all that it takes is there and the gate lets it
    through, and none after an error or a cancellation. The request is answered when no step is in flight any more: well
    if all steps went well, and only then."""

    name = "ensembles carry out each step once, and answer when all is over"

    def __init__(self, complain: Complain, graphs: Graphs) -> None:
        super().__init__(complain)
        self._graphs = graphs
        self._open: dict[int, Carried] = {}
        self._steps: dict[int, tuple[int, int]] = {}  # by the step's own number: for whom, and which
        self._inflight: Counter[tuple[str, int]] = Counter()
        self._touched: dict[int, None] = {}
        self._gated: dict[tuple[str, int], dict[int, None]] = {}  # by step, for whom it waits at the gate

    def handlers(self) -> Handlers:
        if not self._graphs.ensembles:
            return {}
        return {
            RequestQueued: self._queued,
            StepSubmitted: self._submitted,
            RequestAnswered: self._answered,
            CancelHeard: self._cancelled,
            RequestDropped: self._dropped,
            ReplyDelivered: self._delivered,
        }

    def _queued(self, event: RequestQueued) -> None:
        plan = self._graphs.ensembles.get(model_of(event.model))
        if plan is not None:
            needed = self._graphs.needed(plan.name, whole=not is_step(event.request))
            self._open[event.request] = Carried(event.model, plan, needed)
            self._touched[event.request] = None

    def _submitted(self, event: StepSubmitted) -> None:
        carried = self._open.get(event.parent)
        step = f"step {event.step} of request {event.parent}"
        if carried is None:
            self.broken(f"{step} was sent to its member, but the request is not open")
            return
        if event.step in carried.submitted or event.step not in carried.needed:
            self.broken(f"{step} was sent to its member {'again' if event.step in carried.submitted else 'in vain'}")
        elif carried.failed or carried.given_up:
            self.broken(f"{step} was sent to its member although the request is over")
        elif not carried.is_fed(event.step):
            self.broken(f"{step} was sent to its member before all that it takes was there")
        key = (carried.ensemble, event.step)
        self._inflight[key] += 1
        limit = carried.plan.max_inflight
        if limit and self._inflight[key] > limit:
            self.broken(f"{step} is one of {self._inflight[key]} in flight; {limit} may be")
        carried.submitted.add(event.step)
        carried.inflight[event.step] = None
        self._steps[event.request] = (event.parent, event.step)
        self._touched[event.parent] = None

    def _answered(self, event: RequestAnswered) -> None:
        parent, step = self._steps.pop(event.request, (0, 0))
        carried = self._open.get(parent)
        if carried is None:
            return
        self._inflight[carried.ensemble, step] -= 1
        del carried.inflight[step]
        if event.error:
            carried.failed = True
        else:
            carried.done.add(step)
        self._touched.update(self._gated.pop((carried.ensemble, step), {}))
        self._touched[parent] = None

    def _cancelled(self, event: CancelHeard) -> None:
        if event.request in self._open:
            self._open[event.request].given_up = True
            self._touched[event.request] = None

    def _dropped(self, event: RequestDropped) -> None:
        if event.request in self._open:
            self._open[event.request].dropped = self._open[event.request].given_up = True

    def _delivered(self, event: ReplyDelivered) -> None:
        carried = self._open.get(event.request)
        if carried is None or not event.final:
            return
        del self._open[event.request]
        if carried.dropped:
            for step in carried.inflight:
                key = (carried.ensemble, step)
                self._inflight[key] -= 1
                self._touched.update(self._gated.pop(key, {}))
            return
        if carried.inflight:
            self.broken(f"request {event.request} was answered while its steps {list(carried.inflight)} are in flight")
        if not event.error and carried.done != carried.needed:
            missing = sorted(carried.needed - carried.done)
            self.broken(f"request {event.request} was answered well, without its steps {missing}")
        elif event.error and not (carried.failed or carried.given_up):
            self.broken(f"request {event.request} was answered {event.error!r}, and no step had failed")

    def instant_over(self, now_ns: int) -> None:
        for number in self._touched:
            carried = self._open.get(number)
            if carried is not None:
                self._look_at(number, carried)
        self._touched.clear()

    def _look_at(self, number: int, carried: Carried) -> None:
        over = carried.failed or carried.given_up or carried.done == carried.needed
        if over and not carried.inflight:
            self.broken(f"request {number} waits for nothing any more, and is not answered")
        if over:
            return
        limit = carried.plan.max_inflight
        for step in sorted(carried.needed - carried.submitted):
            if carried.is_fed(step):
                key = (carried.ensemble, step)
                if limit and self._inflight[key] >= limit:
                    self._gated.setdefault(key, {})[number] = None
                else:
                    self.broken(f"step {step} of request {number} could be carried out, and is not")


class DrainedInOrder(Invariant):
    """While a server has time to stop, no member refuses a step because the server stops: members are drained when the
    ensembles that need them are."""

    name = "ensembles are drained before their members"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._ends_ns: int | None = None

    def handlers(self) -> Handlers:
        return {ServerStopping: self._stopping, RequestAnswered: self._answered}

    def _stopping(self, event: ServerStopping) -> None:
        self._ends_ns = event.at_ns + event.limit_ns

    def _answered(self, event: RequestAnswered) -> None:
        in_time = self._ends_ns is not None and event.at_ns + TOLERANCE_NS < self._ends_ns
        if is_step(event.request) and STOPPING in event.error and in_time:
            self.broken(f"request {event.request} of an ensemble was refused because the server stops")
