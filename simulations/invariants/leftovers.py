"""Nothing is left when a server has stopped; and its statistics agree with what its clients saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...actors import InferenceServer, Reply
from ...actors.scheduler import Scheduler
from ...engine.description import ModelState
from ...engine.metrics.statistics import ModelStatisticsEntry
from ..events import AnswerFound, BatchSealed, ReplyDelivered, RequestQueued, RequestRescheduled
from ..generations import model_of
from ..history import Handlers
from ..oracle.observed import DroppedAtDoor
from ..taps import TappedDoor
from .base import Complain, Invariant


def leftovers(server: InferenceServer, schedulers: Iterable[TappedDoor], replies: Mapping[int, Reply]) -> Iterator[str]:
    """What a stopped server still holds, a text each.

    Args:
        replies: by request; those that may not have been taken.
    """
    budget = server.budget_statistics()
    if budget.requests or budget.bytes or budget.waiting:
        yield f"of the server-wide budget are left: {budget}"
    for scheduler in schedulers:
        instances = len(scheduler.instances) if isinstance(scheduler, Scheduler) else 0
        if scheduler.inflight or instances:
            yield f"{scheduler!r} with {instances} instances is left"
    for model in server.model_statistics():
        if model.instances_alive or model.inflight or (server.drained and model.state is not ModelState.UNAVAILABLE):
            yield f"of model '{model.name}' is left: {model}"
    for number, reply in replies.items():
        if not reply.final:
            yield f"the reply to request {number} is open: {reply!r}"


@dataclass(slots=True)
class Seen:
    """What a model's statistics should say."""

    is_ensemble: bool
    successes: int = 0
    failures: int = 0
    executions: int = 0
    hits: int = 0
    pending: int = 0


class HonestStatistics(Invariant):
    """A model's statistics count each accepted request once, as what it came to, and each execution. An ensemble counts
    a success as an execution, and a failure twice (`engine.ensemble.run`); an execution after which a request
    comes back is a success as well, and what was found in the response cache is one without an execution.

    Args:
        ensembles: their names.
    """

    name = "statistics count what happened"

    def __init__(self, complain: Complain, ensembles: frozenset[str]) -> None:
        super().__init__(complain)
        self._ensembles = ensembles
        self._by_request: dict[int, Seen] = {}
        self._by_model: dict[str, Seen] = {}

    def handlers(self) -> Handlers:
        return {
            RequestQueued: self._queued,
            AnswerFound: self._found,
            ReplyDelivered: self._delivered,
            RequestRescheduled: self._rescheduled,
            BatchSealed: self._sealed,
            DroppedAtDoor: self._dropped,
        }

    def _queued(self, event: RequestQueued) -> None:
        self._by_request[event.request] = self._of(event.model)

    def _found(self, event: AnswerFound) -> None:
        seen = self._of(event.model)
        seen.hits += 1
        seen.successes += 1  # and nothing that it comes to later

    def _delivered(self, event: ReplyDelivered) -> None:
        seen = self._by_request.get(event.request)
        if event.final and not event.late and seen is not None:
            if event.error:
                seen.failures += 1 + seen.is_ensemble
            else:
                seen.successes += 1
                seen.executions += seen.is_ensemble

    def _dropped(self, event: DroppedAtDoor) -> None:
        self._of(event.core).failures += 1

    def _rescheduled(self, event: RequestRescheduled) -> None:
        self._of(event.model).successes += 1

    def _sealed(self, event: BatchSealed) -> None:
        self._of(event.model).executions += 1

    def _of(self, model: str) -> Seen:
        seen = self._by_model.get(model)
        if seen is None:
            seen = self._by_model[model] = Seen(model_of(model) in self._ensembles)
        return seen

    def reported(self, entries: Iterable[ModelStatisticsEntry], serving: Mapping[str, str]) -> None:
        for entry in entries:
            own, seen = entry.statistics, self._of(serving[entry.name])
            said = {
                "successes": own.success.count,
                "failures": own.fail.count,
                "executions": own.execution_count,
                "hits": own.cache_hit.count,
                "pending": own.pending,
            }
            for what, count in said.items():
                if count != getattr(seen, what):
                    self.broken(f"'{entry.name}' counts {count} {what}; there were {getattr(seen, what)}")
