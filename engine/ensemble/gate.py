"""``max_inflight_requests``: how many requests each step of an ensemble may have in flight
(docs/reference/ensembles.md#execution).

One gate serves all requests of an ensemble. Rules:
 1. A step never has more than the limit in flight, over all requests.
 2. A call that finds the gate full waits; the one that has waited longest goes first.
 3. A waiting call may be withdrawn; one that has gone through makes room when it is over. Both are fine at any time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Call = TypeVar("Call", bound=Hashable)


@dataclass(slots=True)
class _Step(Generic[Call]):
    """Calls in the order in which they came; nothing is at the gate and in flight at once."""

    inflight: set[Call] = field(default_factory=set)
    waiting: dict[Call, None] = field(default_factory=dict)


class StepGate(Generic[Call]):
    """Lets calls of each step through, up to a limit.

    Args:
        limit: calls in flight for each step; at least 1.
    """

    def __init__(self, limit: int) -> None:
        assert limit > 0, "a gate without a limit lets everything through"
        self.limit = limit
        self._steps: dict[int, _Step[Call]] = {}

    def enter(self, step: int, call: Call) -> bool:
        """Whether the call may go; if not, it waits until `leave` names it."""
        state = self._steps.setdefault(step, _Step())
        if len(state.inflight) < self.limit:
            state.inflight.add(call)
            return True
        state.waiting[call] = None
        return False

    def leave(self, step: int, call: Call) -> Call | None:
        """A call is over, or given up. The one that may go in its place, if any."""
        state = self._steps.get(step)
        if state is None:
            return None
        state.waiting.pop(call, None)
        if call not in state.inflight:
            return None
        state.inflight.remove(call)
        if not state.waiting:
            return None
        successor = next(iter(state.waiting))
        del state.waiting[successor]
        state.inflight.add(successor)
        return successor

    @property
    def waiting(self) -> int:
        """Calls at the gate."""
        return sum(len(state.waiting) for state in self._steps.values())

    @property
    def inflight(self) -> int:
        """Calls that went through and are not over."""
        return sum(len(state.inflight) for state in self._steps.values())
