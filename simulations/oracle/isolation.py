"""Requests that were executed together when a process ended are executed again, alone
(docs/python_models.md#processes, docs/differences.md#failures)."""

from __future__ import annotations

from ..events import BatchSealed, ChangeAsked, ReplyDelivered, RequestIsolated, RequestRejected
from ..generations import model_of
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..plan import RESIZED_TO


class IsolatedAlone(Invariant):
    """Each is executed again, once and alone, by the next instance of the same place, before that takes anything else,
    in the order of their batch."""

    name = "who may have ended a process is executed again, alone"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._places: dict[str, list[int]] = {}  # by instance, who waits to be executed there
        self._place_of: dict[int, str] = {}
        self._done: set[int] = set()
        self._resized: set[str] = set()  # whose places may be given to others

    def handlers(self) -> Handlers:
        return {
            RequestIsolated: self._isolated,
            BatchSealed: self._sealed,
            ReplyDelivered: self._over,
            RequestRejected: self._over,
            ChangeAsked: self._changes,
        }

    def _changes(self, event: ChangeAsked) -> None:
        """The name of an instance does not tell its place any more."""
        if event.change.startswith(RESIZED_TO):
            self._resized.add(event.model)
            self._places.clear()
            self._place_of.clear()

    def _isolated(self, event: RequestIsolated) -> None:
        if event.request in self._done:
            self.broken(f"request {event.request} is to be executed for the third time")
        self._done.add(event.request)
        if model_of(event.model) in self._resized:
            return
        self._places.setdefault(event.instance, []).append(event.request)
        self._place_of[event.request] = event.instance

    def _sealed(self, event: BatchSealed) -> None:
        waiting = self._places.get(event.instance)
        if waiting:
            if event.requests != (waiting[0],):
                self.broken(f"'{event.instance}' executes {event.requests}; right is request {waiting[0]}, alone")
            del self._place_of[waiting.pop(0)]
        for request in event.requests:
            if request in self._place_of:
                self.broken(f"request {request} is executed by '{event.instance}', not '{self._place_of[request]}'")

    def _over(self, event: ReplyDelivered | RequestRejected) -> None:
        """Of one that is rejected the answer may have to wait for its turn."""
        place = self._place_of.pop(event.request, "")
        if place:
            self._places[place].remove(event.request)
