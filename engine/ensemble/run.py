"""One request's way through an ensemble (docs/reference/ensembles.md#execution): events in, actions out.

Rules:
 1. A step runs as soon as every tensor that it takes is there. Steps that do not depend on each other run side by side;
    steps that the requested outputs do not need are left out.
 2. A tensor that was not given (an optional input left out, an output that a member did not return) is there as well,
    and absent: the step runs without it. The member decides whether it can.
 3. Each answer of a decoupled member starts an iteration. What follows from it goes by its number, whatever overtakes
    what, so tensors of different answers never meet in one step or response.
 4. A response goes out when all requested outputs of an iteration are there. An ensemble that is not decoupled answers
    once, at the end.
 5. The first error ends it: no step is submitted any more. It is answered when the steps in flight are over.
 6. Cancelling does the same, and cancels the steps in flight.
 7. There is exactly one final answer, after which nothing is held. What comes later is ignored.
 8. Members count their own requests, and the ensemble its own (docs/reference/statistics.md#what-each-event-counts).
    One that succeeds is one execution of its own batch size; its compute times are the sums over its steps, side by
    side or not, and its queue time is what passed before its steps began. One that fails counts twice, as in Triton:
    once for the failure of the step and once for the request.

States, and the actions that `next_action` gives in each:

    RUNNING     Submit for each step that is ready, Respond for each complete iteration
    FAILED      nothing until the steps in flight are over, then Fail
    CANCELLED   CancelSteps once, then the same
    ENDED       nothing

An error leads from RUNNING to FAILED, a cancellation from both to CANCELLED, and the final Respond or Fail to ENDED.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import FailureReason, InvalidArgumentError, TriremeError, request_prefix
from ..job import Job, Outcome, Phase, SealReason
from ..metrics.statistics import ModelStatistics
from ..request import InferenceRequest, InferenceResponse, ParameterValue
from ..scheduling import refusals
from ..tensor import Tensor
from .flow import NO_SEQUENCE, SequenceInfo, adapted, in_ensemble, output_shape, override
from .plan import EnsemblePlan, PlannedStep

logger = logging.getLogger("trireme.ensemble")

Iteration = tuple[int, ...]
"""Which answer of each decoupled member on the way something follows from; () before the first."""


@dataclass(slots=True)
class ComputeTimes:
    """Sums over the steps of one request, in nanoseconds."""

    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, marks: Sequence[int]) -> None:
        """A member has answered a step, finally and without an error.

        Args:
            marks: of the execution that the step was part of, by `Phase`.
        """
        self.input_ns += max(0, marks[Phase.INFER_START] - marks[Phase.COMPUTE_START])
        self.infer_ns += max(0, marks[Phase.OUTPUT_START] - marks[Phase.INFER_START])
        self.output_ns += max(0, marks[Phase.COMPUTE_END] - marks[Phase.OUTPUT_START])

    def marks(self, start_ns: int) -> list[int]:
        """The sums as marks, by `Phase`, of one execution that starts at `start_ns`; they may end after the request."""
        infer_ns = start_ns + self.input_ns
        output_ns = infer_ns + self.infer_ns
        return [start_ns, infer_ns, output_ns, output_ns + self.output_ns]


class RunState(enum.Enum):
    __hash__ = object.__hash__  # asked for at every request, and nothing depends on its value

    RUNNING = "running"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ENDED = "ended"


@dataclass(slots=True)
class _Value:
    """A tensor on its way; None if it is absent.

    Attributes:
        rows: batch size of the request that it comes from; 0 without a batch dimension.
        sequence: of the step that made it; None for inputs of the ensemble.
        uses: how many steps and responses have yet to take it.
    """

    tensor: Tensor | None
    rows: int
    sequence: SequenceInfo | None
    uses: int


@dataclass(slots=True, eq=False, repr=False)
class StepCall:
    """One request to a member.

    Attributes:
        rows: its batch size; 0 if the member does not batch.
        sequence: its correlation id and flags.
        answers: how many responses have come.
    """

    run: EnsembleRun
    step: PlannedStep
    iteration: Iteration
    rows: int = 0
    sequence: SequenceInfo = NO_SEQUENCE
    answers: int = 0

    def __repr__(self) -> str:
        return f"<StepCall {self.step.model_name}{list(self.iteration)}: {self.answers} answers>"


@dataclass(frozen=True, slots=True)
class Submit:
    """Send this request to the member; tell of every response, and of its end, by `call`."""

    call: StepCall
    request: InferenceRequest


@dataclass(frozen=True, slots=True)
class CancelSteps:
    """Cancel these requests; their ends are still to be told."""

    calls: tuple[StepCall, ...]


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer the ensemble's job; a final answer of a decoupled ensemble may have no response."""

    run: EnsembleRun
    response: InferenceResponse | None
    final: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer the ensemble's job with this error, finally."""

    run: EnsembleRun
    error: TriremeError


EnsembleAction = Submit | CancelSteps | Respond | Fail


class EnsembleRun:
    """The state of one request.

    Args:
        plan: the ensemble's.
        job: the request to the ensemble, checked.

    Attributes:
        times: what its members spent; added when a member ends.
    """

    def __init__(self, plan: EnsemblePlan, job: Job) -> None:
        self.job = job
        self.state = RunState.RUNNING
        self._plan = plan
        self._needed = plan.needed(job.requested_outputs)
        self._outputs = tuple(name for name in plan.outputs if job.wants(name))
        self._sequence = SequenceInfo.of(job.request)
        self._values: dict[tuple[str, Iteration], _Value] = {}
        self._ready: dict[StepCall, None] = {}
        self._inflight: dict[StepCall, None] = {}
        self._responses: list[InferenceResponse] = []
        self._error: TriremeError | None = None
        self._must_cancel = False
        self._has_responded = False
        self.times = ComputeTimes()

    # Events.

    def start(self) -> None:
        """Begin, with the inputs of the job."""
        plan, job = self._plan, self.job
        if job.cancelled:
            self.cancel()
            return
        rows = job.rows if plan.batching else 0
        arrived = [name for name in plan.inputs if name in job.inputs or name in plan.optional_inputs]
        for name in arrived:
            self._put(name, (), job.inputs.get(name), rows, None)
        try:
            self._proceed(arrived, ())
        except TriremeError as error:
            self._fail(error)

    def step_answered(self, call: StepCall, outcome: Outcome, final: bool) -> None:
        """A member has answered, or refused the request.

        Args:
            outcome: None, with `final`, when it has nothing more to say.
            final: nothing follows from this call.
        """
        if call not in self._inflight:
            return
        if final:
            del self._inflight[call]
        if self.state is not RunState.RUNNING:
            return
        if isinstance(outcome, TriremeError):
            self._fail(outcome)
        elif outcome is not None and (call.step.decoupled or not call.answers):
            try:
                self._take(call, outcome)
            except TriremeError as error:
                self._fail(error)

    def step_dropped(self, call: StepCall) -> None:
        """A submitted request never reached its member, and never will."""
        self._inflight.pop(call, None)

    def cancel(self) -> None:
        """The client gave up."""
        if self.state in (RunState.RUNNING, RunState.FAILED):
            self.job.cancelled = True
            self._must_cancel = True
            self._stop(RunState.CANCELLED, refusals.cancelled())

    # Actions.

    def next_action(self) -> EnsembleAction | None:
        """What to do now; None for nothing before the next event."""
        if self.state is RunState.ENDED:
            return None
        if self._must_cancel:
            self._must_cancel = False
            if self._inflight:
                return CancelSteps(tuple(self._inflight))
        busy = bool(self._ready or self._inflight)
        if self._responses and (self._plan.decoupled or not busy):
            response = self._responses.pop(0)
            self._has_responded = True
            is_last = not (busy or self._responses or self._error)
            return self._end(Respond(self, response, True)) if is_last else Respond(self, response, False)
        if self._ready:
            return self._submit()
        return None if busy else self._final_action()

    def _submit(self) -> EnsembleAction:
        call = next(iter(self._ready))
        del self._ready[call]
        self._inflight[call] = None
        return Submit(call, self._request(call))

    def _final_action(self) -> EnsembleAction:
        if self._error is None and (self._plan.decoupled or self._has_responded):
            return self._end(Respond(self, None, True))
        error = self._error or in_ensemble(
            self._plan.name,
            InvalidArgumentError(
                f"{request_prefix(self.job.id)}unexpected deadlock, at least one output is not set while no more "
                "ensemble steps can be made"
            ),
        )
        return self._end(Fail(self, error))

    def _end(self, action: EnsembleAction) -> EnsembleAction:
        assert self.state is not RunState.ENDED, f"{self} has ended"
        self.state = RunState.ENDED
        self._values.clear()
        return action

    # Data flow.

    def _fail(self, error: TriremeError) -> None:
        self._stop(RunState.FAILED, in_ensemble(self._plan.name, error))

    def _stop(self, state: RunState, error: TriremeError) -> None:
        """Rules 5 and 6: from now on, only wait for what is in flight."""
        self.state = state
        self._error = self._error or error
        self._ready.clear()
        self._values.clear()
        if not self._plan.decoupled:
            self._responses.clear()

    def _put(self, name: str, at: Iteration, tensor: Tensor | None, rows: int, sequence: SequenceInfo | None) -> None:
        uses = sum(index in self._needed for index in self._plan.consumers.get(name, ())) + (name in self._outputs)
        if uses:
            self._values[name, at] = _Value(tensor, rows, sequence, uses)

    def _take(self, call: StepCall, response: InferenceResponse) -> None:
        """A response's outputs become tensors of the ensemble."""
        step = call.step
        at = (*call.iteration, call.answers) if step.decoupled else call.iteration
        call.answers += 1
        sequence = override(call.sequence, response.parameters)
        made = {tensor.name: tensor for tensor in response.outputs}
        for output, name in step.outputs:
            self._put(name, at, made.get(output), call.rows, sequence)
        self._proceed([name for _, name in step.outputs], at)

    def _proceed(self, arrived: list[str], at: Iteration) -> None:
        """Do what these tensors make possible."""
        plan, values = self._plan, self._values
        steps = {index: None for name in arrived for index in plan.consumers.get(name, ()) if index in self._needed}
        for index in sorted(steps):
            step = plan.steps[index]
            if all((name, at) in values for _, name in step.inputs):
                self._ready[StepCall(self, step, at)] = None
        outputs = self._outputs
        if any(name in outputs for name in arrived) and all((name, at) in values for name in outputs):
            self._responses.append(self._response(at))

    def _use(self, name: str, at: Iteration) -> _Value:
        """Take a tensor, which is let go after its last use."""
        value = self._values[name, at]
        value.uses -= 1
        if not value.uses:
            del self._values[name, at]
        return value

    def _request(self, call: StepCall) -> InferenceRequest:
        step, request = call.step, self.job.request
        names = dict.fromkeys(name for _, name in step.inputs)  # two inputs may take one tensor, which is one use
        values = {name: self._use(name, call.iteration) for name in names}
        inputs: list[Tensor] = []
        for name, source in step.inputs:
            value = values[source]
            if value.tensor is not None:
                shape = adapted(value.tensor.shape, value.rows, step.dims[name], step.batching)
                inputs.append(value.tensor.renamed(name, shape))
        if step.batching and inputs and inputs[0].shape:
            call.rows = inputs[0].shape[0]
        made = (value.sequence for value in values.values())
        call.sequence = next((sequence for sequence in made if sequence is not None), self._sequence)
        return InferenceRequest(
            step.model_name,
            step.model_version,
            request.id,
            inputs,
            tuple(name for name, _ in step.outputs),
            dict(request.parameters),
            request.priority,
            request.timeout_us,
            call.sequence.correlation_id,
            call.sequence.start,
            call.sequence.end,
            callers=request.callers,
        )

    def _response(self, at: Iteration) -> InferenceResponse:
        plan = self._plan
        outputs: list[Tensor] = []
        parameters: dict[str, ParameterValue] = {}
        for name in self._outputs:
            value = self._use(name, at)
            if value.tensor is None:
                logger.debug("Composing models did not output tensor %s", name)
                continue
            shape = output_shape(value.tensor.shape, value.rows, plan.outputs[name], plan.batching)
            outputs.append(value.tensor.renamed(name, shape))
            if value.sequence is not None:
                parameters.update(value.sequence.parameters())
        return self.job.response(outputs, parameters)

    @property
    def inflight(self) -> int:
        """Submitted requests that are not over."""
        return len(self._inflight)

    @property
    def held(self) -> int:
        """Tensors, calls and responses that are kept for later."""
        return len(self._values) + len(self._ready) + len(self._inflight) + len(self._responses)

    def __repr__(self) -> str:
        return f"<EnsembleRun of {self._plan.name} {self.state.value}: {len(self._inflight)} in flight>"


def record_success(
    statistics: ModelStatistics, job: Job, times: ComputeTimes, start_ns: int, released_ns: int, wall_ms: int
) -> None:
    """A request to an ensemble succeeded.

    Args:
        statistics: the ensemble's.
        start_ns: when its first steps began.
        released_ns: when its final answer went out.
    """
    marks = times.marks(start_ns)
    statistics.record_execution(job.rows, marks, wall_ms, SealReason.UNBATCHED)
    statistics.record_successes([(job.received_ns, job.enqueued_ns, job.rows)], marks, released_ns)


def record_failure(statistics: ModelStatistics, job: Job, released_ns: int) -> None:
    """A request to an ensemble failed, or was cancelled."""
    for _ in range(2):
        statistics.record_failure(job.received_ns, released_ns, FailureReason.OTHER)
