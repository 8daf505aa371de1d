"""One request of a client, on its way to a replica and back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..actors.messages import Cancel
from ..engine.description import ModelDescription
from ..engine.errors import CancelledError, TriremeError
from ..engine.fleet.types import AttemptEnd, FleetDecision, FleetRequest, SendTo, attempt_end
from ..engine.instances.answer_window import AnswerWindow
from ..engine.job import Outcome, ReplyTarget
from ..engine.request import InferenceRequest
from .links import ReplicaLink, RequestAtReplica
from .replicas import Replica

ANSWERS_HERE = 64
"""Of one request, that may wait here."""

_ANSWERED = AttemptEnd.ANSWERED  # found faster here than in its class


class CallKeeper(Protocol):
    """What of `FleetServer` a request tells."""

    def settle(self, sent: SendTo, end: AttemptEnd) -> FleetDecision | None: ...
    def follow(self, decision: FleetDecision, call: FleetCall) -> None: ...
    def cancel_waiting(self, call: FleetCall) -> None: ...
    def forget(self, call: FleetCall) -> None: ...
    def tell_change(self) -> None: ...


class FleetCall(FleetRequest):
    """What a `Job` is to its reply, what the router places, and what a link tells of the request (`links.ReplicaCall`).

    States: waiting for a replica (`sent` is None), sent, over.

    Args:
        deadline_s: see `FleetRequest`.

    Attributes:
        sent: where it was sent; None while it waits, and when it is over.
        accepted: a replica has executed it, as far as is known; see `Reply`.
    """

    __slots__ = (
        "_at_replica",
        "_waiters",
        "accepted",
        "credit",
        "decoupled",
        "enqueued_ns",
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
        model: ModelDescription,
        received_ns: int,
        deadline_s: float,
    ) -> None:
        self.name = request.model_name  # all of `FleetRequest`: a constructor that calls another takes longer
        self.version = request.model_version
        self.sequence = request.correlation_id
        self.start = request.sequence_start
        self.end = request.sequence_end
        self.sticky = None
        self.deadline_s = deadline_s
        self.id = self.request_id = request.id
        self.tried = ()
        self.server = server
        self.request = request
        self.model_name = model.name
        self.model_version = model.version
        self.decoupled = model.config.decoupled
        self.received_ns = self.enqueued_ns = received_ns
        self.sent: SendTo | None = None
        self.replica: Replica | None = None
        self.accepted = self.over = False
        self.window: AnswerWindow | None = None
        self.credit: FleetCredit | None = None
        self._at_replica: RequestAtReplica | None = None
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
        at_replica = replica.link.infer(self.request, self.decoupled, self)
        if self.sent is sent:  # else it has failed at once, and may be elsewhere by now
            self._at_replica = at_replica
            if self.credit is not None:
                self.credit.follow(replica.link, at_replica)

    # See `links.ReplicaCall`.

    def answered(self, outcome: Outcome, final: bool) -> None:
        if self.over:
            return
        if self._waiters is None:
            self.accepted = True
        else:
            self._accept()
        if final:
            self._settle(_ANSWERED)
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
        self.window = self._at_replica = None
        if self.credit is not None:
            self.credit.follow(None, None)
        self.server.forget(self)

    def give_up(self) -> None:
        """Its client does not want it any more."""
        if self.over:
            return
        if self.replica is None:
            self.server.cancel_waiting(self)
        else:
            self.replica.link.cancel(self._at_replica)
            self._settle(AttemptEnd.CANCELLED)
        self._end()
        self.reply.deliver(CancelledError("the request was cancelled"), True)

    def __repr__(self) -> str:
        state = "over" if self.over else "waiting" if self.sent is None else f"at {self.sent.replica}"
        return f"<FleetCall {self.model_name}, {state}>"


def give_up(cancel: Cancel) -> None:
    """For `Reply.attach`: with a method of the call's, call and reply would be a cycle for the garbage collector."""
    call: Any = cancel.job
    call.give_up()


class FleetCredit(AnswerWindow):
    """Tells the replica's link what has been taken: then more may come."""

    __slots__ = ("_link", "_sent")

    def __init__(self) -> None:
        super().__init__(ANSWERS_HERE, threading.get_ident())
        self._link: ReplicaLink | None = None
        self._sent: RequestAtReplica | None = None

    def follow(self, link: ReplicaLink | None, sent: RequestAtReplica | None) -> None:
        """The request is on this link; None: it is over."""
        self._link, self._sent = link, sent

    def leave(self, count: int) -> None:
        super().leave(count)
        if count and self._link is not None:
            self._link.taken(self._sent, count)
