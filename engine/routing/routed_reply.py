"""How requests for routes end: told at the final answer by what stands between the job and its reply.

So nothing else on a request's way knows about routes, and a request for a model pays nothing for them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from ..clock import Clock
from ..errors import ErrorKind, TriremeError
from ..job import COMPUTE_START, Job, Outcome
from ..metrics.family import MetricFamily
from ..request import InferenceRequest
from .route import Shadow
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

    def readiness_changed(self, route: str) -> None:
        """Which models can serve for a route may be others by now."""
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
        job: which goes where `choice` says, and is not queued yet.
        ended: told once, when the final answer has been passed on.

    Attributes:
        route: its name.
        kept: all answers in order, if the request has a shadow and there were no more than `MOST_KEPT`; else None.
        latency_ns, queue_ns: from the admission until the final answer, and in its queue; known from that on.
    """

    __slots__ = (
        "_cancelled",
        "_clock",
        "_ended",
        "_failed",
        "_job",
        "_reply",
        "choice",
        "kept",
        "latency_ns",
        "queue_ns",
        "route",
    )

    def __init__(
        self,
        job: Job,
        choice: RouteChoice,
        clock: Clock,
        ended: Callable[[RoutedReply, Job], None],
    ) -> None:
        self.route = job.request.model_name
        self.choice = choice
        self.kept: list[Outcome] | None = None if choice.shadow is None else []
        self.latency_ns = self.queue_ns = 0
        self._job: Job | None = job
        self._clock = clock
        self._ended = ended
        self._failed: TriremeError | None = None
        self._cancelled = False
        self._reply = job.reply
        job.reply = self

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """See `engine.job.ReplyTarget`."""
        job = self._job
        if job is None:
            return self._reply.deliver(outcome, final)
        if isinstance(outcome, TriremeError):
            self._failed = self._failed or outcome
        kept = self.kept
        if kept is not None:
            kept.append(outcome)
            if len(kept) > MOST_KEPT:
                self.kept = None
        if not final:
            return self._reply.deliver(outcome, final)
        self._job = None  # the job holds this: a cycle left here would be work for the garbage collector
        self._cancelled = job.cancelled
        self.latency_ns = self._clock.now_ns() - job.received_ns
        batch = job.batch  # none if it has no queue of its own, such as an ensemble
        if batch is not None and batch.marks[COMPUTE_START] > job.enqueued_ns:
            self.queue_ns = batch.marks[COMPUTE_START] - job.enqueued_ns
        was_last = self._reply.deliver(outcome, final)
        self._ended(self, job)
        return was_last

    @property
    def result(self) -> RoutedResult:
        """What became of the request."""
        if self._cancelled:
            return RoutedResult.OTHER
        return RoutedResult.SUCCESS if self._failed is None else result_of(self._failed)
