"""The tracer: what front ends ask whether a request is traced.

    if tracer.active:
        trace = tracer.begin(model_name, context)   # None for most requests
    ...
    request.trace = trace

A front end *enters* with `begin`, notes what it does, and leaves the trace when it has sent the answer. Complete traces
go to a sink, which writes or exports them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from ..clock import Clock
from ..errors import InvalidArgumentError, TriremeError
from ..job import Job, Outcome, Phase
from .record import Activity, BatchNote, Identities, SpanContext, Trace
from .settings import TraceConfig, TraceLevel, TraceMode, TraceSetting

logger = logging.getLogger("trireme.tracing")

NO_TENSORS = "Tensor level tracing is not supported by the mode: opentelemetry"


class TraceSink(Protocol):
    """Where complete traces go. Called on the event loop only; must not raise, and must not wait."""

    def collect(self, trace: Trace) -> None:
        """A trace is complete."""
        ...

    def retire(self, setting: TraceSetting) -> None:
        """A setting takes no new traces."""
        ...


_FIELDS = ("level", "rate", "count", "log_frequency")
"""Of a setting: what can be changed."""


class Tracer:
    """The traces of a server, and the settings of it and of its models (docs/reference/traces.md#settings).

    Rules of the settings:
     1. A model's setting overrides the server's field by field. A field that was not set for it follows the server's,
        later changes included.
     2. Clearing a field of the server restores what it was at start; clearing a field of a model lets it follow again.
        A model of which no field is set has no setting of its own: its requests are counted with those of all models.
     3. Every change, whatever it changes, replaces the setting, and so begins to count anew. A count that was set goes
        on from what is left of it; one that was not set begins with what is left behind it.
     4. A change that would make a setting trace, though it cannot, is refused as a whole: without a file, without a
        rate, without a count. Rate 0 is right in the mode opentelemetry, where requests with a context are traced all
        the same.

    Args:
        clock: that of all times in traces.
        identities: for spans; needed in the mode opentelemetry only.

    Attributes:
        takes_contexts: callers' spans mean something.
        active: a request could be traced. While it is False nothing else need be asked.
    """

    def __init__(
        self, config: TraceConfig, clock: Clock, sink: TraceSink, identities: Identities | None = None
    ) -> None:
        self.config = config
        self.clock = clock
        self.takes_contexts = config.mode is TraceMode.OPENTELEMETRY
        self._sink = sink
        self._identities = identities
        values = (config.level, config.rate, config.count, config.log_frequency)
        self._at_start = TraceSetting(config, *values, frozenset())
        self._server = TraceSetting(config, *values, frozenset())
        self._models: dict[str, TraceSetting] = {}
        self._ids = itertools.count(1)
        self.active = self._any_on()

    def begin(self, model_name: str, context: SpanContext | None = None) -> Trace | None:
        """A request has come; its trace, entered for the front end, if it is to be traced."""
        setting = self.setting(model_name)
        if not (context is not None and self.takes_contexts and setting.notes):
            context = None
            if not setting.sample():
                return None
        setting.open += 1
        trace = Trace(setting, self._ids.__next__, self._complete, context=context, identities=self._identities)
        trace.enter()
        return trace

    def forget(self, model_name: str, trace: Trace | None) -> None:
        """The request, for which `begin` gave this, was not taken, and will come again: as if it had not come."""
        if trace is None:
            self.setting(model_name).give_back(was_sampled=False)
            return
        trace.setting.open -= 1
        if trace.context is None:
            trace.setting.give_back(was_sampled=True)

    def setting(self, model_name: str = "") -> TraceSetting:
        """The setting that holds for a model; for no name, the server's."""
        return self._models.get(model_name, self._server)

    def change(self, model_name: str = "", /, **changes: TraceLevel | int | None) -> None:
        """Change the setting of a model, or, for no name, the server's.

        Args:
            changes: `level`, `rate`, `count`, `log_frequency`, as far as they change; None clears one.

        Raises:
            InvalidArgumentError: rule 4; nothing is changed then.
        """
        current = self._models.get(model_name) if model_name else self._server
        replaced = self._replace(current, self._server if model_name else self._at_start, changes)
        self._check(replaced)
        if current is not None:
            self._retire(current)
        if not model_name:
            self._server = replaced
            for name, setting in list(self._models.items()):
                if len(setting.own) < len(_FIELDS):
                    self._retire(setting)
                    self._models[name] = self._replace(setting, replaced, {})
        elif replaced.own:
            self._models[model_name] = replaced
        else:
            self._models.pop(model_name, None)
        level = changes.get("level")
        if self.takes_contexts and isinstance(level, TraceLevel) and level & TraceLevel.TENSORS:
            logger.error("%s", NO_TENSORS)
        self.active = self._any_on()

    def close(self) -> None:
        """Take no more traces."""
        self.active = False
        for setting in (self._server, *self._models.values()):
            self._retire(setting)

    def _any_on(self) -> bool:
        settings = (self._server, *self._models.values())
        return any(setting.can_sample or (self.takes_contexts and bool(setting.notes)) for setting in settings)

    def _retire(self, setting: TraceSetting) -> None:
        setting.retired = True
        self._sink.retire(setting)

    def _replace(
        self, current: TraceSetting | None, behind: TraceSetting, changes: Mapping[str, TraceLevel | int | None]
    ) -> TraceSetting:
        """Rule 3."""
        kept = (frozenset() if current is None else current.own) - changes.keys()
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        others = {name: getattr(current if name in kept else behind, name) for name in _FIELDS if name not in given}
        return TraceSetting(self.config, **given, **others, own=kept | given.keys())

    def _check(self, setting: TraceSetting) -> None:
        """Rule 4."""
        reason = None
        if not (self.takes_contexts or self.config.file):
            reason = "trace file name is not given"
        elif not (self.takes_contexts or setting.rate):
            reason = "sample rate must be non-zero"
        elif not setting.count:
            reason = "trace count must be non-zero"
        if reason is not None and setting.level:
            raise InvalidArgumentError(f"Attempting to set invalid trace setting :{reason}")

    def _complete(self, trace: Trace) -> None:
        trace.setting.open -= 1
        self._sink.collect(trace)

    def __repr__(self) -> str:
        return f"<Tracer {self.config.mode.value}, {'active' if self.active else 'idle'}: {self._server}>"


# Notes each step of a traced job, by standing between it and its reply.
#
# So nothing else on a request's way knows about traces, and a request that is not traced pays nothing for them: all
# that a trace tells of the core (when the job was queued, the marks of its execution) stands in the job when its
# answers pass.


_MARKS = (
    (Activity.COMPUTE_START, Phase.COMPUTE_START),
    (Activity.COMPUTE_INPUT_END, Phase.INFER_START),
    (Activity.COMPUTE_OUTPUT_START, Phase.OUTPUT_START),
    (Activity.COMPUTE_END, Phase.COMPUTE_END),
)


class TracedReply:
    """Takes the place of a job's reply, to which it passes everything on.

    Args:
        job: not queued yet.
    """

    __slots__ = ("_clock", "_job", "_reply", "_trace")

    def __init__(self, trace: Trace, job: Job, clock: Clock) -> None:
        self._trace: Trace | None = trace
        self._job: Job | None = job
        self._reply = job.reply
        self._clock = clock
        job.reply = self
        job.when_accepted(self._begin)

    def _begin(self) -> None:
        """The job has been accepted."""
        trace, job = self._trace, self._job
        if trace is None or job is None:
            return
        trace.enter()
        trace.note_subject(job.model_name, job.model_version, job.id)
        trace.note(Activity.REQUEST_START, job.received_ns)
        trace.note(Activity.QUEUE_START, job.enqueued_ns)
        for tensor in job.request.inputs:
            trace.note_tensor(Activity.TENSOR_QUEUE_INPUT, tensor)

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """See `engine.job.ReplyTarget`."""
        trace, job = self._trace, self._job
        if trace is None or job is None:
            return self._reply.deliver(outcome, final)
        if not job.accepted:
            self._trace = self._job = None  # nothing else has come of it that could be noted
            _note_refusal(trace, outcome)
            return self._reply.deliver(outcome, final)
        now_ns = self._clock.now_ns()
        if final:
            self._trace = self._job = None  # the job holds this: a cycle left here would be work for the collector
            _note_execution(trace, job, now_ns)
            if job.batch is None:
                _note_refusal(trace, outcome)
        if outcome is not None and not isinstance(outcome, TriremeError):
            for tensor in outcome.outputs:
                trace.note_tensor(Activity.TENSOR_BACKEND_OUTPUT, tensor)
        if trace.on_response is not None:
            trace.on_response(now_ns, outcome is not None)
        if final:
            trace.note(Activity.REQUEST_END, self._clock.now_ns())
        was_last = self._reply.deliver(outcome, final)
        if final:
            trace.leave()
        return was_last


def _note_refusal(trace: Trace, outcome: Outcome) -> None:
    """Why the request was not executed, if it was refused. What a queue has taken in and then rejected says why."""
    if isinstance(outcome, TriremeError) and outcome.refusal_reason is not None:
        trace.note_refusal(outcome.refusal_reason.value)


def _note_execution(trace: Trace, job: Job, now_ns: int) -> None:
    """The marks of the execution, if there was one. Of a decoupled model's, which may go on, those that are missing
    fall together with the end."""
    if trace.has_steps or job.batch is None or job.batch.marks[Phase.COMPUTE_START] < 0:
        return
    batch = job.batch
    requests = sum(not each.is_null for each in batch.jobs)
    trace.note_batch(BatchNote(batch.sealed.name.lower(), batch.rows, requests, batch.instance_name))
    marks = list(batch.marks)
    end_ns = marks[Phase.COMPUTE_END] if marks[Phase.COMPUTE_END] >= 0 else now_ns
    for tensor in job.inputs.values():
        trace.note_tensor(Activity.TENSOR_BACKEND_INPUT, tensor)
    for activity, phase in _MARKS:
        trace.note(activity, marks[phase] if marks[phase] >= 0 else end_ns)
