"""How clients take their answers: from a connection that several share, or, of decoupled models, any number of answers,
each at its own pace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..actors import Reply
from ..actors.actor import Turn
from ..engine.job import Outcome
from ..engine.request import InferenceResponse
from .events import AnswersTaken
from .history import Recorder, answer_number, error_text
from .plan import RequestPlan

WIRES = 3
"""Connections, which clients of one front end share."""

At = Callable[[float, Callable[[], None]], None]
"""Have something called at a time in seconds."""


class Reader:
    """Takes the answers to one request by a callback, as a front end does that writes them to a connection.

    Args:
        at: the driver's agenda.
        check: called with each response.
        over: called at the end, with the error's text or "".
    """

    def __init__(
        self,
        plan: RequestPlan,
        reply: Reply,
        recorder: Recorder,
        at: At,
        check: Callable[[RequestPlan, InferenceResponse], None],
        over: Callable[[RequestPlan, str], None],
    ) -> None:
        self._plan = plan
        self._reply = reply
        self._recorder = recorder
        self._at = at
        self._check = check
        self._over = over
        self._busy = False  # with the answers taken last
        self._done = False
        reply.notify_each(self._heard)

    def _heard(self, _reply: Reply) -> None:
        if not self._busy and not self._done:
            self._take()

    def _take(self) -> None:
        self._busy = False
        taken = self._reply.take()
        if not taken:
            return
        record_taken(self._recorder, self._plan.number, [outcome for outcome, _ in taken])
        for outcome, final in taken:
            if isinstance(outcome, InferenceResponse):
                self._check(self._plan, outcome)
            if final:
                self._done = True
                self._over(self._plan, error_text(outcome))
                return
        if self._plan.pause_ns:
            self._busy = True
            self._at(self._recorder.now_ns() / 1e9 + self._plan.pause_ns / 1e9, self._take)


class Wire:
    """A connection of a front end: answers that come in a turn reach its clients when it is flushed."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._unsent: list[Callable[[], None]] = []

    def write(self, heard: Callable[[Reply], None], reply: Reply) -> None:
        """Have a client hear its answer."""
        self._unsent.append(partial(heard, reply))
        if len(self._unsent) == 1:
            self._turn.flush_later(self)

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for send in unsent:
            send()


def record_taken(recorder: Recorder, request: int, outcomes: list[Outcome]) -> None:
    """Write down which answers a client has taken."""
    numbers = tuple([number for outcome in outcomes if (number := answer_number(outcome))])
    if numbers:
        recorder.record(AnswersTaken(recorder.now_ns(), request, numbers))


def when_final(reply: Reply, call: Callable[[], None]) -> None:
    """Have something called at the final answer of a decoupled model, and take none."""
    called = False

    def heard(reply: Reply) -> None:
        nonlocal called
        if reply.final and not called:
            called = True
            call()

    reply.notify(heard)
