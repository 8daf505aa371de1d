"""Ensembles: every step once, when its inputs are there, and one answer when all is over
(docs/reference/ensembles.md#execution)."""

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
from ..graphs import Graphs, Iteration, is_step
from ..history import Handlers
from ..plan import ModelPlan
from .base import Complain, Invariant
from .batches import TOLERANCE_NS
from .serving import STOPPING

StepPlace = tuple[int, Iteration]
"""A step, or the tensor that it makes, and for which answers of decoupled members; 0 is the input."""


@dataclass(slots=True)
class Carried:
    """A request to an ensemble on its way.

    Attributes:
        ensemble: its generation.
        plan: what it is made of.
        needed: the steps that belong to it.
        outputs: the tensors that it is answered with.
        tensors: those that are there.
        ready, submitted, inflight: steps of which all that they take is there, which were sent to their members, which
            have no final answer yet.
        due, answers: how often all outputs were there, and how often it was answered.
        failed: a step was answered with an error.
        given_up: its client, or the server, gave it up.
    """

    ensemble: str
    plan: ModelPlan
    needed: frozenset[int]
    outputs: tuple[int, ...]
    tensors: set[StepPlace] = field(default_factory=set)
    ready: dict[StepPlace, None] = field(default_factory=dict)
    submitted: set[StepPlace] = field(default_factory=set)
    inflight: dict[StepPlace, int] = field(default_factory=dict)  # and how many answers each has given
    due: int = 0
    answers: int = 0
    failed: bool = False
    given_up: bool = False
    dropped: bool = False

    def arrive(self, tensor: int, at: Iteration) -> None:
        """A tensor is there."""
        self.tensors.add((tensor, at))
        for number, step in enumerate(self.plan.steps, start=1):
            takes = tensor in step.takes and number in self.needed
            if takes and all((other, at) in self.tensors for other in step.takes):
                self.ready[number, at] = None
        if tensor in self.outputs and all((other, at) in self.tensors for other in self.outputs):
            self.due += 1


class StepsOnce(Invariant):
    """Every step that is needed is sent to its member once, as soon as all that it takes is there and the gate lets it
    through, and none after an error or a cancellation; what follows from a decoupled member, once for each of its
    answers. The request is answered when no step is in flight any more: well if all steps went well, and only then.
    With decoupled members it is also answered each time that all of its outputs are there."""

    name = "ensembles carry out each step once, and answer when all is over"

    def __init__(self, complain: Complain, graphs: Graphs) -> None:
        super().__init__(complain)
        self._graphs = graphs
        self._open: dict[int, Carried] = {}
        self._steps: dict[int, tuple[int, StepPlace]] = {}  # by the step's own number: for whom, and which
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
            whole = not is_step(event.request)
            outputs = plan.sinks if whole else plan.sinks[:1]
            carried = Carried(event.model, plan, self._graphs.needed(plan.name, whole=whole), outputs)
            carried.arrive(0, ())
            self._open[event.request] = carried
            self._touched[event.request] = None

    def _submitted(self, event: StepSubmitted) -> None:
        carried = self._open.get(event.parent)
        place = (event.step, event.iteration)
        step = f"{_name(place)} of request {event.parent}"
        if carried is None:
            self.broken(f"{step} was sent to its member, but the request is not open")
            return
        if place in carried.submitted or event.step not in carried.needed:
            self.broken(f"{step} was sent to its member {'again' if place in carried.submitted else 'in vain'}")
        elif carried.failed or carried.given_up:
            self.broken(f"{step} was sent to its member although the request is over")
        elif place not in carried.ready:
            self.broken(f"{step} was sent to its member before all that it takes was there")
        key = (carried.ensemble, event.step)
        self._inflight[key] += 1
        limit = carried.plan.max_inflight
        if limit and self._inflight[key] > limit:
            self.broken(f"{step} is one of {self._inflight[key]} in flight; {limit} may be")
        carried.ready.pop(place, None)
        carried.submitted.add(place)
        carried.inflight[place] = 0
        self._steps[event.request] = (event.parent, place)
        self._touched[event.parent] = None

    def _answered(self, event: RequestAnswered) -> None:
        parent, place = self._steps.pop(event.request, (0, (0, ())))
        carried = self._open.get(parent)
        if carried is None:
            return
        step, at = place
        self._inflight[carried.ensemble, step] -= 1
        del carried.inflight[place]
        if event.error:
            carried.failed = True
        elif not self._is_decoupled(carried, step):
            carried.arrive(step, at)
        self._touched.update(self._gated.pop((carried.ensemble, step), {}))
        self._touched[parent] = None

    def _cancelled(self, event: CancelHeard) -> None:
        if event.request in self._open:
            self._open[event.request].given_up = True
            self._touched[event.request] = None

    def _dropped(self, event: RequestDropped) -> None:
        if event.request in self._open:
            self._open[event.request].dropped = self._open[event.request].given_up = True

    def _is_decoupled(self, carried: Carried, step: int) -> bool:
        return self._graphs.is_decoupled(carried.plan.steps[step - 1].model)

    def _delivered(self, event: ReplyDelivered) -> None:
        if event.answer and event.request in self._steps and not event.late:
            self._step_spoke(*self._steps[event.request])
        carried = self._open.get(event.request)
        if carried is None:
            return
        if event.answer:
            carried.answers += 1
            if carried.answers > carried.due:
                self.broken(f"answer {carried.answers} to request {event.request} was given; {carried.due} are due")
        if event.final:
            self._ended(event, carried)

    def _step_spoke(self, parent: int, place: StepPlace) -> None:
        """A step has an answer, one of many if its model is decoupled."""
        carried = self._open.get(parent)
        if carried is not None and self._is_decoupled(carried, place[0]):
            step, at = place
            carried.arrive(step, (*at, carried.inflight[place]))
            carried.inflight[place] += 1
            self._touched[parent] = None

    def _ended(self, event: ReplyDelivered, carried: Carried) -> None:
        del self._open[event.request]
        if carried.dropped:
            for step, _ in carried.inflight:
                key = (carried.ensemble, step)
                self._inflight[key] -= 1
                self._touched.update(self._gated.pop(key, {}))
            return
        if carried.inflight:
            steps = ", ".join(map(_name, carried.inflight))
            self.broken(f"request {event.request} was answered while {steps} is in flight")
        if not event.error and carried.ready:
            self.broken(f"request {event.request} was answered well, without {', '.join(map(_name, carried.ready))}")
        elif not event.error and self._lacks_answers(carried):
            self.broken(f"request {event.request} was answered {carried.answers} times, instead of {carried.due}")
        elif event.error and not (carried.failed or carried.given_up):
            self.broken(f"request {event.request} was answered {event.error!r}, and no step had failed")

    def instant_over(self, now_ns: int) -> None:
        for number in self._touched:
            carried = self._open.get(number)
            if carried is not None:
                self._look_at(number, carried)
        self._touched.clear()

    def _look_at(self, number: int, carried: Carried) -> None:
        over = carried.failed or carried.given_up
        if not carried.inflight and (over or not carried.ready):
            self.broken(f"request {number} waits for nothing any more, and is not answered")
        if over:
            return
        if self._lacks_answers(carried):
            self.broken(f"answer {carried.answers + 1} to request {number} is there, and is not given")
        limit = carried.plan.max_inflight
        for place in carried.ready:
            key = (carried.ensemble, place[0])
            if limit and self._inflight[key] >= limit:
                self._gated.setdefault(key, {})[number] = None
            else:
                self.broken(f"{_name(place)} of request {number} could be carried out, and is not")

    def _lacks_answers(self, carried: Carried) -> bool:
        return self._graphs.is_decoupled(carried.plan.name) and carried.answers < carried.due


def _name(place: StepPlace) -> str:
    step, at = place
    return f"step {step}" + f" for answer {'.'.join(str(number + 1) for number in at)}" * bool(at)


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
