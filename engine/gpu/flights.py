"""The batches that a GPU instance has in flight: which of them can be collected, and when to ask after one.

Rules:
 1. A batch can be collected when its launch has returned and the device has landed it, whichever comes first: the
    device may be faster than the thread that gives it work.
 2. A batch whose launch failed is over. Later notices of the device about it are ignored.
 3. A sick device says nothing. So the oldest batch in flight is asked after when it has been there for `LOOK_S`, and
    every `LOOK_S` from then on; the others stand behind it.
 4. When the instance is lost, its batches are answered elsewhere; what the device uses for them is kept until both of
    rule 1 are true, for until then the device may write to it. Only a sick device writes no more: nothing is kept.

States of a batch:

    LAUNCHING ──launched──▶ FLYING ──landed──▶ LANDED ──over──▶ OVER
        │ └─────landed────▶ EARLY ─launched─▶──┘
        └───────────────failed (from EARLY, too)─────────────────▲
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..backends.interface import StreamInstance
from ..job import ExecutionBatch

LOOK_S = 1.0


class FlightState(enum.Enum):
    __hash__ = object.__hash__  # asked for at every step, and nothing depends on its value

    LAUNCHING = "launching"
    EARLY = "landed early"
    FLYING = "in flight"
    LANDED = "landed"
    OVER = "over"


TRANSITIONS = {
    "launched": {FlightState.LAUNCHING: FlightState.FLYING, FlightState.EARLY: FlightState.LANDED},
    "landed": {
        FlightState.LAUNCHING: FlightState.EARLY,
        FlightState.FLYING: FlightState.LANDED,
        FlightState.OVER: FlightState.OVER,
    },
    "failed": {FlightState.LAUNCHING: FlightState.OVER, FlightState.EARLY: FlightState.OVER},
    "over": {FlightState.LANDED: FlightState.OVER},
}
"""By the methods of `Flights`; a state that is not there is a mistake of the caller."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One batch of an instance.

    Attributes:
        instance: None when the device needs it no more for this batch.
        launched: what `StreamInstance.launch` gave; set by the thread that launches, at once.
        asked_at_s: when to ask after it.
    """

    instance: StreamInstance | None
    batch: ExecutionBatch
    on_over: Callable[[ExecutionBatch], None]
    state: FlightState = FlightState.LAUNCHING
    launched: Any = None
    asked_at_s: float = math.inf

    def let_go(self) -> None:
        """The device does nothing for this batch any more."""
        self.instance = self.launched = None


@dataclass(frozen=True, slots=True)
class FlightStatistics:
    """Batches being launched, and in flight; and how many were collected, and failed, so far."""

    launching: int
    flying: int
    collected: int
    failed: int


class Flights:
    """One instance's."""

    __slots__ = ("_collected", "_failed", "_tickets")

    def __init__(self) -> None:
        self._tickets: dict[Ticket, None] = {}  # in the order of their launches
        self._collected = 0
        self._failed = 0

    def begin(self, ticket: Ticket) -> None:
        """The batch is about to be launched."""
        self._tickets[ticket] = None

    def launched(self, ticket: Ticket, now_s: float) -> bool:
        """The launch has returned; whether the batch can be collected."""
        ticket.asked_at_s = now_s + LOOK_S
        return self._step(ticket, "launched") is FlightState.LANDED

    def landed(self, ticket: Ticket) -> bool:
        """The device has landed the batch; whether it can be collected."""
        return self._step(ticket, "landed") is FlightState.LANDED

    def failed(self, ticket: Ticket) -> None:
        """The launch has raised."""
        self._step(ticket, "failed")
        self._failed += 1
        del self._tickets[ticket]

    def over(self, ticket: Ticket, failed: bool = False) -> None:
        """The batch has been collected, or that failed."""
        self._step(ticket, "over")
        self._failed += failed
        self._collected += not failed
        ticket.let_go()
        del self._tickets[ticket]

    def sick(self) -> None:
        """The device will do nothing any more, nor land what is in flight."""
        for ticket in self._tickets:
            ticket.let_go()

    def next_look_s(self) -> float:
        """When there is something to ask (rule 3); infinity for not before something else has happened."""
        oldest = next(iter(self._tickets), None)
        return math.inf if oldest is None or oldest.state is not FlightState.FLYING else oldest.asked_at_s

    def overdue(self, now_s: float) -> Ticket | None:
        """The batch that is to be asked after now."""
        if now_s < self.next_look_s():
            return None
        oldest = next(iter(self._tickets))
        oldest.asked_at_s = now_s + LOOK_S
        return oldest

    def _step(self, ticket: Ticket, event: str) -> FlightState:
        ticket.state = TRANSITIONS[event][ticket.state]
        return ticket.state

    def statistics(self) -> FlightStatistics:
        states = [ticket.state for ticket in self._tickets]
        flying = states.count(FlightState.FLYING)
        return FlightStatistics(len(states) - flying, flying, self._collected, self._failed)
