"""One request of a client, on its way to a replica and back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from ..actors.messages import Cancel
from ..engine.description import ModelDescription
from ..engine.errors import CancelledError, TriremeError
from ..engine.fleet.types import AttemptEnd, FleetDecision, FleetRequest, SendTo, attempt_end
from ..engine.instances.answer_window import AnswerWindow
from ..engine.job import Outcome, ReplyTarget
from ..engine.request import InferenceRequest
from .links import ReplicaLink
from .replicas import Replica

ANSWERS_HERE = 64
"""Of one request, that may wait here."""


class CallKeeper(Protocol):
    """What of `FleetServer` a request tells."""

    def settle(self, sent: SendTo, end: AttemptEnd) -> FleetDecision | None: ...
    def follow(self, decision: FleetDecision, call: FleetCall) -> None: ...
    def cancel_waiting(self, asked: FleetRequest) -> None: ...
    def forget(self, call: FleetCall) -> None: ...
    def tell_change(self) -> None: ...


class FleetCall:
    """What a `Job` is to its reply, and what a link tells of the request (`links.ReplicaCall`).

    States: waiting for a replica (`sent` is None), sent, over.

    Attributes:
        sent: where it was sent; None while it waits, and when it is over.
        accepted: a replica has executed it, as far as is known; see `Reply`.
    """

    __slots__ = (
        "_number",
        "_waiters",
        "accepted",
        "credit",
        "decoupled",
        "enqueued_ns",
        "fleet_request",
        "id",
        "model_name",
        "model_version",
        "over",
        "received_ns",
        "replica",
        "reply",
        "request",
        "sent",
        "server",
        "window",
    )
    batch = None  # as of a job that is not executed here
    reply: ReplyTarget

    def __init__(
        self,
        server: CallKeeper,
        request: InferenceRequest,
        fleet_request: FleetRequest,
        model: ModelDescription,
        received_ns: int,
    ) -> None:
        self.server = server
        self.request = request
        self.fleet_request = fleet_request
        self.id = request.id
        self.model_name = model.name
        self.model_version = model.version
        self.decoupled = model.config.decoupled
        self.received_ns = self.enqueued_ns = received_ns
        self.sent: SendTo | None = None
        self.replica: Replica | None = None
        self.accepted = False
        self.over = False
        self.window: AnswerWindow | None = None
        self.credit: FleetCredit | None = None
        self._number = 0
        self._waiters: list[Callable[[], None]] | None = None

    def when_accepted(self, call: Callable[[], None]) -> None:
        """See `Job.when_accepted`."""
        if self.accepted:
            call()
        elif self._waiters is None:
            self._waiters = [call]
        else:
            self._waiters.append(call)

    def _accept(self) -> None:
        self.accepted = True
        waiters, self._waiters = self._waiters, None
        for call in waiters or ():
            call()

    def send(self, sent: SendTo, replica: Replica) -> None:
        """Send it to a replica."""
        self.sent = sent
        self.replica = replica
        replica.sent += 1
        replica.retries += sent.retry
        link = replica.link
        number = link.infer(self.request, self.decoupled, self)
        if self.sent is sent:  # else it has failed at once, and may be elsewhere by now
            self._number = number
            if self.credit is not None:
                self.credit.follow(link, number)

    # See `links.ReplicaCall`.

    def answered(self, outcome: Outcome, final: bool) -> None:
        if self.over:
            return
        if not self.accepted:
            self._accept()
        if final:
            self._settle(AttemptEnd.ANSWERED)
            self._end()
        self.reply.deliver(outcome, final)

    def failed(self, error: TriremeError, executed: bool) -> None:
        if self.over:
            return
        decision = self._settle(attempt_end(error, executed))
        if decision is None:
            self.fail(error, executed)
        else:
            self.server.follow(decision, self)

    def fail(self, error: TriremeError, accepted: bool = False) -> None:
        """It has failed for good."""
        self._end()
        if accepted and not self.accepted:
            self._accept()
        self.reply.deliver(error, True)

    def _settle(self, end: AttemptEnd) -> FleetDecision | None:
        """It is not at its replica any more."""
        sent, replica = self.sent, self.replica
        assert sent is not None, "it was sent"
        assert replica is not None, "it was sent"
        self.sent = self.replica = None
        replica.sent -= 1
        replica.ends[end] += 1
        if replica.leaving:
            self.server.tell_change()
        return self.server.settle(sent, end)

    def _end(self) -> None:
        self.over = True
        self.window = None
        if self.credit is not None:
            self.credit.follow(None, 0)
        self.server.forget(self)

    def give_up(self, _cancel: Cancel) -> None:
        """Its client does not want it any more."""
        if self.over:
            return
        if self.replica is None:
            self.server.cancel_waiting(self.fleet_request)
        else:
            self.replica.link.cancel(self._number)
            self._settle(AttemptEnd.CANCELLED)
        self._end()
        self.reply.deliver(CancelledError("the request was cancelled"), True)

    def __repr__(self) -> str:
        state = "over" if self.over else "waiting" if self.sent is None else f"at {self.sent.replica}"
        return f"<FleetCall {self.model_name}, {state}>"


class FleetCredit(AnswerWindow):
    """Tells the replica's link what has been taken: then more may come."""

    __slots__ = ("_link", "_number")

    def __init__(self) -> None:
        super().__init__(ANSWERS_HERE, threading.get_ident())
        self._link: ReplicaLink | None = None
        self._number = 0

    def follow(self, link: ReplicaLink | None, number: int) -> None:
        """The request is there under this number; None: it is over."""
        self._link, self._number = link, number

    def leave(self, count: int) -> None:
        super().leave(count)
        if count and self._link is not None:
            self._link.taken(self._number, count)
