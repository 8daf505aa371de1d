"""Replies: one for each accepted request, whatever happens, and in order where order was promised."""

from __future__ import annotations

from ..events import AnswerFound, BatchSealed, ReplyDelivered, RequestAnswered, RequestQueued
from ..graphs import is_step
from ..history import Handlers
from .base import Complain, Invariant
from .state import WorldState


class OneReply(Invariant):
    """Each accepted request gets exactly one final reply (DESIGN: whatever crashes), and who listens hears of it."""

    name = "each accepted request gets exactly one final reply"

    def __init__(self, complain: Complain, max_inflight: int) -> None:
        super().__init__(complain)
        self._max_inflight = max_inflight
        self._inflight = 0  # of clients
        self._open: set[int] = set()
        self._final: dict[int, str] = {}  # with the error's text, until its client has it

    def handlers(self) -> Handlers:
        return {
            RequestQueued: self._queued,
            AnswerFound: self._queued,
            ReplyDelivered: self._delivered,
            RequestAnswered: self._answered,
            BatchSealed: self._sealed,
        }

    def _queued(self, event: RequestQueued | AnswerFound) -> None:
        if event.request in self._open or event.request in self._final:
            self.broken(f"request {event.request} was queued twice")
        self._open.add(event.request)
        self._inflight += not is_step(event.request)
        if self._inflight > self._max_inflight:
            self.broken(f"{self._inflight} requests are in flight; the server's budget is {self._max_inflight}")

    def _delivered(self, event: ReplyDelivered) -> None:
        if event.late or event.request not in self._open:
            self.broken(f"request {event.request} was answered again, with {event.error or 'a response'!r}")
        elif event.final:
            self._open.remove(event.request)
            self._inflight -= not is_step(event.request)  # a step has no share: its ensemble's request has paid for it
            self._final[event.request] = event.error

    def _answered(self, event: RequestAnswered) -> None:
        if event.request in self._open:
            self.broken(f"the client of request {event.request} has an answer that was never given: {event.error!r}")
        given = self._final.get(event.request)
        if given is not None and given != event.error:
            self.broken(f"request {event.request} was answered {given!r}; its client heard {event.error!r}")

    def _sealed(self, event: BatchSealed) -> None:
        for request in filter(None, event.requests):
            if request not in self._open:
                self.broken(f"request {request} in batch {event.batch} has its answer already")

    def finish(self) -> None:
        if self._open:
            self.broken(f"never answered: requests {sorted(self._open)}")


class AnswersInOrder(Invariant):
    """With preserve_ordering, answers leave in the order in which the requests came, those too that were found in the
    response cache (docs/reference/scheduling.md#preserved-order)."""

    name = "answers leave in order where that was asked for"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._lines: dict[int, dict[int, None]] = {}  # by request, the line that it stands in
        self._by_model: dict[str, dict[int, None]] = {}

    def handlers(self) -> Handlers:
        dynamic = [view.config.dynamic_batching for view in self._state.models.values()]
        if not any(batching is not None and batching.preserve_ordering for batching in dynamic):
            return {}
        return {RequestQueued: self._queued, AnswerFound: self._queued, ReplyDelivered: self._delivered}

    def _queued(self, event: RequestQueued | AnswerFound) -> None:
        batching = self._state.models[event.model].config.dynamic_batching
        if batching is not None and batching.preserve_ordering:
            line = self._lines[event.request] = self._by_model.setdefault(event.model, {})
            line[event.request] = None

    def _delivered(self, event: ReplyDelivered) -> None:
        line = self._lines.get(event.request)
        if line is None or event.late:
            return
        first = next(iter(line))
        if first != event.request:
            self.broken(f"request {event.request} was answered before request {first}, which came first")
        if event.final:
            del self._lines[event.request], line[event.request]
