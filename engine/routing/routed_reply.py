"""How requests for routes end: told at the final answer by what stands between the job and its reply.

So nothing else on a request's way knows about routes, and a request for a model pays nothing for them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ..clock import Clock
from ..errors import ErrorKind, TriremeError
from ..job import COMPUTE_START, Job, Outcome
from ..metrics.family import MetricFamily
from ..request import InferenceRequest
from .comparison import TargetOutcome
from .route import Shadow, Target
from .router import RouteChoice

MOST_KEPT = 1_024
"""Answers of one request that are kept for who compares them."""

_TARGETS_FAULT = frozenset((ErrorKind.INTERNAL, ErrorKind.UNAVAILABLE, ErrorKind.DEADLINE, ErrorKind.UNKNOWN))
"""Kinds of errors that clients cannot be to blame for."""


class RoutedResult(enum.Enum):
    """What became of a request."""

    SUCCESS = "success"
    FAILURE = "failure"  # an error, a timeout or a refusal that the client is not to blame for
    OTHER = "other"  # invalid, or given up by its client

    __hash__ = object.__hash__


def result_of(error: TriremeError) -> RoutedResult:
    """What a request became that has failed with this."""
    return RoutedResult.FAILURE if error.kind in _TARGETS_FAULT else RoutedResult.OTHER


class RequestEnded(NamedTuple):
    """A request for a route has its final answer.

    Attributes:
        outcome: None if it tells nothing about the target.
    """

    route: str
    target: Target
    result: RoutedResult
    outcome: TargetOutcome | None

    @classmethod
    def refused(cls, route: str, target: Target, error: TriremeError) -> RequestEnded:
        """It was refused before it became a job."""
        result = result_of(error)
        return cls(route, target, result, TargetOutcome(True) if result is RoutedResult.FAILURE else None)


class ShadowDoor(Protocol):
    """Takes requests of which a copy is to be made, and what was answered. Must not raise, and does not wait."""

    def answered(
        self, route: str, request: InferenceRequest, shadow: Shadow, outcomes: Sequence[Outcome], latency_s: float
    ) -> None:
        """A request for a route has its final answer.

        Args:
            outcomes: all answers in order. They and the request's inputs are as they were, not copied.
        """
        ...

    def routes_changed(self, shadows: Collection[tuple[str, Shadow]]) -> None:
        """These are the shadows that there are by now, each with the name of its route."""
        ...

    def status(self, route: str) -> dict[str, Any]:
        """What is shown of a route's shadow."""
        ...

    def families(self) -> Iterator[MetricFamily]:
        """Metrics; none without shadows."""
        ...


class RoutedReply:
    """Takes the place of a job's reply, to which it passes everything on.

    Args:
        choice: where the request goes; the job is not queued yet.
        ended: told once, after the reply; with all answers in order, if the request has a shadow, was accepted and not
            given up, and there were no more than `MOST_KEPT`.
    """

    __slots__ = ("_choice", "_clock", "_ended", "_failed", "_job", "_kept", "_reply")

    def __init__(
        self,
        job: Job,
        choice: RouteChoice,
        clock: Clock,
        ended: Callable[[RequestEnded, Job, RouteChoice, Sequence[Outcome] | None], None],
    ) -> None:
        self._job: Job | None = job
        self._choice = choice
        self._clock = clock
        self._ended = ended
        self._failed: TriremeError | None = None
        self._kept: list[Outcome] | None = None if choice.shadow is None else []
        self._reply = job.reply
        job.reply = self

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """See `engine.job.ReplyTarget`."""
        job = self._job
        if job is None:
            return self._reply.deliver(outcome, final)
        if isinstance(outcome, TriremeError):
            self._failed = self._failed or outcome
        kept = self._kept
        if kept is not None:
            kept.append(outcome)
            if len(kept) > MOST_KEPT:
                self._kept = None
        if not final:
            return self._reply.deliver(outcome, final)
        self._job = None  # the job holds this: a cycle left here would be work for the garbage collector
        ended = self._end_of(job)
        was_last = self._reply.deliver(outcome, final)
        self._ended(ended, job, self._choice, self._kept if job.accepted and not job.cancelled else None)
        return was_last

    def _end_of(self, job: Job) -> RequestEnded:
        failed = self._failed
        result = RoutedResult.SUCCESS if failed is None else result_of(failed)
        if job.cancelled:
            result = RoutedResult.OTHER
        outcome = None
        if result is RoutedResult.SUCCESS:
            now_ns = self._clock.now_ns()
            outcome = TargetOutcome(False, (now_ns - job.received_ns) * 1e-9, _queued_ns(job) * 1e-9)
        elif result is RoutedResult.FAILURE:
            outcome = TargetOutcome(True)
        return RequestEnded(job.request.model_name, self._choice.target, result, outcome)


def _queued_ns(job: Job) -> int:
    """How long it was in its queue; 0 for what has no queue of its own, such as an ensemble."""
    batch = job.batch
    begun_ns = -1 if batch is None else batch.marks[COMPUTE_START]
    return max(0, begun_ns - job.enqueued_ns) if begun_ns >= 0 else 0
