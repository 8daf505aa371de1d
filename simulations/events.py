"""What can happen in a simulated world: one frozen record a kind of event, with its virtual time.

Requests are numbered in the order in which the world's clients sent them (a swarm run numbers them itself), batches in
the order in which schedulers sealed them; both from 1. A request that did not come through the world's clients has
number 0. A client's view comes first, then the schedulers', the instances', the device's, the server's.
"""

from __future__ import annotations

from .records import record

NEVER_NS = -1
"""A deadline that is none."""


# -- clients -----------------------------------------------------------------------------------------------------------


@record
class RequestSubmitted:
    """A client sent a request. `timeout_us` is the queue timeout that it asked for, 0 for none; `sequence` its
    correlation id, 0 for none."""

    at_ns: int
    request: int
    model: str
    rows: int
    priority: int
    timeout_us: int
    sequence: int | str = 0
    start: bool = False
    end: bool = False


@record
class StepSubmitted:
    """An ensemble turns to a member, on behalf of request `parent`; `step` counts from 1. `RequestSubmitted` follows:
    from there on the step is a request like others, the ensemble its client, and `request` its number. `iteration`:
    which answer, from 0, of each decoupled member on the way it follows from."""

    at_ns: int
    request: int
    parent: int
    step: int
    iteration: tuple[int, ...] = ()


@record
class RequestAnswered:
    """A client has its answer: an error's text, or "" for a response."""

    at_ns: int
    request: int
    error: str


@record
class AnswersTaken:
    """A client of a decoupled model took these answers, by their numbers."""

    at_ns: int
    request: int
    answers: tuple[int, ...]


@record
class RequestAbandoned:
    """A client gave up waiting."""

    at_ns: int
    request: int


# -- schedulers --------------------------------------------------------------------------------------------------------


@record
class RequestQueued:
    """A scheduler accepted a request. `level` is its priority level, 0 where there are none; `deadline_ns` when its
    time in the queue is over, or `NEVER_NS`."""

    at_ns: int
    request: int
    model: str
    rows: int
    level: int
    deadline_ns: int


@record
class AnswerFound:
    """A model's answer to a request was in the response cache: no scheduler sees it. `ReplyDelivered` follows, at once
    or in its turn."""

    at_ns: int
    request: int
    model: str


@record
class CancelHeard:
    """A scheduler was told that a request's client gave up. `executing`: an instance has it."""

    at_ns: int
    request: int
    executing: bool


@record
class RequestRefused:
    """A model did not accept a request."""

    at_ns: int
    request: int
    error: str


@record
class RequestRejected:
    """A scheduler took a request out of its queue, to answer it with this error."""

    at_ns: int
    request: int
    error: str


@record
class RequestDropped:
    """A scheduler gave back what was queued: the model is given up, or time is up."""

    at_ns: int
    request: int


@record
class BatchSealed:
    """A scheduler closed a batch and sent it to an instance. `reason` is a `SealReason`'s value; a row of padding
    counts in `rows`, and is request 0."""

    at_ns: int
    batch: int
    model: str
    version: int
    instance: str
    reason: str
    requests: tuple[int, ...]
    rows: int


@record
class ReplyDelivered:
    """A request was given an answer, whether or not its client still listens: an error's text, or "". `late`: it had
    its final answer before. `answer` is its number among the answers of a decoupled model, 0 for an error, for an end
    without an answer, and for other models."""

    at_ns: int
    request: int
    error: str
    final: bool
    late: bool
    answer: int = 0


@record
class RequestRescheduled:
    """A scheduler was given a request back, which an iterative model wants to execute again."""

    at_ns: int
    request: int
    model: str


@record
class RequestIsolated:
    """A request was in a batch whose process ended, and is to be executed again, alone, by the next instance of this
    seat."""

    at_ns: int
    request: int
    model: str
    seat: int


@record
class SchedulerStopped:
    """A scheduler was told to refuse what comes and to drain what it has."""

    at_ns: int
    model: str


# -- instances ---------------------------------------------------------------------------------------------------------


@record
class InstanceAttached:
    """An instance is up and may be given batches."""

    at_ns: int
    model: str
    instance: str


@record
class InstanceDetached:
    """An instance takes no more batches: it stopped, or died."""

    at_ns: int
    model: str
    instance: str


@record
class ExecutionStarted:
    at_ns: int
    batch: int


@record
class ExecutionEnded:
    """`ending` is "done" (each request has an answer, be it an error), "given up" (it hung, or the server stopped), or
    the name of the exception that the instance died of."""

    at_ns: int
    batch: int
    ending: str


DONE = "done"
GIVEN_UP = "given up"


@record
class StateUsed:
    """A model with implicit state executed a request: what it found of the sequence, and what it left; as texts, or as
    numbers."""

    at_ns: int
    request: int
    found: float
    left: float
    is_text: bool = False


@record
class RegionRead:
    """An instance read the inputs of a request where they were, in shared memory; or, if it is `lost`, could not."""

    at_ns: int
    request: int
    lost: bool


@record
class AnswerGiven:
    """A decoupled model answered a request: which answer it is, counted from 1; 0 for an end without an answer."""

    at_ns: int
    request: int
    answer: int
    final: bool


@record
class AnswerHeldBack:
    """A decoupled model has an answer to a request, and waits until its client has taken others."""

    at_ns: int
    request: int


@record
class FaultStruck:
    """The simulator made something go wrong: `fault` is a `Fault`'s value, `request` whose execution it struck, 0 for
    an instance that could not start."""

    at_ns: int
    fault: str
    model: str
    request: int


# -- devices -----------------------------------------------------------------------------------------------------------


@record
class KernelStarted:
    """A GPU began a kernel, or a copy: `engine` is a `DeviceEngine`'s value, `units` what it occupies of it."""

    at_ns: int
    gpu: str
    stream: int
    kernel: str
    engine: str
    units: int
    batch: int


@record
class KernelEnded:
    at_ns: int
    gpu: str
    stream: int
    kernel: str
    batch: int


# -- the server --------------------------------------------------------------------------------------------------------


@record
class ModelStateChanged:
    at_ns: int
    model: str
    version: int
    state: str


@record
class ChangeAsked:
    """The server was asked to change a model: `change` is `ChangePlan.text`."""

    at_ns: int
    model: str
    change: str


@record
class ChangeDone:
    """It has done so, or says why it cannot: `error`."""

    at_ns: int
    model: str
    change: str
    error: str


@record
class ServerStopping:
    """The server was told to stop, within `limit_ns`."""

    at_ns: int
    limit_ns: int


@record
class ServerStopped:
    """The server is closed. `drained`: all that was in flight was answered in time."""

    at_ns: int
    drained: bool


@record
class PhaseBegan:
    """A swarm run went on to its next phase (see `swarm`)."""

    at_ns: int
    phase: str


Event = (
    RequestSubmitted
    | StepSubmitted
    | RequestAnswered
    | AnswersTaken
    | RequestAbandoned
    | RequestQueued
    | AnswerFound
    | CancelHeard
    | RequestRefused
    | RequestRejected
    | RequestDropped
    | BatchSealed
    | ReplyDelivered
    | RequestRescheduled
    | RequestIsolated
    | SchedulerStopped
    | InstanceAttached
    | InstanceDetached
    | ExecutionStarted
    | ExecutionEnded
    | StateUsed
    | RegionRead
    | AnswerGiven
    | AnswerHeldBack
    | FaultStruck
    | KernelStarted
    | KernelEnded
    | ModelStateChanged
    | ChangeAsked
    | ChangeDone
    | ServerStopping
    | ServerStopped
    | PhaseBegan
)
