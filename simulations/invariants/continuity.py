"""Sequences go on until there is a reason for them to be over (docs/reference/sequences.md#admission,
docs/reference/sequences.md#oldest-strategy)."""

from __future__ import annotations

from dataclasses import dataclass

from ..events import (
    CancelHeard,
    InstanceDetached,
    ModelStateChanged,
    ReplyDelivered,
    RequestDropped,
    RequestQueued,
    RequestRefused,
    RequestRejected,
    RequestSubmitted,
)
from ..generations import model_of
from ..history import Handlers
from .base import Complain, Invariant
from .batches import TOLERANCE_NS
from .state import WorldState

NO_START = "must specify the START flag"


@dataclass(slots=True)
class Going:
    """A sequence that has begun, and not ended.

    Attributes:
        where: the generation that has it.
        heard_ns: when its last request came.
    """

    where: str
    heard_ns: int


class SequencesGoOn(Invariant):
    """A request that continues a sequence is refused for a missing START only if that may be so: it was silent for as
    long as it may be, a request of it was cancelled, an instance was lost, or its model was unloaded. That its model
    was loaded again is no reason. What comes before the START is refused, too, even if that is heard of later: another
    generation may have it by then, which the START was for.
    """

    name = "sequences go on until they are over"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._going: dict[tuple[str, int | str], Going] = {}
        self._unloaded: set[str] = set()  # generations
        self._keys: dict[int, tuple[str, int | str]] = {}  # by accepted request
        self._early: set[int] = set()  # requests not heard yet that came when their sequence had not begun

    def handlers(self) -> Handlers:
        if not any(view.sequences for view in self._state.models.values()):
            return {}
        return {
            RequestSubmitted: self._submitted,
            RequestQueued: self._queued,
            RequestRefused: self._refused,
            RequestRejected: self._over,
            RequestDropped: self._over,
            CancelHeard: self._over,
            ReplyDelivered: self._delivered,
            InstanceDetached: self._detached,
            ModelStateChanged: self._changed,
        }

    def _submitted(self, event: RequestSubmitted) -> None:
        if event.sequence and self._live(event.model, event.sequence, event.at_ns) is None:
            self._early.add(event.request)

    def _live(self, model: str, sequence: int | str, at_ns: int) -> Going | None:
        """The sequence, if it has begun, and was not silent for too long by then."""
        going = self._going.get((model, sequence))
        batching = None if going is None else self._state.serving[model].sequences
        if going is None or batching is None:
            return None
        silent_ns = batching.max_sequence_idle_us * 1_000
        return going if at_ns + TOLERANCE_NS < going.heard_ns + silent_ns else None

    def _queued(self, event: RequestQueued) -> None:
        self._early.discard(event.request)
        asked = self._state.asked.get(event.request)
        batching = self._state.models[event.model].sequences
        if asked is None or not asked.sequence or batching is None or batching.iterative:
            return  # in an iterative model the end is for the model to decide
        key = self._keys[event.request] = (asked.model, asked.sequence)
        if asked.end:
            self._going.pop(key, None)
        elif (asked.start or key in self._going) and event.model not in self._unloaded:
            self._going[key] = Going(event.model, event.at_ns)

    def _refused(self, event: RequestRefused) -> None:
        asked = self._state.asked.get(event.request) if NO_START in event.error else None
        if asked is None:
            return
        going = self._live(asked.model, asked.sequence, event.at_ns)
        if going is not None and event.request not in self._early:
            self.broken(f"request {event.request} was refused, and '{going.where}' has its sequence: {event.error}")

    def _over(self, event: RequestRejected | RequestDropped | CancelHeard) -> None:
        self._going.pop(self._keys.get(event.request, ("", 0)), None)

    def _delivered(self, event: ReplyDelivered) -> None:
        key = self._keys.pop(event.request, None) if event.final else None
        if key is not None and event.error:
            self._going.pop(key, None)

    def _changed(self, event: ModelStateChanged) -> None:
        """A model is unloaded, be it with its ensembles, if nothing takes the place of what served. What begins in it
        later on, because an ensemble holds it, cannot be continued either."""
        model = model_of(event.model)
        if event.state == "UNLOADING" and self._state.serving[model].name == event.model:
            self._unloaded.update(name for name in self._state.models if model_of(name) == model)
            for key in [key for key, going in self._going.items() if going.where in self._unloaded]:
                del self._going[key]

    def _detached(self, event: InstanceDetached) -> None:
        for key in [key for key, going in self._going.items() if going.where == event.model]:
            del self._going[key]
