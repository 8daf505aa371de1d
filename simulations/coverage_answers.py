"""What must sometimes happen to requests that are executed several times, or answered any number of times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .events import (
    AnswerGiven,
    AnswerHeldBack,
    BatchSealed,
    CancelHeard,
    ReplyDelivered,
    RequestRejected,
    RequestRescheduled,
)
from .graphs import is_step
from .history import Handlers

REACHABLE_ANSWERS = (
    "a request executed again",
    "cancelled between two executions",
    "lost between two executions",
    "several answers",
    "no answer, and an end",
    "an end after the last answer",
    "two requests answered in turns",
    "failed amid its answers",
    "cancelled amid its answers",
    "a model held back by a client",
)


class AnswerCoverage:
    """Counts them.

    Args:
        count: called with each.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._waiting: set[int] = set()  # to be executed again
        self._given: Counter[int] = Counter()  # answers, by open request
        self._batches: dict[int, int] = {}  # by request, where it is executed
        self._speaking: dict[int, int] = {}  # by batch, the request that was answered last

    def handlers(self) -> Handlers:
        return {
            RequestRescheduled: self._rescheduled,
            RequestRejected: self._rejected,
            BatchSealed: self._sealed,
            AnswerGiven: self._answered,
            AnswerHeldBack: self._held_back,
            ReplyDelivered: self._delivered,
            CancelHeard: self._cancelled,
        }

    def _held_back(self, event: AnswerHeldBack) -> None:
        self._count("a member held back by its ensemble" if is_step(event.request) else "a model held back by a client")

    def _rescheduled(self, event: RequestRescheduled) -> None:
        self._waiting.add(event.request)
        self._count("a request executed again")

    def _rejected(self, event: RequestRejected) -> None:
        if event.request in self._waiting:
            self._waiting.remove(event.request)
            what = "lost" if "is lost, because" in event.error else "cancelled"
            self._count(f"{what} between two executions")

    def _sealed(self, event: BatchSealed) -> None:
        self._waiting.difference_update(event.requests)
        for request in event.requests:
            self._batches[request] = event.batch

    def _answered(self, event: AnswerGiven) -> None:
        before = self._given[event.request]
        if not event.answer:
            self._count("an end after the last answer" if before else "no answer, and an end")
            return
        if before:
            self._count("several answers")
        batch = self._batches[event.request]
        if before and self._speaking.get(batch) != event.request:
            self._count("two requests answered in turns")
        self._speaking[batch] = event.request
        self._given[event.request] += 1

    def _cancelled(self, event: CancelHeard) -> None:
        if event.request in self._given:
            self._count("cancelled amid its answers")

    def _delivered(self, event: ReplyDelivered) -> None:
        if event.final and self._given.pop(event.request, 0) and event.error:
            self._count("failed amid its answers")
