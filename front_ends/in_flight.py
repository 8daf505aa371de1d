"""What a front end knows of requests and calls that the engine has (`remote_server`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import outcome
import trio

from ..actors.reply import Reply
from ..engine.instances.answer_window import AnswerWindow
from ..engine.memory.regions import RegionSlice
from ..engine.tracing.record import Trace
from . import kinds
from .link import LinkHead


class _NoHolder:
    """The engine holds what a request has of the budget."""

    def release(self, _nbytes: int, /) -> None:
        """Nothing is held here."""


NO_HOLDER = _NoHolder()


class InFlightRequest:
    """A request that the engine has: what a `Job` is to its reply."""

    # Most requests have none of these, so they are not set for each.
    places: Mapping[str, RegionSlice] | None = None
    trace: Trace | None = None
    accepted = False
    window: AnswerWindow | None = None
    waiting: Callable[[], None] | None = None

    def __init__(self, number: int, request_id: str, reply: Reply, tell: Callable[[LinkHead], None]) -> None:
        self.number = number
        self.id = request_id
        self.reply = reply
        self.tell = tell

    def when_accepted(self, call: Callable[[], None]) -> None:
        """See `Job.when_accepted`."""
        self.waiting = call
        self.tell((kinds.FOLLOW, self.number))

    def accept(self) -> None:
        self.accepted = True
        if self.waiting is not None:
            call, self.waiting = self.waiting, None
            call()


class InFlightCall:
    """A call that the engine has.

    Attributes:
        task: that waits for the result.
        result: if it has come before.
    """

    __slots__ = ("result", "task")

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.result: outcome.Value[Any] | outcome.Error | None = None

    def end(self, result: outcome.Value[Any] | outcome.Error) -> None:
        self.result = result
        if self.task is not None:
            trio.lowlevel.reschedule(self.task, result)


class AnswerCredit(AnswerWindow):
    """Tells the engine what has been taken, which counts there (rule 4)."""

    __slots__ = ("_number", "_tell")

    def __init__(self, number: int, limit: int, tell: Callable[[LinkHead], None]) -> None:
        super().__init__(limit, threading.get_ident())
        self._number = number
        self._tell = tell

    def leave(self, count: int) -> None:
        super().leave(count)
        if count:
            self._tell((kinds.TAKEN, self._number, count))


ANSWERS_HERE = 64
"""Of one request, that may wait here; the engine has its own limit."""
