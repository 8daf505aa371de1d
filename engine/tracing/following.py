"""Notes each step of a traced job, by standing between it and its reply.

So nothing else on a request's way knows about traces, and a request that is not traced pays nothing for them: all that
a trace tells of the core (when the job was queued, the marks of its execution) stands in the job when its answers pass.
"""

from __future__ import annotations

from ..clock import Clock
from ..errors import TriremeError
from ..execution import Phase
from ..job import Job, Outcome
from .record import Activity, Trace

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

    __slots__ = ("_clock", "_has_begun", "_job", "_reply", "_trace")

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
        """See `engine.job.Reply`."""
        trace, job = self._trace, self._job
        if trace is None or job is None:
            return self._reply.deliver(outcome, final)
        if not job.accepted:
            self._trace = self._job = None  # nothing has come of it that could be noted
            return self._reply.deliver(outcome, final)
        now_ns = self._clock.now_ns()
        if final:
            self._trace = self._job = None  # the job holds this: a cycle left here would be work for the collector
            _note_execution(trace, job, now_ns)
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


def _note_execution(trace: Trace, job: Job, now_ns: int) -> None:
    """The marks of the execution, if there was one. Of a decoupled model's, which may go on, those that are missing
    fall together with the end."""
    if trace.has_steps or job.batch is None or job.batch.marks[Phase.COMPUTE_START] < 0:
        return
    marks = list(job.batch.marks)
    end_ns = marks[Phase.COMPUTE_END] if marks[Phase.COMPUTE_END] >= 0 else now_ns
    for tensor in job.inputs.values():
        trace.note_tensor(Activity.TENSOR_BACKEND_INPUT, tensor)
    for activity, phase in _MARKS:
        trace.note(activity, marks[phase] if marks[phase] >= 0 else end_ns)
