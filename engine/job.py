"""A request on its way through a model: the job that schedulers queue, and the batch in which an instance executes it.

Rules:
 1. A batch is executed once. Each of its jobs is answered by the backend; what the backend leaves unanswered, or all
    that is unanswered when it raises, is failed by `ExecutionBatch.finish`.
 2. Answers of an ordinary model are collected and delivered together when the batch is over: one hop from the
    instance's thread to the event loop, whatever the batch size. Answers of a decoupled model go out at once, through
    the `stream` callable, which must be callable from any thread.
 3. A job of an iterative model may be rescheduled instead of being answered; it then comes back in another batch, once,
    however often that was asked for. One that has its final answer is over: it does not come back.
 4. The time marks never go back: COMPUTE_START <= INFER_START <= OUTPUT_START <= COMPUTE_END. A mark that the backend
    did not take, or took out of order, equals the next one.
 5. A decoupled model may go on answering jobs of a batch that is over, while the instance executes another one.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from .clock import Clock
from .errors import FailureReason, InternalError, InvalidArgumentError, TriremeError
from .generation.records import GenerationRecord
from .instances.answer_window import AnswerWindow
from .request import InferenceRequest, InferenceResponse, ParameterValue
from .tensor import Tensor

_MOST_REPORTED = 65_536  # between two answers, from which on they are counted

Outcome = InferenceResponse | TriremeError | None
"""What a backend answers: a response, an error, or (final, decoupled models only) nothing more."""


class ReplyTarget(Protocol):
    """Where a job's answers go. Called on the event loop only."""

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """Pass an answer on; True if this was the final one, False for any other, late ones included."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class Job:
    """One accepted request.

    The first group of attributes is for backends; the second is the schedulers' and actors' own.

    Attributes:
        request: the request as decoded.
        inputs: the checked tensors by name, shapes as the backend sees them (``reshape`` applied).
        rows: batch size, at least 1; 1 for a model without a batch dimension.
        cancelled: the client gave up. A running backend may look at it at any time, from any thread.
        state: implicit state of the job's sequence, None outside stateful models.
        generated: what came of a request for generated text, once it is over; None for any other.

        reply: where the answer goes.
        on_cancel: called on the event loop when `cancelled` has become True; for a backend that cannot look.
        window: holds a model back that answers faster than its client reads; None if it answers once.
        nbytes: bytes of its inputs.
        arrival: number of the job in its scheduler's order of arrival; unique, so it breaks every tie.
        level: effective priority level, 1 the highest; 0 for models without levels.
        received_ns, enqueued_ns: when the server took the request, when its scheduler queued it.
        enqueued_s: the same as `enqueued_ns`, for decisions.
        deadline_s: when its time in the queue is over; None for never.
        responded: its first response is out (decoupled models).
        answered: its final answer is out; nothing more may follow.
        accepted: a scheduler has queued it; it may still be refused before.
        on_accepted: called then, once.
    """

    request: InferenceRequest
    inputs: Mapping[str, Tensor]
    rows: int
    model_name: str
    model_version: int
    reply: ReplyTarget
    received_ns: int = 0
    nbytes: int = 0
    cancelled: bool = field(default=False, init=False)
    state: Any = field(default=None, init=False)
    generated: GenerationRecord | None = field(default=None, init=False)
    window: AnswerWindow | None = field(default=None, init=False)
    arrival: int = field(default=0, init=False)
    level: int = field(default=0, init=False)
    enqueued_ns: int = field(default=0, init=False)
    enqueued_s: float = field(default=0.0, init=False)
    deadline_s: float | None = field(default=None, init=False)
    responded: bool = field(default=False, init=False)
    answered: bool = field(default=False, init=False)
    batch: ExecutionBatch | None = field(default=None, init=False)
    on_cancel: Callable[[], None] | None = field(default=None, init=False)
    accepted: bool = field(default=False, init=False)
    on_accepted: list[Callable[[], None]] | None = field(default=None, init=False)

    is_null: ClassVar[bool] = False
    """Only fills a row of a batch: it belongs to no request, and is not reported."""

    def accept(self) -> None:
        """It has been queued."""
        self.accepted = True
        if self.on_accepted is not None:
            calls, self.on_accepted = self.on_accepted, None
            for call in calls:
                call()

    def when_accepted(self, call: Callable[[], None]) -> None:
        """Have something called when it is accepted, which it is not yet."""
        if self.on_accepted is None:
            self.on_accepted = []
        self.on_accepted.append(call)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def requested_outputs(self) -> tuple[str, ...]:
        """Names to produce; empty means all."""
        return self.request.requested_outputs

    def wants(self, output_name: str) -> bool:
        """Whether the client asked for this output."""
        wanted = self.request.requested_outputs
        return not wanted or output_name in wanted

    def response(
        self, outputs: Sequence[Tensor], parameters: dict[str, ParameterValue] | None = None
    ) -> InferenceResponse:
        """A response to this request with these outputs (only requested ones belong in it)."""
        return InferenceResponse(self.model_name, self.model_version, self.request.id, list(outputs), parameters or {})

    def respond(self, response: InferenceResponse | None, final: bool = True) -> None:
        """Answer. From any thread; as often as the model likes, until one answer was final. Waits while too many
        answers of a decoupled model are on their way to a slow client.

        Args:
            response: the answer; None, with `final`, when there is nothing more to say (decoupled models).
            final: no answer follows.
        """
        batch = self.batch  # the event loop may take it away at any moment
        if batch is not None:  # None once the final answer is out: whatever comes later is dropped
            if self.window is not None:
                self.window.enter()
            batch.answer(self, response, final)

    def fail(self, error: TriremeError, final: bool = True) -> None:
        """Answer with an error, as with any response: see `respond`. Only decoupled models may go on after one."""
        batch = self.batch
        if batch is not None:
            if self.window is not None and not final:
                self.window.enter()
            batch.answer(self, error, final)

    def report_response(self, times: ResponseTimes) -> None:
        """Tell, before it is sent, how long a response of a decoupled model took (``response_stats``). From any
        thread; `ExecutionBatch.now_ns` is the clock."""
        batch = self.batch
        if batch is not None:
            batch.report(times)

    def report_activity(self, name: str, ns: int) -> None:
        """Note in the request's trace, if it is traced, that something has begun or ended; from any thread, before the
        final answer. With OpenTelemetry a pair of names ``X_START`` and ``X_END`` makes a span ``X``.

        Args:
            ns: when, by `time.monotonic_ns`.
        """
        if self.request.trace is not None:
            self.request.trace.note(name, ns)

    def reschedule(self) -> None:
        """Ask for the request to be executed once more instead of being answered (iterative sequences).

        Raises:
            TriremeError: the model is not configured for it.
        """
        assert self.batch is not None, "only a job in execution can be rescheduled"
        self.batch.reschedule(self)

    def __repr__(self) -> str:
        return f"<Job {self.model_name}#{self.arrival} rows={self.rows} level={self.level}>"


class ResponseOutcome(enum.Enum):
    """What became of a response. The value is how the protocols call it."""

    SUCCESS = "success"
    FAIL = "fail"
    EMPTY = "empty_response"  # only says that no more responses follow
    CANCEL = "cancel"  # the request was cancelled before


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """One response, as its backend reports it.

    Attributes:
        index: which one of its request, from 0.
        start_ns: when work on it began.
        output_start_ns: when it was computed, and its tensors were being copied; of no meaning for responses that are
            empty or cancelled.
        end_ns: when it was handed over.
    """

    index: int
    outcome: ResponseOutcome
    start_ns: int
    output_start_ns: int
    end_ns: int


class SealReason(enum.Enum):
    """Why a batch was closed when it was: the answer to "why did it not batch?"."""

    FULL = "full"  # max_batch_size rows, or the next request would not fit
    PREFERRED = "preferred size"
    DELAY = "delay over"  # the oldest request has waited for max_queue_delay
    IDLE = "instance idle"  # no delay configured: an idle instance takes what is there
    SHAPE = "next request incompatible"  # the next request's shapes or inputs differ
    UNBATCHED = "no batching"  # the default scheduler: one request an execution
    DRAIN = "drain"  # the model is stopping
    STRATEGY = "batch strategy"  # the model's own strategy wanted no more

    __hash__ = object.__hash__  # executions are counted by it, and Enum's is written in Python


class Phase(enum.IntEnum):
    """Time marks of an execution, in order."""

    COMPUTE_START = 0
    INFER_START = 1
    OUTPUT_START = 2
    COMPUTE_END = 3


COMPUTE_START, INFER_START, OUTPUT_START, COMPUTE_END = map(int, Phase)
"""The same for the path of every request: members of an enumeration take long to look up, and to index with."""


StreamAnswer = Callable[[Job, Outcome, bool], None]


class ExecutionBatch:
    """Jobs that one instance executes together.

    Attributes:
        jobs: in batch order.
        rows: sum of the jobs' batch sizes.
        instance_name: who executes it.
        gpu: where; None if that is no GPU instance.
        sealed: why the batch was closed.
        marks: nanoseconds for each `Phase`; -1 for not yet.
        answers: what the backend answered so far, in order: (job, outcome, final).
        rescheduled: jobs to be executed once more (rule 3).
        reported: times of responses that the backend has told and that are not counted yet.
        heard: a response of a decoupled model has come since this was last set to False.
        aside: a thread executes it, so that it may take its time, and not the event loop.
    """

    __slots__ = (
        "_clock",
        "_iterative",
        "_stream",
        "answers",
        "aside",
        "gpu",
        "heard",
        "instance_name",
        "jobs",
        "marks",
        "reported",
        "rescheduled",
        "rows",
        "sealed",
    )

    def __init__(
        self,
        jobs: Sequence[Job],
        instance_name: str,
        clock: Clock,
        sealed: SealReason = SealReason.UNBATCHED,
        stream: StreamAnswer | None = None,
        iterative: bool = False,
        gpu: int | None = None,
    ) -> None:
        self.jobs = jobs
        self.rows = jobs[0].rows if len(jobs) == 1 else sum([job.rows for job in jobs])
        self.instance_name = instance_name
        self.gpu = gpu
        self.sealed = sealed
        self.marks = [-1, -1, -1, -1]
        self.answers: list[tuple[Job, Outcome, bool]] = []
        self.rescheduled: list[Job] = []
        self.reported: deque[ResponseTimes] | None = None
        self.heard = False
        self.aside = False
        self._clock = clock
        self._stream = stream
        self._iterative = iterative
        for job in jobs:
            job.batch = self

    @property
    def took_ns(self) -> int:
        """How long it took, once it has finished."""
        marks = self.marks
        return marks[3] - marks[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        jobs = self.jobs
        return jobs[0].nbytes if len(jobs) == 1 else sum([job.nbytes for job in jobs])

    @property
    def failed(self) -> bool:
        """Whether no request was answered with anything but an error, once it has finished."""
        return all(isinstance(outcome, TriremeError) for _, outcome, _ in self.answers)

    def mark(self, phase: int) -> None:
        """Take the time mark of a `Phase` now."""
        self.marks[phase] = self._clock.now_ns()

    def now_ns(self) -> int:
        """The time by the clock that the marks are taken from."""
        return self._clock.now_ns()

    def marks_until(self, now_ns: int) -> Sequence[int]:
        """The marks, as if the execution ended now if it has not ended yet."""
        if self.marks[COMPUTE_END] >= 0:
            return self.marks
        marks = list(self.marks)
        _complete(marks, now_ns)
        return marks

    def report(self, times: ResponseTimes) -> None:
        """See `Job.report_response`."""
        if self.reported is None:
            self.reported = deque(maxlen=_MOST_REPORTED)
        self.reported.append(times)

    def take_reported(self) -> Iterator[ResponseTimes]:
        """What has been reported since the last call. The backend may be adding to it meanwhile."""
        while self.reported:
            yield self.reported.popleft()

    def answer(self, job: Job, outcome: Outcome, final: bool) -> None:
        """See `Job.respond`. Answers after the final one are dropped: the client is no longer there."""
        if job.answered:
            return
        if isinstance(outcome, TriremeError) and outcome.reason is FailureReason.OTHER:
            outcome.reason = FailureReason.BACKEND
        if final:
            job.answered = True
        if self._stream is not None:
            self._stream(job, outcome, final)
        else:
            self.answers.append((job, outcome, final))

    def reschedule(self, job: Job) -> None:
        """See `Job.reschedule`."""
        if self._iterative:
            self.rescheduled.append(job)
            return
        raise InvalidArgumentError(
            "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
            "handle such a flag."
        )

    def finish(self, error: TriremeError | None = None, *, keep_open: bool = False) -> None:
        """The execution is over (rules 1 and 4).

        Args:
            error: what `execute` raised, if it did; every job still unanswered gets it.
            keep_open: what is unanswered will be answered later, which the backend sees to (rule 5).
        """
        _complete(self.marks, self._clock.now_ns())
        for job in self.jobs:
            if not job.answered and not keep_open and job not in self.rescheduled:
                unanswered = f"the backend of '{self.instance_name}' finished the batch without answering this request"
                self.answer(job, error or InternalError(unanswered, reason=FailureReason.BACKEND), True)
        if self.rescheduled:
            self.rescheduled = [job for job in dict.fromkeys(self.rescheduled) if not job.answered]

    def __repr__(self) -> str:
        return f"<ExecutionBatch of {len(self.jobs)} ({self.rows} rows) on {self.instance_name}: {self.sealed.value}>"


def _complete(marks: list[int], end_ns: int) -> None:
    """Rule 4, for an execution that ends at `end_ns`."""
    start_ns, infer_ns, output_ns, _ = marks
    if not 0 <= start_ns <= infer_ns <= output_ns <= end_ns:
        if not 0 <= output_ns <= end_ns:
            output_ns = end_ns
        if not 0 <= infer_ns <= output_ns:
            infer_ns = output_ns
        if not 0 <= start_ns <= infer_ns:
            start_ns = infer_ns
        marks[: OUTPUT_START + 1] = start_ns, infer_ns, output_ns
    marks[COMPUTE_END] = end_ns  # at last: other threads take it for the sign that all are there
