"""When answers leave: as soon as they are given, or in their turn (docs/reference/scheduling.md#preserved-order)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ...engine.config.model import ModelConfig
from ...engine.config.sequence import OldestStrategy, sequence_batching
from ..events import ReplyDelivered, RequestIsolated, RequestRejected
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from .observed import Admitted, CoreMade, Dispatched, QueueDropped, Rejected, ToldSettled

AT_ONCE = "an answer leaves when it is given"
IN_TURN = "with preserve_ordering, an answer leaves when those before it have left, and not before"
NOT_BEFORE = "a request is answered when its batch is over, or when it has left the queue"


class Order(enum.Enum):
    """Which answers wait for which."""

    NONE = "none"
    ARRIVAL = "all, in the order in which requests were queued"
    INSTANCE = "those of an instance, in the order in which requests were given to it"


def order_of(config: ModelConfig) -> Order:
    """What the configuration asks for."""
    batching = config.dynamic_batching
    if batching is not None and batching.preserve_ordering:
        return Order.ARRIVAL
    sequences = sequence_batching(config)
    if sequences is None or not isinstance(sequences.strategy, OldestStrategy):
        return Order.NONE
    return Order.INSTANCE if sequences.strategy.preserve_ordering else Order.NONE


@dataclass(slots=True)
class _Line:
    """Requests that have no final answer yet, in the order of their answers, and which of them were given one."""

    name: str
    ordered: bool
    decoupled: bool
    given: dict[int, bool] = field(default_factory=dict)

    def may_leave(self) -> list[int]:
        """Whose answer should have left by now."""
        found: list[int] = []
        for request, given in self.given.items():
            if given:
                found.append(request)
            elif self.ordered:
                break
        return found


class AnswersLeave(Invariant):
    """An answer leaves when it is given; with preserve_ordering when those before it have left (the same instant
    counts). Of models that answer any number of times only the order is looked at."""

    name = "answers leave when they may, neither before nor after"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._orders: dict[str, Order] = {}
        self._lines: dict[tuple[str, int], _Line] = {}  # by core, and, if each has a line of its own, instance
        self._line_of: dict[int, _Line] = {}
        self._touched: dict[str, _Line] = {}

    def handlers(self) -> Handlers:
        return {
            CoreMade: self._made,
            Admitted: self._admitted,
            Dispatched: self._dispatched,
            Rejected: self._rejected,
            QueueDropped: self._dropped,
            ToldSettled: self._settled,
            RequestIsolated: self._isolated,
            RequestRejected: lambda event: self._give((event.request,)),
            ReplyDelivered: self._delivered,
        }

    def _made(self, event: CoreMade) -> None:
        order = self._orders[event.core] = order_of(event.config)
        self._lines[event.core, 0] = _Line(event.core, order is Order.ARRIVAL, event.config.decoupled)

    def _admitted(self, event: Admitted) -> None:
        self._join(event.request, self._lines[event.core, 0])

    def _join(self, request: int, line: _Line) -> None:
        line.given[request] = False
        self._line_of[request] = line

    def _dispatched(self, event: Dispatched) -> None:
        if self._orders[event.core] is not Order.INSTANCE:
            return
        waiting = self._lines[event.core, 0]
        line = self._lines.get((event.core, event.instance))
        if line is None:
            name = f"{event.core}, instance {event.instance}"
            line = self._lines[event.core, event.instance] = _Line(name, True, waiting.decoupled)
        for request in event.requests:
            if request in waiting.given:  # and not there already, being executed again
                del waiting.given[request]
                self._join(request, line)

    def _give(self, requests: tuple[int, ...]) -> None:
        for request in requests:
            line = self._line_of.get(request)
            if line is not None and not line.decoupled:
                line.given[request] = True
                self._touched[line.name] = line

    def _rejected(self, event: Rejected) -> None:
        self._give((event.request,))

    def _dropped(self, event: QueueDropped) -> None:
        self._give(event.requests)

    def _settled(self, event: ToldSettled) -> None:
        self._give(tuple([each for each in event.requests if each and each not in event.rescheduled]))

    def _isolated(self, event: RequestIsolated) -> None:
        """It was in a batch that is over, and has no answer yet."""
        self._line_of[event.request].given[event.request] = False

    def _delivered(self, event: ReplyDelivered) -> None:
        line = self._line_of.get(event.request)
        if line is None or event.late:
            return
        what = f"request {event.request} was answered"
        first = next(iter(line.given))
        if line.ordered and event.request != first:
            self.broken(f"{what} before request {first} (rule: {IN_TURN})")
        elif not line.decoupled and not line.given[event.request]:
            self.broken(f"{what} before its batch was over (rule: {NOT_BEFORE})")
        if event.final:
            del line.given[event.request], self._line_of[event.request]

    def instant_over(self, now_ns: int) -> None:
        for line in self._touched.values():
            late = line.may_leave()
            if late:
                rule = IN_TURN if line.ordered else AT_ONCE
                self.broken(f"'{line.name}' held answers to {late} back at {now_ns} ns (rule: {rule})")
        self._touched.clear()
