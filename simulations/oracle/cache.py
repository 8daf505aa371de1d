"""What is answered from the response cache, and what is not (docs/reference/response-cache.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...engine.metrics.statistics import ModelStatisticsEntry
from ...engine.tensor import Tensor
from ..events import AnswerFound, ReplyDelivered, RequestAnswered, RequestQueued, RequestRefused, RequestSubmitted
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState
from .observed import Admitted, CoreMade, DroppedAtDoor, FoundInCache

Content = tuple[tuple[str, str, tuple[int, ...], bytes], ...]


class RightHits(Invariant):
    """A request is answered from the cache if, and only if, its model uses it and has answered an equal request well
    before; equal are names, types, shapes and contents of all inputs. Each new response that is kept is a miss.

    Args:
        plenty: the cache has room for all responses; otherwise any may have gone.
    """

    name = "the response cache answers what was answered before, and nothing else"

    def __init__(self, complain: Complain, state: WorldState, plenty: bool) -> None:
        super().__init__(complain)
        self._state = state
        self._plenty = plenty
        self._kept: dict[str, dict[Content, None]] = {}
        self._asked: dict[int, tuple[str, Content]] = {}

    def handlers(self) -> Handlers:
        if not any(view.config.response_cache for view in self._state.models.values()):
            return {}
        return {
            CoreMade: self._made,
            Admitted: self._admitted,
            FoundInCache: self._found,
            ReplyDelivered: self._delivered,
        }

    def _made(self, event: CoreMade) -> None:
        """A model that is loaded again does not find what it has answered before."""
        if event.config.response_cache:
            self._kept[event.core] = {}

    def _admitted(self, event: Admitted) -> None:
        kept = self._kept.get(event.core)
        if kept is None:
            return
        content = content_of(event.inputs)
        self._asked[event.request] = event.core, content
        if self._plenty and content in kept:
            self.broken(f"request {event.request} was queued by '{event.core}'; its answer is in the cache")

    def _found(self, event: FoundInCache) -> None:
        kept = self._kept.get(event.core)
        if kept is not None and content_of(event.inputs) not in kept:
            self.broken(f"request {event.request} was answered from the cache of '{event.core}', which never was asked")

    def _delivered(self, event: ReplyDelivered) -> None:
        core, content = self._asked.pop(event.request, ("", ())) if event.final else ("", ())
        if core and not event.error and not event.late:
            self._kept[core][content] = None

    def reported(self, entries: Iterable[ModelStatisticsEntry], serving: Mapping[str, str]) -> None:
        for entry in entries:
            kept = self._kept.get(serving[entry.name])
            counted = entry.statistics.cache_miss.count
            if kept is not None and self._plenty and counted != len(kept):
                self.broken(f"'{serving[entry.name]}' counts {counted} misses; {len(kept)} responses were kept")


class DoorKeepsOrder(Invariant):
    """With preserve_ordering, requests that wait for the cache get past their door in the order in which they came."""

    name = "requests that wait for the cache keep their order"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._waiting: dict[int, int] = {}  # requests, with the order in which they came
        self._latest: dict[str, tuple[int, int]] = {}  # by generation: of who has passed; each has a door of its own
        self._count = 0

    def handlers(self) -> Handlers:
        return {
            RequestSubmitted: self._submitted,
            RequestAnswered: self._left,
            RequestRefused: self._left,
            DroppedAtDoor: self._left,
            RequestQueued: self._passed,
            AnswerFound: self._passed,
        }

    def _submitted(self, event: RequestSubmitted) -> None:
        view = self._state.serving.get(event.model)
        batching = None if view is None else view.config.dynamic_batching
        if view is not None and batching is not None and batching.preserve_ordering and view.config.response_cache:
            self._count += 1
            self._waiting[event.request] = self._count

    def _left(self, event: RequestAnswered | RequestRefused | DroppedAtDoor) -> None:
        self._waiting.pop(event.request, None)

    def _passed(self, event: RequestQueued | AnswerFound) -> None:
        place = self._waiting.pop(event.request, None)
        if place is None:
            return
        latest, request = self._latest.get(event.model, (0, 0))
        if place < latest:
            self.broken(f"request {request} got past the door of '{event.model}' before request {event.request}")
        self._latest[event.model] = place, event.request


def content_of(inputs: Mapping[str, Tensor]) -> Content:
    """What requests have in common that are the same."""
    tensors = sorted(inputs.items())
    return tuple((name, each.datatype.name, tuple(each.shape), each.array.tobytes()) for name, each in tensors)
