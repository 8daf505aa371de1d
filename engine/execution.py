"""A batch in execution: what an instance hands to its backend, and what comes back.

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
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .clock import Clock
from .errors import FailureReason, InternalError, InvalidArgumentError, TriremeError
from .job import Job, Outcome

if TYPE_CHECKING:
    from .metrics.statistics import ResponseTimes

_MOST_REPORTED = 65_536  # between two answers, from which on they are counted


class SealReason(enum.Enum):
    """Why a batch was closed when it was: the answer to "why did it not batch?"."""

    FULL = "full"  # max_batch_size rows, or the next request would not fit
    PREFERRED = "preferred size"
    DELAY = "delay over"  # the oldest request has waited for max_queue_delay
    IDLE = "instance idle"  # no delay configured: an idle instance takes what is there
    SHAPE = "next request incompatible"  # the next request's shapes or inputs differ
    UNBATCHED = "no batching"  # the default scheduler: one request an execution
    DRAIN = "drain"  # the model is stopping

    __hash__ = object.__hash__  # executions are counted by it, and Enum's is written in Python


class Phase(enum.IntEnum):
    """Time marks of an execution, in order."""

    COMPUTE_START = 0
    INFER_START = 1
    OUTPUT_START = 2
    COMPUTE_END = 3


Stream = Callable[[Job, Outcome, bool], None]


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
    """

    __slots__ = (
        "_clock",
        "_iterative",
        "_stream",
        "answers",
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
        stream: Stream | None = None,
        iterative: bool = False,
        gpu: int | None = None,
    ) -> None:
        self.jobs = jobs
        self.rows = jobs[0].rows if len(jobs) == 1 else sum(job.rows for job in jobs)
        self.instance_name = instance_name
        self.gpu = gpu
        self.sealed = sealed
        self.marks = [-1, -1, -1, -1]
        self.answers: list[tuple[Job, Outcome, bool]] = []
        self.rescheduled: list[Job] = []
        self.reported: deque[ResponseTimes] | None = None
        self.heard = False
        self._clock = clock
        self._stream = stream
        self._iterative = iterative
        for job in jobs:
            job.batch = self

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        jobs = self.jobs
        return jobs[0].nbytes if len(jobs) == 1 else sum([job.nbytes for job in jobs])

    def mark(self, phase: Phase) -> None:
        """Take a time mark now."""
        self.marks[phase] = self._clock.now_ns()

    def now_ns(self) -> int:
        """The time by the clock that the marks are taken from."""
        return self._clock.now_ns()

    def marks_until(self, now_ns: int) -> Sequence[int]:
        """The marks, as if the execution ended now if it has not ended yet."""
        if self.marks[Phase.COMPUTE_END] >= 0:
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
                self.answer(job, error or _unanswered(self.instance_name), True)
        if self.rescheduled:
            self.rescheduled = [job for job in dict.fromkeys(self.rescheduled) if not job.answered]

    def __repr__(self) -> str:
        return f"<ExecutionBatch of {len(self.jobs)} ({self.rows} rows) on {self.instance_name}: {self.sealed.value}>"


def _complete(marks: list[int], end_ns: int) -> None:
    """Rule 4, for an execution that ends at `end_ns`."""
    start_ns, infer_ns, output_ns, _ = marks
    if not 0 <= output_ns <= end_ns:
        output_ns = end_ns
    if not 0 <= infer_ns <= output_ns:
        infer_ns = output_ns
    if not 0 <= start_ns <= infer_ns:
        start_ns = infer_ns
    marks[:] = start_ns, infer_ns, output_ns, end_ns


def _unanswered(instance_name: str) -> TriremeError:
    return InternalError(
        f"the backend of '{instance_name}' finished the batch without answering this request",
        reason=FailureReason.BACKEND,
    )
