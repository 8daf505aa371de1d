"""Traces of the requests of a drawn plan (docs/reference/traces.md), also of those that come by front ends: clients
note them as `api.pipeline` does.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from ..engine.request import InferenceRequest
from ..engine.tracing import TraceConfig, Tracer
from ..engine.tracing.record import Activity, SpanContext, Subject, Timestamp, Trace
from ..engine.tracing.settings import UNLIMITED, TraceLevel, TraceSetting
from .clock import JumpingClock
from .events import AnswerFound, RequestAnswered, StepSubmitted
from .history import Handlers
from .plan import Plan, RequestPlan

SHARE = 0.25
"""Of the runs."""

TRACED = "a request was traced"
TRACED_BY_FRONT_ENDS = "a request that came by a front end was traced"
REACHABLE_TRACES = TRACED, TRACED_BY_FRONT_ENDS

INVARIANT = "of all requests as many are traced as was asked for, and each trace tells all"

COMPUTING = (
    Activity.COMPUTE_START,
    Activity.COMPUTE_INPUT_END,
    Activity.COMPUTE_OUTPUT_START,
    Activity.COMPUTE_END,
)
ORDER = (
    *(Activity.HTTP_RECV_START, Activity.HTTP_RECV_END, Activity.REQUEST_START, Activity.QUEUE_START),
    *(*COMPUTING, Activity.REQUEST_END, Activity.HTTP_SEND_END),
)
"""What a trace tells of, in the order of time."""


def traced(plan: Plan) -> Plan:
    """The plan, some of whose requests are traced. Not where clients come by front ends and models are changed: what
    else is rung for hides that a front end hears late of a change."""
    chance = Random(f"traces {plan.seed}")
    if chance.random() >= SHARE or (plan.front_ends.count and plan.changes):
        return plan
    return replace(plan, trace_rate=chance.choice((1, 1, 2, 7)), trace_count=chance.choice((UNLIMITED, UNLIMITED, 20)))


class CountingTracer(Tracer):
    """A server's tracer.

    Attributes:
        came: requests of which it was asked whether they are traced.
        traces: those that are complete.
    """

    def __init__(self, plan: Plan, clock: JumpingClock) -> None:
        self.came = 0
        self.traces: list[Trace] = []
        levels = TraceLevel.TIMESTAMPS if plan.trace_rate else TraceLevel.OFF
        config = TraceConfig(level=levels, rate=max(1, plan.trace_rate), count=plan.trace_count, file="traces")
        super().__init__(config, clock, self)

    def begin(self, model_name: str, context: SpanContext | None = None) -> Trace | None:
        self.came += 1
        return super().begin(model_name, context)

    def collect(self, trace: Trace) -> None:
        self.traces.append(trace)

    def retire(self, setting: TraceSetting) -> None:
        """No setting is replaced."""


class Traces:
    """What clients note, and whether it comes to what it should.

    Args:
        complain: called with what is wrong.
        count: called with what happens.

    Attributes:
        tracer: for the server.
    """

    def __init__(
        self, plan: Plan, clock: JumpingClock, complain: Callable[[str, str], None], count: Callable[[str], None]
    ) -> None:
        self.tracer = CountingTracer(plan, clock)
        self._plans = {request.number: request for request in plan.requests}
        self._ensembles = {model.name for model in plan.models if model.steps}
        self._exact = not (plan.stop_ns or plan.front_ends.deaths_ns or plan.front_ends.stuck_for_ns)
        self._plan = plan
        self._clock = clock
        self._complain = complain
        self._count = count
        self._open: dict[int, Trace] = {}  # by request
        self._asked = 0
        self._served: set[int] = set()
        self._found: set[int] = set()
        self._steps: Counter[int] = Counter()  # by request

    def handlers(self) -> Handlers:
        """Of what happens to requests."""
        return {RequestAnswered: self._answered, AnswerFound: self._cached, StepSubmitted: self._stepped}

    def _answered(self, event: RequestAnswered) -> None:
        if not event.error:
            self._served.add(event.request)

    def _cached(self, event: AnswerFound) -> None:
        self._found.add(event.request)

    def _stepped(self, event: StepSubmitted) -> None:
        self._steps[event.parent] += 1

    def begin(self, number: int, request: InferenceRequest, tracer: Tracer) -> InferenceRequest:
        """A client sends a request where this is the tracer."""
        if self._plan.trace_rate and tracer.active:
            self._asked += 1
            trace = tracer.begin(request.model_name)
            if trace is not None:
                now_ns = self._clock.now_ns()
                trace.note(Activity.HTTP_RECV_START, now_ns)
                trace.note(Activity.HTTP_RECV_END, now_ns)
                request.trace = self._open[number] = trace
        return request

    def end(self, number: int) -> None:
        """It is over."""
        trace = self._open.pop(number, None)
        if trace is not None:
            trace.note(Activity.HTTP_SEND_END, self._clock.now_ns())
            trace.leave()

    def lose(self, number: int) -> None:
        """It is gone with its front end."""
        self._open.pop(number, None)

    def finish(self) -> None:
        """All is over: look at what has been traced."""
        tracer, rate = self.tracer, self._plan.trace_rate
        if not rate:
            return
        setting = tracer.setting()
        right = tracer.came // rate
        right = right if self._plan.trace_count < 0 else min(right, self._plan.trace_count)
        unread = len(self._open) if self._plan.stop_ns else 0  # clients read on when their server has stopped
        if len(tracer.traces) + unread != right or setting.open != unread:
            text = f"of {tracer.came} requests {len(tracer.traces)} were traced, {setting.open} of them still are"
            self._complain(INVARIANT, f"{text}; right is {right}")
        if self._exact and tracer.came != self._asked and setting.can_sample:
            self._complain(INVARIANT, f"the tracer was asked for {tracer.came} requests; clients sent {self._asked}")
        for trace in tracer.traces:
            for text in self._wrong(trace):
                self._complain(INVARIANT, f"{text}: {trace.elements}")

    def _wrong(self, trace: Trace) -> Iterator[str]:
        """What is wrong with a trace."""
        subject = next((each for each in trace.elements if isinstance(each, Subject)), None)
        if subject is None:
            return  # it was refused
        number = int(subject.request_id)
        self._count(TRACED)
        if self._plan.front_ends.count:
            self._count(TRACED_BY_FRONT_ENDS)
        plan = self._plans[number]
        if subject.model_name != plan.model:
            yield f"request {number} to '{plan.model}' was traced as one to '{subject.model_name}'"
        times = {each.name: each.ns for each in trace.elements if isinstance(each, Timestamp)}
        order = [times[name] for name in ORDER if name in times]
        if order != sorted(order):
            yield f"what the trace of request {number} tells is not in order"
        if number not in self._served:
            return
        missing = [name for name in ORDER if name not in times and not self._may_miss(name, plan)]
        if missing:
            yield f"the trace of request {number} does not tell of {missing}"
        steps = sum(1 for each in trace.descendants if each.parent_id == trace.id)
        if steps != self._steps[number]:
            yield f"request {number} had {self._steps[number]} steps, of which {steps} were traced"

    def _may_miss(self, name: str, plan: RequestPlan) -> bool:
        return name in COMPUTING and (plan.model in self._ensembles or plan.number in self._found)
