"""What a router of a fleet is asked, told, and answers (`router` has the rules)."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import ErrorKind, RefusalReason, TriremeError, UnavailableError
from ..request import LATEST

NOT_STARTED_TEXT = "must specify the START flag on the first request of the sequence"
"""How the text ends with which a replica refuses a request of a sequence that it does not know."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How a router decides. All gateways of a fleet must have the same.

    Attributes:
        retry_budget: retries, as a part of all requests.
        retry_burst: so many retries may be saved up, and are there from the beginning.
        most_attempts: of one request, the first included.
        load_bound: a replica gets so many times the mean of sequences, and of requests with sticky keys, at most.
        lookups: so many replicas are asked for a sequence that this gateway does not know.
        sequence_idle_s: a sequence is known so long after its latest request, seconds. At least as long as any
            model's `max_sequence_idle_microseconds`.
        most_sequences: beyond so many the one that was heard of least recently is forgotten.
        stale_s: a report that is so old says nothing any more of others' requests, seconds.
        silent_s: a replica that has not reported for so long gets no new requests, if others can have them, seconds.
        eject_share: at most this part of the fleet is ejected at a time.
        eject_s: how long the first time, seconds; each further time twice as long.
        eject_most_s: but not longer than this, seconds.
        slow_start_s: in so many seconds the share of a replica that is new or recovered grows to its weight.
        wait_s: a request waits so long at most for a replica, seconds.
        most_waiting: so many may wait; those behind another request of their sequence not counted.
    """

    retry_budget: float = 0.1
    retry_burst: int = 10
    most_attempts: int = 3
    load_bound: float = 1.25
    lookups: int = 4
    sequence_idle_s: float = 600.0
    most_sequences: int = 1_000_000
    stale_s: float = 1.0
    silent_s: float = 5.0
    eject_share: float = 0.5
    eject_s: float = 5.0
    eject_most_s: float = 300.0
    slow_start_s: float = 10.0
    wait_s: float = 5.0
    most_waiting: int = 10_000


class RequestToPlace(Protocol):
    """A client's request as the router sees it; one object from `place` to the end, compared by identity.

    Attributes:
        version: `LATEST` for the one that the replica takes.
        sequence: correlation id; 0 or "" for none.
        start, end: the flags of the sequence's request.
        sticky: requests with the same key go to the same replica as long as it can have them; None for no key.
        deadline_s: it is not answered after this, on the router's clock.
        tried: replicas that did not take it; the router's own note.
    """

    name: str
    version: int
    sequence: int | str
    deadline_s: float
    tried: tuple[str, ...]

    @property
    def start(self) -> bool: ...
    @property
    def end(self) -> bool: ...
    @property
    def sticky(self) -> bytes | None: ...


@dataclass(slots=True, eq=False)
class FleetRequest:
    """The least that is a `RequestToPlace`."""

    name: str
    version: int = LATEST
    sequence: int | str = 0
    start: bool = False
    end: bool = False
    sticky: bytes | None = None
    deadline_s: float = math.inf
    tried: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class SendTo:
    """The request is to be sent to this replica; `settle` is to be called once with it.

    Attributes:
        retry: it was sent to another one before.
        member: the router's own note.
    """

    request: RequestToPlace
    replica: str
    retry: bool = False
    member: Any = None


@dataclass(slots=True, eq=False)
class WaitForReplica:
    """The request waits, at the longest until `deadline_s`; `tick` returns what becomes a decision."""

    request: RequestToPlace
    deadline_s: float


@dataclass(slots=True, eq=False)
class Refuse:
    """The client gets this error; `error.refusal_reason` says why."""

    request: RequestToPlace
    error: TriremeError


FleetDecision = SendTo | WaitForReplica | Refuse


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What a replica has to do for a model, all versions together.

    Attributes:
        pending: requests that it has accepted and not answered.
        queue_s: how long requests waited in the queue of late, mean, seconds.
    """

    pending: int = 0
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica is now, all of it: what a message of Watch leaves out is as it was.

    Attributes:
        epoch: of the server's process. Another one than before: sequences are gone.
        draining: it serves what comes, and is to get nothing new.
        models: by name, for each version that it knows whether that is ready. Names of routes stand here, too, with
            version 1. If nothing has changed it is the same object as in the report before, which saves work.
        loads: by the name of a model; those that are left out have no pending requests.
    """

    epoch: str
    draining: bool = False
    models: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)
    loads: Mapping[str, ModelLoad] = field(default_factory=dict)


class AttemptEnd(enum.Enum):
    """How sending a request to a replica ended (`attempt_end`)."""

    __hash__ = object.__hash__

    ANSWERED = (
        "answered"  # the final answer is there; also an error that is the client's, or the answer of a full queue
    )
    FAILED = "failed"  # the replica failed, and the request may have been executed
    LOST = "lost"  # the connection was lost, and the request may have been executed
    REFUSED = "refused"  # it was surely not executed, and another replica may take it
    UNREACHABLE = "unreachable"  # the same, because the replica could not be reached
    ABSENT = "absent"  # the same, because the model is not ready there any more, or the replica ends
    NOT_STARTED = "not_started"  # refused, because the sequence is not known there
    CANCELLED = "cancelled"  # the client gave it up, or its time is over


class ReplicaLostError(UnavailableError):
    """The connection to a replica was lost, or there was none; for links to fail calls with."""


_ANOTHER_MAY = frozenset(
    {
        RefusalReason.QUEUE_FULL,
        RefusalReason.OBJECTIVE,
        RefusalReason.MODEL_SHARE,
        RefusalReason.BUDGET,
        RefusalReason.CLIENT_BYTES,
        RefusalReason.CONNECTION_LIMIT,
        RefusalReason.NO_INSTANCE,
        RefusalReason.MODEL_MEMORY,
        RefusalReason.LOAD_FAILED,
        RefusalReason.LOAD_WAIT,
    }
)
"""A request that one replica refused for such a reason may be taken by another one."""

_NOT_THERE = frozenset({RefusalReason.STOPPING, RefusalReason.NOT_READY, RefusalReason.UNKNOWN_MODEL})
"""For such a reason it is refused where the router has not heard yet that a model has left, or a replica ends."""


def attempt_end(error: TriremeError | None, executed: bool = True) -> AttemptEnd:
    """How an attempt ended.

    Args:
        error: None for an answer.
        executed: False only if the request was surely not executed.
    """
    if error is None:
        return AttemptEnd.ANSWERED
    if isinstance(error, ReplicaLostError):
        return AttemptEnd.LOST if executed else AttemptEnd.UNREACHABLE
    if error.kind in (ErrorKind.CANCELLED, ErrorKind.DEADLINE):
        return AttemptEnd.CANCELLED
    if error.kind is ErrorKind.INVALID_ARGUMENT and error.message.endswith(NOT_STARTED_TEXT):
        return AttemptEnd.NOT_STARTED
    if not executed and error.refusal_reason in _NOT_THERE:
        return AttemptEnd.ABSENT
    if not executed:
        return AttemptEnd.REFUSED if error.refusal_reason in _ANOTHER_MAY else AttemptEnd.ANSWERED
    return AttemptEnd.FAILED if error.kind in (ErrorKind.INTERNAL, ErrorKind.UNKNOWN) else AttemptEnd.ANSWERED
