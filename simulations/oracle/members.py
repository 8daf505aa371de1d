"""What ensembles ask of their members (docs/reference/ensembles.md#execution)."""

from __future__ import annotations

from ..events import ReplyDelivered, RequestSubmitted, StepSubmitted
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState

MemberRequest = tuple[int, int, int | str, bool, bool]


class MembersAreAsked(Invariant):
    """Each step has the priority, the timeout, the correlation id and the flags of the ensemble's request."""

    name = "steps are asked for as their ensemble was"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._asked: dict[int, MemberRequest] = {}
        self._parents: dict[int, int] = {}

    def handlers(self) -> Handlers:
        if not any(view.config.has_ensemble_scheduling for view in self._state.models.values()):
            return {}
        return {RequestSubmitted: self._submitted, StepSubmitted: self._step, ReplyDelivered: self._delivered}

    def _step(self, event: StepSubmitted) -> None:
        self._parents[event.request] = event.parent

    def _submitted(self, event: RequestSubmitted) -> None:
        asked = self._asked[event.request] = (
            event.priority,
            event.timeout_us,
            event.sequence,
            event.start,
            event.end,
        )
        parent = self._parents.pop(event.request, 0)
        if parent and asked != self._asked.get(parent):
            self.broken(f"step {event.request} was asked for with {asked}; its ensemble with {self._asked.get(parent)}")

    def _delivered(self, event: ReplyDelivered) -> None:
        if event.final:
            self._asked.pop(event.request, None)
