"""Requests that were executed together when a process ended are executed again, alone
(docs/python_models.md#processes, docs/differences.md#failures)."""

from __future__ import annotations

from ..events import BatchSealed, InstanceDetached, ReplyDelivered, RequestIsolated, RequestRejected
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.serving import STOPPING
from ..invariants.state import WorldState
from .decisions import CANCELLED
from .observed import ToldLeaving, ToldSeated, ToldSeatLost, ToldSettled

InstanceOf = tuple[str, str]
"""A model, and an instance of it."""

NOWHERE = -1
"""The seat of requests that no instance is to execute any more."""

OF_ALL = (STOPPING, "in a row")
"""With what everything is rejected that waits."""


class IsolatedAlone(Invariant):
    """Each is executed again, once and alone, by the next instance of the same seat, before that takes anything else,
    in the order of their batches. If there is none any more, by that of the instances that stay which holds the least,
    before anything else that it is given then. It is rejected only if no instance stays."""

    name = "who may have ended a process is executed again, alone"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._seats: dict[InstanceOf, int] = {}  # in the order in which they were taken
        self._held: dict[InstanceOf, set[int]] = {}  # batches, by their first requests
        self._leaving: set[InstanceOf] = set()
        self._waiting: dict[str, dict[int, int]] = {}  # by model, who waits for an instance of which seat
        self._given_up: set[str] = set()  # models of which requests were given up, at this instant
        self._done: set[int] = set()

    def handlers(self) -> Handlers:
        return {
            ToldSeated: self._seated,
            ToldLeaving: self._leaves,
            ToldSeatLost: self._lost,
            ToldSettled: self._settled,
            InstanceDetached: self._gone,
            RequestIsolated: self._isolated,
            BatchSealed: self._sealed,
            ReplyDelivered: self._over,
            RequestRejected: self._over,
        }

    def _seated(self, event: ToldSeated) -> None:
        place = event.core, event.instance
        self._seats[place] = event.seat
        self._held[place] = set()

    def _leaves(self, event: ToldLeaving) -> None:
        self._leaving.add((event.core, event.instance))

    def _gone(self, event: InstanceDetached) -> None:
        place = event.model, event.instance
        self._leaving.discard(place)
        del self._seats[place], self._held[place]

    def _lost(self, event: ToldSeatLost) -> None:
        waiting = self._waiting.get(event.core, {})
        left = [request for request, seat in waiting.items() if seat == event.seat]
        if not left:
            return
        if not event.heirs:
            self._given_up.add(event.core)
        heirs = [place for place in self._staying(event.core) if self._seats[place] in event.heirs]
        first = next(iter(event.heirs), NOWHERE)
        heir = self._seats[min(heirs, key=lambda each: len(self._held[each]))] if heirs else first
        for request in left:
            waiting[request] = heir

    def _staying(self, model: str) -> list[InstanceOf]:
        return [place for place in self._seats if place[0] == model and place not in self._leaving]

    def instant_over(self, now_ns: int) -> None:
        """Who leaves has been told so by then."""
        for model in self._given_up:
            if not self._state.models[model].stopping and (staying := self._staying(model)):
                self.broken(f"requests are given up at {now_ns} ns, but {staying} could execute them")
        self._given_up.clear()

    def _isolated(self, event: RequestIsolated) -> None:
        if event.request in self._done:
            self.broken(f"request {event.request} is to be executed for the third time")
        self._done.add(event.request)
        self._waiting.setdefault(event.model, {})[event.request] = event.seat

    def _sealed(self, event: BatchSealed) -> None:
        place = event.model, event.instance
        seat, waiting = self._seats[place], self._waiting.get(event.model, {})
        first = next((request for request, its in waiting.items() if its == seat), None)
        if first is not None and event.requests != (first,):
            self.broken(f"'{event.instance}' executes {event.requests}; right is request {first}, alone")
        for request in event.requests:
            if waiting.pop(request, seat) != seat:
                self.broken(f"request {request} is executed by '{event.instance}', which is not to")
        self._held[place].add(event.requests[0])

    def _settled(self, event: ToldSettled) -> None:
        for place, held in self._held.items():
            if place[0] == event.core:
                held.discard(event.requests[0])

    def _over(self, event: ReplyDelivered | RequestRejected) -> None:
        """Of one that is rejected the answer may have to wait for its turn."""
        for waiting in self._waiting.values():
            seat = waiting.pop(event.request, NOWHERE)
            if seat == NOWHERE or event.error == CANCELLED or any(each in event.error for each in OF_ALL):
                continue
            self.broken(f"request {event.request}, which is to be executed again, got {event.error!r}")
