"""What actors say to each other: small objects, named by what they say.

A message is never changed. They are not declared frozen because making a frozen one takes twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.config.instance_groups import UNLIMITED, RateLimit
from ..engine.errors import TriremeError
from ..engine.job import ExecutionBatch, Job, Outcome
from ..engine.request import InferenceResponse
from ..engine.scheduling.core import InstanceId
from ..engine.scheduling.sequence.slot_core import SlotReport
from .actor import Mailbox

# To whatever takes a model's requests in: a scheduler, an ensemble, the door of the cache. A `Job` is a message itself:
# queue it, or refuse it; its reply hears which.


@dataclass(slots=True, eq=False)
class Cancel:
    """The job's client gave up."""

    job: Job


@dataclass(slots=True, eq=False)
class Stop:
    """Refuse new jobs, and finish those that are there without waiting for delays. May come again.

    Attributes:
        finishes_sequences: it counts as drained only when all sequences are over that have begun.
        ends_sequences: no request can continue a sequence any more.
    """

    finishes_sequences: bool = False
    ends_sequences: bool = False


# To a scheduler alone.


@dataclass(slots=True, eq=False)
class CacheHit:
    """Accept this job and answer it without executing it; in its turn if the model preserves ordering."""

    job: Job
    response: InferenceResponse


@dataclass(slots=True, eq=False)
class Executed:
    """An instance is through with a batch.

    Attributes:
        in_place: on the event loop, during this turn.
    """

    instance: InstanceId
    batch: ExecutionBatch
    in_place: bool


@dataclass(slots=True, eq=False)
class Responded:
    """A decoupled model has answered a job."""

    job: Job
    outcome: Outcome
    final: bool


@dataclass(slots=True, eq=False)
class Granted:
    """The rate limiter lets this instance execute."""

    instance: InstanceId


@dataclass(slots=True, eq=False)
class Attach:
    """This new instance may get batches. It is told whether it is `Attached` or `TurnedAway`.

    Attributes:
        seat: its place, over its restarts.
        mailbox: where to send its batches.
        credits: batches that it may hold at once, where it needs no leave to execute.
        overlaps: see `Dispatcher`, rule 2.
        limit: what it needs in order to execute, where that is limited.
        device: that of those resources which each device has.
        gpu: where it executes, if it is of kind KIND_GPU.
    """

    instance: InstanceId
    seat: int
    name: str
    mailbox: Mailbox[InstanceMessage]
    credits: int = 1
    overlaps: bool = False
    limit: RateLimit = UNLIMITED
    device: int = 0
    gpu: int | None = None


@dataclass(slots=True, eq=False)
class Registered:
    """The rate limiter knows this new instance; or there is not enough for it, as `error` says."""

    attach: Attach
    error: TriremeError | None


@dataclass(slots=True, eq=False)
class Leaving:
    """This instance wants to close. It is `Dismissed` when the batches that it has are over; before that it is `Bound`
    while it has sequences, if those are to end first. Then it also executes what it is to execute alone."""

    instance: InstanceId
    sequences_first: bool = False


@dataclass(slots=True, eq=False)
class Gone:
    """This instance has died.

    Attributes:
        batches: that it held; what is not isolated of them has been answered.
        isolated: requests of theirs that the next instance of its seat is to execute, each alone, or an heir.
    """

    instance: InstanceId
    seat: int
    batches: Sequence[ExecutionBatch]
    isolated: Sequence[Job] = ()


@dataclass(slots=True, eq=False)
class SeatLost:
    """No instance will take this seat any more.

    Attributes:
        heirs: the seats whose instances may execute what it was to execute alone.
    """

    seat: int
    error: TriremeError
    heirs: Sequence[int] = ()


@dataclass(slots=True, eq=False)
class FailHeld:
    """Answer everything with this error that is not being executed."""

    error: TriremeError


DoorMessage = Job | Cancel | Stop
SchedulerMessage = (
    DoorMessage
    | CacheHit
    | Executed
    | Responded
    | Granted
    | Attach
    | Registered
    | Leaving
    | Gone
    | SeatLost
    | FailHeld
    | SlotReport
)

# To an instance.


@dataclass(slots=True, eq=False)
class Attached:
    """Batches may come from now on."""


@dataclass(slots=True, eq=False)
class TurnedAway:
    """There is not enough of what it needs in order to execute."""

    error: TriremeError


@dataclass(slots=True, eq=False)
class Execute:
    """Execute this.

    Attributes:
        isolated: its request may have ended the process of an instance before.
    """

    batch: ExecutionBatch
    isolated: bool = False


@dataclass(slots=True, eq=False)
class Bound:
    """It has sequences that are to end first."""


@dataclass(slots=True, eq=False)
class Dismissed:
    """No batch will come any more."""


InstanceMessage = Attached | TurnedAway | Execute | Bound | Dismissed


# To a model, from the repository and from ensembles.


@dataclass(slots=True, eq=False)
class Serve:
    """Become ready, once loaded."""


@dataclass(slots=True, eq=False)
class Drain:
    """Refuse new requests, answer those in flight, then end; not before all let it go that hold it.

    Attributes:
        retires: in favour of a successor: sequences that have begun go on until they are over.
        unloads: sequences that have begun are over: no request can continue them.
    """

    retires: bool = False
    unloads: bool = False


@dataclass(slots=True, eq=False)
class EndResize:
    """Give up instances that are still being made, but for those that are made again."""


@dataclass(slots=True, eq=False)
class Hold:
    """An ensemble needs this version."""


@dataclass(slots=True, eq=False)
class LetGo:
    """The ensemble needs it no more."""


ModelMessage = Serve | Drain | EndResize | Hold | LetGo
