"""What a scheduler core was told and what it decided, in order: what the decision oracle reads.

These records are no part of a history: `Recorder.tell` gives them to listeners, and keeps none. `core` is the
name of the core's model in histories; instances are known by the numbers that the core knows them by. Times are those
that the core was given, in seconds. Padding is request 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...engine.config.model import ModelConfig
from ...engine.job import SealReason
from ...engine.scheduler_delays import SchedulerDelays
from ...engine.tensor import Tensor
from ..records import record

NEVER_S = math.inf
"""A time that does not come."""


@record
class CoreMade:
    """A model was loaded, and has a new scheduler core, which holds requests back for these delays."""

    core: str
    config: ModelConfig
    delays: SchedulerDelays = SchedulerDelays()


# -- what a core is told -----------------------------------------------------------------------------------------------


@record
class Admitted:
    """A request was queued. What it asked for is what its client said, before the core saw it.

    `inputs` are the request's tensors, as schedulers compare them; `sequence` is its correlation id, 0 or "" for none.
    """

    at_s: float
    core: str
    request: int
    rows: int
    priority: int
    timeout_us: int
    inputs: Mapping[str, Tensor]
    sequence: int | str = 0
    start: bool = False
    end: bool = False


@record
class RefusedAtDoor:
    """A request was refused, with this error, and not queued; otherwise as `Admitted`."""

    at_s: float
    core: str
    request: int
    error: str
    rows: int
    priority: int
    timeout_us: int
    inputs: Mapping[str, Tensor]
    sequence: int | str = 0
    start: bool = False
    end: bool = False


@record
class ToldIdle:
    """An instance can take a batch: one more than it could before. `spare`: only one that cannot grow by waiting; said
    again without, it can take any."""

    core: str
    instance: int
    spare: bool = False


@record
class ToldPaused:
    """An instance can take no batch for now."""

    core: str
    instance: int


@record
class ToldGone:
    """An instance takes no more batches."""

    core: str
    instance: int


@record
class ToldSeated:
    """A new instance, of this name in histories, has taken this seat."""

    core: str
    instance: str
    seat: int


@record
class ToldLeaving:
    """The instance of this name in histories is to leave."""

    core: str
    instance: str


@record
class ToldSeatLost:
    """No instance takes this seat any more; what it was to execute alone may pass to those of `heirs`."""

    core: str
    seat: int
    heirs: tuple[int, ...]


@record
class ToldRelease:
    """An instance is to go, and to get no new sequence. `free`: the core says that nothing binds it."""

    core: str
    instance: int
    free: bool


@record
class ToldCancelled:
    """The client of a request gave up."""

    core: str
    request: int


@record
class ToldExecuted:
    """A batch of a model with a latency objective is over that began with this request. `failed`: no request of it was
    answered with anything but an error."""

    at_s: float
    core: str
    instance: int
    first: int
    failed: bool


@record
class ToldSettled:
    """A batch is over; `rescheduled` are those of its requests that come back to the queue."""

    at_s: float
    core: str
    requests: tuple[int, ...]
    rescheduled: tuple[int, ...]


@record
class ToldSilent:
    """A slot has said that nothing came for its sequence, which is over."""

    at_s: float
    core: str
    sequence: int | str


@record
class SlotAsked:
    """A slot of an instance was asked what else of its sequence goes with a cancelled request."""

    core: str
    instance: int
    slot: int


@record
class ToldDiscarded:
    """A slot has answered that: these requests."""

    core: str
    instance: int
    slot: int
    requests: tuple[int, ...]


@record
class ToldSlotDied:
    """A slot of an instance, of this number, has died."""

    core: str
    instance: int
    slot: int


@record
class ToldToStop:
    """No new request is accepted from now on, and no delay waited for."""

    core: str


@record
class ToldSequencesEnd:
    """No sequence can be continued any more."""

    core: str


@record
class QueueDropped:
    """The core gave back all that was queued."""

    core: str
    requests: tuple[int, ...]


# -- what a core decides -----------------------------------------------------------------------------------------------


@record
class Dispatched:
    """These requests are to be executed together, in this order."""

    at_s: float
    core: str
    instance: int
    requests: tuple[int, ...]
    reason: SealReason


@record
class Rejected:
    """A queued request is to be answered with this error (`history.error_text`)."""

    at_s: float
    core: str
    request: int
    error: str


@record
class SaidFull:
    """A core was asked whether it would refuse any request, because its queue is full."""

    core: str
    full: bool


@record
class Waits:
    """There is nothing to do until `until_s`, or, with `NEVER_S`, before something happens."""

    at_s: float
    core: str
    until_s: float


@record
class Awaits:
    """Slots have been told something, and nothing is decided before they have answered."""

    at_s: float
    core: str


@record
class Measured:
    """An execution took its time, as its batch's marks say when it ended (`ExecutionEnded` follows)."""

    batch: int
    start_ns: int
    infer_ns: int
    output_ns: int
    end_ns: int


@record
class FoundInCache:
    """A request was answered from the cache; `core` is its model's name in histories."""

    core: str
    request: int
    inputs: Mapping[str, Tensor]


@record
class CameToCache:
    """A request came to its model, there being room for it in the server, and is to be looked up in the cache first."""

    at_ns: int
    request: int


@record
class DroppedAtDoor:
    """A request that waited for the response cache was given up, and never queued; otherwise as `FoundInCache`."""

    at_ns: int
    core: str
    request: int
    error: str


Observation = (
    CoreMade
    | Admitted
    | RefusedAtDoor
    | ToldIdle
    | ToldPaused
    | ToldGone
    | ToldSeated
    | ToldLeaving
    | ToldSeatLost
    | ToldRelease
    | ToldCancelled
    | ToldExecuted
    | ToldSettled
    | ToldSilent
    | SlotAsked
    | ToldDiscarded
    | ToldSlotDied
    | ToldToStop
    | ToldSequencesEnd
    | QueueDropped
    | Dispatched
    | Rejected
    | SaidFull
    | Waits
    | Awaits
    | Measured
)
