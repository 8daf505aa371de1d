"""A request on its way through a model: what schedulers queue and what backends execute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .errors import TriremeError
from .instances.answer_window import AnswerWindow
from .request import InferenceRequest, InferenceResponse, ParameterValue
from .tensor import Tensor

if TYPE_CHECKING:
    from .metrics.statistics import ResponseTimes

Outcome = InferenceResponse | TriremeError | None
"""What a backend answers: a response, an error, or (final, decoupled models only) nothing more."""


class Reply(Protocol):
    """Where a job's answers go. Called on the event loop only."""

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """Pass an answer on; True if this was the final one, False for any other, late ones included."""
        ...


class Batch(Protocol):
    """What a job knows of the batch that it is executed in: see `execution.ExecutionBatch`."""

    gpu: int | None
    heard: bool
    marks: list[int]
    reported: deque[ResponseTimes] | None

    def answer(self, job: Job, outcome: Outcome, final: bool) -> None: ...

    def report(self, times: ResponseTimes) -> None: ...

    def take_reported(self) -> Iterator[ResponseTimes]: ...

    def reschedule(self, job: Job) -> None: ...

    def marks_until(self, now_ns: int) -> Sequence[int]: ...


class Job:
    """One accepted request.

    The first group of attributes is for backends; the second is the schedulers' and actors' own.

    Attributes:
        request: the request as decoded.
        inputs: the checked tensors by name, shapes as the backend sees them (``reshape`` applied).
        rows: batch size, at least 1; 1 for a model without a batch dimension.
        requested_outputs: names to produce; empty means all.
        cancelled: the client gave up. A running backend may look at it at any time, from any thread.
        state: implicit state of the job's sequence, None outside stateful models.

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

    is_null = False
    """Only fills a row of a batch: it belongs to no request, and is not reported."""

    __slots__ = (
        "accepted",
        "answered",
        "arrival",
        "batch",
        "cancelled",
        "deadline_s",
        "enqueued_ns",
        "enqueued_s",
        "inputs",
        "level",
        "model_name",
        "model_version",
        "nbytes",
        "on_accepted",
        "on_cancel",
        "received_ns",
        "reply",
        "request",
        "requested_outputs",
        "responded",
        "rows",
        "state",
        "window",
    )

    def __init__(
        self,
        request: InferenceRequest,
        inputs: Mapping[str, Tensor],
        rows: int,
        model_name: str,
        model_version: int,
        reply: Reply,
        received_ns: int = 0,
        nbytes: int = 0,
    ) -> None:
        self.request = request
        self.inputs = inputs
        self.rows = rows
        self.requested_outputs = request.requested_outputs
        self.model_name = model_name
        self.model_version = model_version
        self.cancelled = False
        self.state: Any = None
        self.reply = reply
        self.window: AnswerWindow | None = None
        self.nbytes = nbytes
        self.arrival = 0
        self.level = 0
        self.received_ns = received_ns
        self.enqueued_ns = 0
        self.enqueued_s = 0.0
        self.deadline_s: float | None = None
        self.responded = False
        self.answered = False
        self.batch: Batch | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.accepted = False
        self.on_accepted: list[Callable[[], None]] | None = None

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

    def wants(self, output_name: str) -> bool:
        """Whether the client asked for this output."""
        return not self.requested_outputs or output_name in self.requested_outputs

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
