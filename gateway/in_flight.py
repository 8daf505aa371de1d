"""One request of a client, on its way to a replica and back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, cast

from ..actors.actor import Turn
from ..actors.messages import Cancel
from ..actors.reply import HeldPlace, Reply
from ..engine.description import ModelDescription
from ..engine.errors import CancelledError, TriremeError
from ..engine.fleet.types import AttemptEnd, FleetDecision, SendTo, attempt_end
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

    turn: Turn

    def settle(self, sent: SendTo, end: AttemptEnd) -> FleetDecision | None: ...
    def follow(self, decision: FleetDecision, call: FleetCall) -> None: ...
    def cancel_waiting(self, call: FleetCall) -> None: ...
    def forget(self, call: FleetCall) -> None: ...
    def tell_change(self) -> None: ...


class FleetCall(Reply):
    """One request: what the router places, what a link tells of it (`links.ReplicaCall`), and the reply to it, which is
    told of itself as of its job.

    States: waiting for a replica (`sent` is None), sent, over (`final`).

    Args:
        deadline_s: see `RequestToPlace`.
        holder, nbytes: see `Reply`.

    Attributes:
        sent: where it was sent; None while it waits, and when it is over.
        accepted: a replica has executed it, as far as is known; see `Reply`.
    """

    __slots__ = (
        "_at_replica",
        "_reply",
        "_waiters",
        "credit",
        "deadline_s",
        "decoupled",
        "model",
        "name",
        "received_ns",
        "replica",
        "request",
        "sent",
        "sequence",
        "server",
        "tried",
        "version",
    )
    batch = None  # as of a job that is not executed here
    sticky = None
    replica: Replica
    credit: FleetCredit
    _at_replica: RequestAtReplica

    def __init__(
        self,
        server: CallKeeper,
        request: InferenceRequest,
        model: ModelDescription,
        received_ns: int,
        deadline_s: float,
        holder: HeldPlace,
        nbytes: int,
    ) -> None:
        # All of `Reply`: a constructor that calls another takes longer.
        self.posted = self.final = self.accepted = False
        self._turn = server.turn
        self._holder = holder
        self._nbytes = nbytes
        self._job = cast(Any, self)  # until the final answer, so no cycle is left
        self._cancel = give_up
        self._answers = []
        self._dropped = self._seen = 0
        self._listener = self.window = None
        self._each = self.decoupled = model.config.decoupled
        self.name = request.model_name  # and of `RequestToPlace`
        self.version = request.model_version
        self.sequence = request.correlation_id
        self.deadline_s = deadline_s
        self.tried: tuple[str, ...] = ()
        self.server = server
        self.request = request
        self.model = model
        self.received_ns = received_ns
        self.sent: SendTo | None = None
        self._reply: ReplyTarget | None = None
        self._waiters: list[Callable[[], None]] | None = None
        if self.decoupled:
            self.window = self.credit = FleetCredit()

    @property
    def start(self) -> bool:
        """See `RequestToPlace`."""
        return self.request.sequence_start

    @property
    def end(self) -> bool:
        """See `RequestToPlace`."""
        return self.request.sequence_end

    # As of a `Job`, for `TracedReply`.

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def model_name(self) -> str:
        return self.model.name

    @property
    def model_version(self) -> int:
        return self.model.version

    @property
    def enqueued_ns(self) -> int:
        return self.received_ns

    @property
    def reply(self) -> ReplyTarget:
        """Where its answers go."""
        return self._reply or self

    @reply.setter
    def reply(self, reply: ReplyTarget) -> None:
        self._reply = reply

    def when_accepted(self, call: Callable[[], None]) -> None:
        if self.accepted:
            call()
        elif not self.final:
            self._waiters = [*(self._waiters or ()), call]

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
            if self.decoupled:
                self.credit.follow(replica.link, at_replica)

    # See `links.ReplicaCall`.

    def answered(self, outcome: Outcome, final: bool) -> None:
        if self.final:
            return
        if self._waiters is None:
            self.accepted = True
        else:
            self._accept()
        reply = self._reply or self
        if final:
            self._settle(_ANSWERED)
            self._end()
        reply.deliver(outcome, final)

    def failed(self, error: TriremeError, executed: bool) -> None:
        if self.final:
            return
        decision = self._settle(attempt_end(error, executed))
        if decision is None:
            self.refuse(error, executed)
        else:
            self.server.follow(decision, self)

    def refuse(self, error: TriremeError, accepted: bool = False) -> None:
        """It has failed for good."""
        reply = self._reply or self
        self._end()
        if accepted and not self.accepted:
            self._accept()
        reply.deliver(error, True)

    def _settle(self, end: AttemptEnd) -> FleetDecision | None:
        """It is not at its replica any more."""
        sent, replica = self.sent, self.replica
        assert sent is not None, "it was sent"
        self.sent = None
        replica.sent -= 1
        replica.ends[end] += 1
        if replica.leaving:
            self.server.tell_change()
        return self.server.settle(sent, end)

    def _end(self) -> None:
        self._at_replica = self._reply = None
        if self.decoupled:
            self.credit.follow(None, None)
        self.server.forget(self)

    def give_up(self) -> None:
        """Its client does not want it any more."""
        if self.final:
            return
        if self.sent is None:
            self.server.cancel_waiting(self)
        else:
            self.replica.link.cancel(self._at_replica)
            self._settle(AttemptEnd.CANCELLED)
        reply = self._reply or self
        self._end()
        reply.deliver(CancelledError("the request was cancelled"), True)

    def __repr__(self) -> str:
        state = "over" if self.final else "waiting" if self.sent is None else f"at {self.sent.replica}"
        return f"<FleetCall {self.name}, {state}>"


def give_up(cancel: Cancel) -> None:
    """For `Reply.cancel`: with a method of the call's, the call would hold itself."""
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
