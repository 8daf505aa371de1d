"""When answers leave: as soon as they are given, or in their turn (docs/reference/scheduling.md#preserved-order)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.config.model import ModelConfig
from ..events import ReplyDelivered
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from .observed import Admitted, CoreMade, QueueDropped, Rejected, ToldSettled

AT_ONCE = "an answer leaves when it is given"
IN_TURN = "with preserve_ordering, an answer leaves when all that were queued before have been answered, and not before"
NOT_BEFORE = "a request is answered when its batch is over, or when it has left the queue"


@dataclass(slots=True)
class _Line:
    """The requests of a model that have no final answer yet, in order of arrival, and which of them were given one."""

    ordered: bool
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
    counts). Models that answer any number of times are left to `AnswersWhole`."""

    name = "answers leave when they may, neither before nor after"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._lines: dict[str, _Line] = {}
        self._line_of: dict[int, _Line] = {}
        self._touched: dict[str, _Line] = {}

    def handlers(self) -> Handlers:
        return {
            CoreMade: self._made,
            Admitted: self._admitted,
            Rejected: self._rejected,
            QueueDropped: self._dropped,
            ToldSettled: self._settled,
            ReplyDelivered: self._delivered,
        }

    def _made(self, event: CoreMade) -> None:
        if not event.config.decoupled:
            self._lines[event.core] = _Line(_keeps_order(event.config))
        else:
            self._lines.pop(event.core, None)

    def _admitted(self, event: Admitted) -> None:
        line = self._lines.get(event.core)
        if line is not None:
            line.given[event.request] = False
            self._line_of[event.request] = line

    def _give(self, core: str, requests: tuple[int, ...]) -> None:
        line = self._lines.get(core)
        if line is not None:
            self._touched[core] = line
            for request in requests:
                if request in line.given:
                    line.given[request] = True

    def _rejected(self, event: Rejected) -> None:
        self._give(event.core, (event.request,))

    def _dropped(self, event: QueueDropped) -> None:
        self._give(event.core, event.requests)

    def _settled(self, event: ToldSettled) -> None:
        self._give(event.core, tuple([each for each in event.requests if each and each not in event.rescheduled]))

    def _delivered(self, event: ReplyDelivered) -> None:
        line = self._line_of.get(event.request)
        if line is None or event.late or not event.final:
            return
        what = f"request {event.request} was answered"
        if not line.given[event.request]:
            self.broken(f"{what} before its batch was over (rule: {NOT_BEFORE})")
        elif event.request not in line.may_leave():
            first = next(request for request, given in line.given.items() if not given)
            self.broken(f"{what} before request {first} (rule: {IN_TURN})")
        del line.given[event.request], self._line_of[event.request]

    def instant_over(self, now_ns: int) -> None:
        for name, line in self._touched.items():
            late = line.may_leave()
            if late:
                rule = IN_TURN if line.ordered else AT_ONCE
                self.broken(f"'{name}' held answers to {late} back at {now_ns} ns (rule: {rule})")
        self._touched.clear()


def _keeps_order(config: ModelConfig) -> bool:
    batching = config.dynamic_batching
    return batching is not None and batching.preserve_ordering
