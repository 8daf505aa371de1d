"""The answers of decoupled models: any number of them, in order, nothing lost, and no more on the way than may be."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..events import AnswerGiven, AnswersTaken, CancelHeard, ReplyDelivered, RequestAnswered
from ..graphs import is_step
from ..history import Handlers
from .base import Complain, Invariant


@dataclass(slots=True)
class ToldAnswers:
    """What a decoupled model has said to a request.

    Attributes:
        heard: it has told what it gives; an ensemble does not.
        on_the_way: answers that were given and not delivered, each with whether it is the last; 0 is an end without an
            answer.
        untaken: those that were delivered, and that its client has not taken.
        window: how many answers may wait; None for any number, for a client that takes none, or gave up.
    """

    heard: bool = False
    on_the_way: deque[tuple[int, bool]] = field(default_factory=deque)
    untaken: deque[int] = field(default_factory=deque)
    window: int | None = None


class AnswersWhole(Invariant):
    """What a decoupled model answers reaches its client in the order in which it was given: nothing is left out and
    nothing said twice, and a request is over when the model says so. No more answers wait to be taken than may.

    Args:
        windows: by request, most answers that wait; without an entry, any number may.
    """

    name = "decoupled answers come in order, all of them, and no faster than they are taken"

    def __init__(self, complain: Complain, windows: Mapping[int, int]) -> None:
        super().__init__(complain)
        self._windows = windows
        self._told: dict[int, ToldAnswers] = {}
        self._given_up: set[int] = set()

    def handlers(self) -> Handlers:
        return {
            AnswerGiven: self._given,
            ReplyDelivered: self._delivered,
            AnswersTaken: self._taken,
            CancelHeard: self._cancelled,
            RequestAnswered: self._answered,
        }

    def _of(self, request: int) -> ToldAnswers:
        told = self._told.get(request)
        if told is None:
            told = self._told[request] = ToldAnswers()
            if request not in self._given_up:
                told.window = self._windows.get(request)
        return told

    def _given(self, event: AnswerGiven) -> None:
        told = self._of(event.request)
        told.heard = True
        told.on_the_way.append((event.answer, event.final))
        waiting = sum(1 for answer, _ in told.on_the_way if answer) + len(told.untaken)
        if told.window is not None and waiting > told.window:
            self.broken(f"{waiting} answers to request {event.request} wait to be taken; {told.window} may")

    def _delivered(self, event: ReplyDelivered) -> None:
        told = self._of(event.request) if event.answer else self._told.get(event.request)
        if told is None or event.late:
            return
        if event.error:
            if told.on_the_way:
                lost = [answer for answer, _ in told.on_the_way]
                self.broken(f"request {event.request} was answered {event.error!r} before what was given: {lost}")
            return
        first = told.on_the_way.popleft() if told.on_the_way else None
        if told.heard and first != (event.answer, event.final):
            what = f"answer {event.answer}{' as the last' * event.final} to request {event.request} was delivered"
            self.broken(f"{what}; what the model gave next is {first}")
        if event.answer and not is_step(event.request):
            told.untaken.append(event.answer)

    def _taken(self, event: AnswersTaken) -> None:
        told = self._of(event.request)
        for answer in event.answers:
            expected = told.untaken.popleft() if told.untaken else 0
            if answer != expected:
                self.broken(f"the client of request {event.request} took answer {answer}; it should be {expected}")

    def _cancelled(self, event: CancelHeard) -> None:
        self._given_up.add(event.request)
        told = self._told.get(event.request)
        if told is not None:
            told.window = None

    def _answered(self, event: RequestAnswered) -> None:
        told = self._told.get(event.request)
        if told is not None and told.untaken:
            self.broken(f"request {event.request} is over for its client, which never had answers {list(told.untaken)}")
