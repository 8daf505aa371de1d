"""What the gateway knows of its connections to replicas: what it asks of them, and what they tell.

All of it happens on the event loop, and what a link tells is told inside a turn. Implementations are elsewhere
(`api.grpc.replica`), so that the gateway can be driven without sockets.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..engine.errors import TriremeError
from ..engine.job import Outcome
from ..engine.request import InferenceRequest

RequestAtReplica = Any
"""A request on a link, as the link knows it: for `ReplicaLink.cancel` and `ReplicaLink.taken`, and for nothing else."""


class ReplicaCall(Protocol):
    """What a link tells of one inference request. After the final answer, or `failed`, nothing more is told."""

    def answered(self, outcome: Outcome, final: bool) -> None:
        """An answer has come; None for a final one without a response. An error only if more answers may follow it, as
        those of decoupled models may."""
        ...

    def failed(self, error: TriremeError, executed: bool) -> None:
        """The request has failed; this is final.

        Args:
            executed: it may have been executed; False only if it surely was not.
        """
        ...


class ReplicaLink(Protocol):
    """One connection to a replica, which is made anew whenever it is lost."""

    def has_room(self) -> bool:
        """False while too much waits to be written to the replica."""
        ...

    def infer(self, request: InferenceRequest, decoupled: bool, call: ReplicaCall) -> RequestAtReplica:
        """Send a request at the end of the turn. Raises nothing: what fails is told by `ReplicaCall.failed`.

        Args:
            decoupled: it may be answered any number of times.
        """
        ...

    def cancel(self, sent: RequestAtReplica) -> None:
        """The request's answers are not wanted any more: nothing more is told of it."""
        ...

    def taken(self, sent: RequestAtReplica, count: int) -> None:
        """So many answers of the request have been taken by who reads them; only then may more come."""
        ...

    async def ask(self, method: str, message: bytes, timeout_s: float) -> bytes:
        """Make a unary call, with and of serialised messages.

        Args:
            method: as in the path of the call: ``inference.GRPCInferenceService/ServerLive``.

        Raises:
            TriremeError: what the replica answers, with its text; or it could not be asked, or not in time.
        """
        ...


class LinkEvents(Protocol):
    """What a link tells its owner."""

    def connected(self) -> None:
        """Requests can be sent."""
        ...

    def lost(self, why: str) -> None:
        """The connection is gone. Each of its requests has been failed before; the link connects anew by itself."""
        ...

    def report(self, document: dict[str, Any]) -> None:
        """A message of ``trireme.Fleet/Watch`` (`FleetReport`), decoded."""
        ...

    def unreported(self, why: str) -> None:
        """The replica is connected, and does not tell what it serves."""
        ...

    def room(self) -> None:
        """`ReplicaLink.has_room` may be True again."""
        ...
