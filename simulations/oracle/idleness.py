"""Which instances are idle: the scheduler's core must know (docs/reference/scheduling.md#batches-and-instances)."""

from __future__ import annotations

from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState
from .observed import CoreMade, Dispatched, ToldGone, ToldIdle, ToldPaused


class IdleIsKnown(Invariant):
    """An instance that is there and has no batch in hand is one that the core may give a batch to, at the end of each
    instant, and no other is; however its last batch was executed, and whatever is queued.

    Instances that hold several batches are left out, and those that need leave to execute (`ToldPaused`).
    """

    name = "a scheduler knows which of its instances are idle"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._idle: dict[str, list[int]] = {}  # by core, the instances that it was told of
        self._limited: set[str] = set()

    def handlers(self) -> Handlers:
        return {
            CoreMade: self._made,
            ToldIdle: self._told_idle,
            ToldGone: self._not_idle,
            ToldPaused: self._paused,
            Dispatched: self._dispatched,
        }

    def _made(self, event: CoreMade) -> None:
        self._idle[event.core] = []

    def _told_idle(self, event: ToldIdle) -> None:
        self._idle[event.core].append(event.instance)

    def _not_idle(self, event: ToldGone | ToldPaused) -> None:
        self._idle[event.core] = [each for each in self._idle[event.core] if each != event.instance]

    def _paused(self, event: ToldPaused) -> None:
        self._not_idle(event)
        self._limited.add(event.core)

    def _dispatched(self, event: Dispatched) -> None:
        if event.instance in self._idle[event.core]:
            self._idle[event.core].remove(event.instance)

    def instant_over(self, now_ns: int) -> None:
        for name, view in self._state.touched.items():
            known = self._idle.get(name)
            if known is None or view.credits > 1 or name in self._limited:
                continue
            idle = [instance for instance, batches in view.instances.items() if not batches]
            if len(known) != len(idle):
                text = f"{len(idle)} instances of '{name}' are idle at {now_ns} ns: {idle}; its core knows {len(known)}"
                self.broken(text)
