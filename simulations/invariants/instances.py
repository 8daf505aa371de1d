"""Instances execute one batch at a time, or as many as they have credits, and die of nothing but faults."""

from __future__ import annotations

from ..events import (
    DONE,
    GIVEN_UP,
    BatchSealed,
    ExecutionEnded,
    InstanceDetached,
    ModelStateChanged,
    RequestIsolated,
    RequestRescheduled,
    ServerStopping,
)
from ..history import Handlers
from .base import Complain, Invariant
from .batches import TOLERANCE_NS
from .state import WorldState

DEATHS = frozenset({"InstanceCrash", "ProcessLostError", "ExecutorDiedError", "SickDeviceError", GIVEN_UP})
"""How the execution of a batch may end that does not end well: a crash, the end of a process, an exit, a sick GPU, a
hang."""


class OneBatchAtATime(Invariant):
    """A batch goes to an instance that is attached and has none, or on a GPU, fewer than it has credits; and a request
    is executed once, unless an iterative model asks for more."""

    name = "an instance has one batch at a time"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._executed: set[int] = set()

    def handlers(self) -> Handlers:
        return {BatchSealed: self._sealed, RequestRescheduled: self._rescheduled, RequestIsolated: self._rescheduled}

    def _rescheduled(self, event: RequestRescheduled | RequestIsolated) -> None:
        self._executed.discard(event.request)

    def _sealed(self, batch: BatchSealed) -> None:
        view = self._state.models[batch.model]
        held = view.instances.get(batch.instance)
        if held is None:
            self.broken(f"batch {batch.batch} was sent to '{batch.instance}', which is not there")
        elif len(held) >= view.credits:
            has = ", ".join(map(str, sorted(held)))
            self.broken(f"batch {batch.batch} was sent to '{batch.instance}', which has batch {has}")
        for request in filter(None, batch.requests):
            if request in self._executed:
                self.broken(f"request {request} is executed again, in batch {batch.batch}")
            self._executed.add(request)


class DeathsAreFaults(Invariant):
    """An instance goes when its server stops it or a fault kills it, and no model that serves is given up. Anything
    else is a defect of the actors: an assertion, a full mailbox."""

    name = "nothing dies but of faults"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._stopping = False
        self._ends_ns: int | None = None  # when a server that stops has no more time

    def handlers(self) -> Handlers:
        return {
            ServerStopping: self._stop,
            ExecutionEnded: self._ended,
            InstanceDetached: self._detached,
            ModelStateChanged: self._changed,
        }

    def _stop(self, event: ServerStopping) -> None:
        self._stopping = True
        self._ends_ns = event.at_ns + event.limit_ns

    def _ended(self, event: ExecutionEnded) -> None:
        if event.ending != DONE and event.ending not in DEATHS:
            self.broken(f"an instance died of {event.ending} in batch {event.batch}")

    def _detached(self, event: InstanceDetached) -> None:
        view = self._state.models[event.model]
        in_time = self._ends_ns is None or event.at_ns + TOLERANCE_NS < self._ends_ns
        if in_time and not view.stopping and event.instance not in view.lost and view.ready and view.count >= 0:
            self.broken(f"'{event.instance}' is gone, and no fault struck it")

    def _changed(self, event: ModelStateChanged) -> None:
        view = self._state.models.get(event.model)
        if event.state == "UNAVAILABLE" and view is not None and view.ready and not self._stopping:
            self.broken(f"'{event.model}' was given up")
