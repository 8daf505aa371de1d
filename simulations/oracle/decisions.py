"""What the default scheduler and the dynamic batcher decide: each time they are asked, there is one right answer.

The oracle keeps its own queue and its own list of idle instances, and works the answer out from scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ...engine.config.model import ModelConfig
from ...engine.config.objective import PARAMETER
from ...engine.job import SealReason
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.queueing import EXPIRED, FULL
from ..invariants.serving import STOPPING
from .batches import Batch, cannot_grow, right_batch
from .observed import (
    NEVER_S,
    Admitted,
    CoreMade,
    Dispatched,
    QueueDropped,
    RefusedAtDoor,
    Rejected,
    SaidFull,
    ToldCancelled,
    ToldGone,
    ToldIdle,
    ToldPaused,
    ToldToStop,
    Waits,
)
from .queues import NaiveQueue

TOLERANCE_S = 1e-6
"""Times are sums of floats, and may be rounded on the way."""

CANCELLED = "Cancelled"

ADMISSION = "a request is refused if, and only if, its level of the queue is full or the model is stopping"
REJECTION = "a request is rejected if, and only if, its client gave up, or its time is over and its level rejects it"
REJECTION_FIRST = "a request that is to be rejected is rejected before anything else is decided"
ONE_AT_A_TIME = "without batching, each execution takes the request that came first, alone"
WHICH = "a batch is the head of the queue, as far as the rules of batching let it reach"
WHY = "the reason given for a batch is the one that applies"
WHERE = "the instance that has been idle longest takes the batch"
WHEN = "a batch is formed when an instance is idle and a batch is due, neither before nor after"
WAITING = "a batcher that waits is asked again when the delay is over, or the time of a request"


@dataclass(frozen=True, slots=True)
class ExecuteRequests:
    """The right decision is to execute these requests there, for this reason."""

    instance: int
    requests: tuple[int, ...]
    reason: SealReason


@dataclass(frozen=True, slots=True)
class RejectOne:
    """The right decision is to reject one of these requests, each with its error."""

    errors: dict[int, str]


@dataclass(frozen=True, slots=True)
class WaitFor:
    """The right decision is to wait until then, unless something happens."""

    until_s: float


Wrong = tuple[str, str]
"""The rule that a decision breaks, and how."""

D = TypeVar("D", Dispatched, Rejected, Waits)

RightDecision = ExecuteRequests | RejectOne | WaitFor

NOTHING_TO_DO = WaitFor(NEVER_S)


@dataclass(slots=True)
class NaiveCore:
    """A core, as it should be.

    Attributes:
        idle: instances that may take a batch, the one that has waited longest first; one may be in it twice.
        spare: those that may take a batch that cannot grow by waiting.
        gave_up: requests whose clients did so while they were queued.
        until_s: how long it said last that it waits.
        least: nothing leaves before so many requests have been queued at a time; 0 from then on. Those who gave up
            meanwhile count.
    """

    config: ModelConfig
    queue: NaiveQueue
    idle: list[int] = field(default_factory=list)
    spare: list[int] = field(default_factory=list)
    gave_up: dict[int, None] = field(default_factory=dict)
    stopping: bool = False
    until_s: float = NEVER_S
    least: int = 0

    def refusal(self, event: Admitted | RefusedAtDoor) -> str:
        """How the error ends with which it is refused, as long as the model is not stopping; empty if it is not."""
        return FULL if self.queue.is_full_for(event) else ""

    def right_decision(self, now_s: float) -> RightDecision:
        """What there is to do now."""
        if self.least and not self.stopping and len(self.queue.entries) + len(self.gave_up) < self.least:
            return NOTHING_TO_DO
        expired = self.queue.expired(now_s)
        if expired or self.gave_up:
            return RejectOne(dict.fromkeys(self.gave_up, CANCELLED) | {entry.number: EXPIRED for entry in expired})
        if not self.queue.entries:
            return NOTHING_TO_DO
        next_deadline_s = self.queue.next_deadline_s(now_s)
        instances = self.idle or self.spare
        if not instances:
            return WaitFor(next_deadline_s)
        line = self.queue.ordered(now_s)
        batching = self.config.dynamic_batching
        if batching is None:
            return ExecuteRequests(instances[0], (line[0].number,), SealReason.UNBATCHED)
        if not self.idle and not cannot_grow(self.config, batching, line, now_s, self.stopping):
            return WaitFor(next_deadline_s)
        right = right_batch(self.config, batching, line, now_s, self.stopping)
        if isinstance(right, Batch):
            return ExecuteRequests(instances[0], tuple([entry.number for entry in line[: right.count]]), right.reason)
        return WaitFor(min(right.due_s, next_deadline_s))


class RightDecisions(Invariant):
    """Whatever a default scheduler or a dynamic batcher decides, the rules say just that
    (docs/reference/scheduling.md#default-scheduler, docs/reference/scheduling.md#dynamic-batching)."""

    name = "schedulers decide what the rules say"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._cores: dict[str, NaiveCore] = {}
        self._unasked: dict[str, NaiveCore] = {}  # that were told something, and not asked since what is to be done
        self._waiting: dict[str, NaiveCore] = {}  # that wait until a time

    def handlers(self) -> Handlers:
        return {
            CoreMade: self._made,
            Admitted: self._admitted,
            RefusedAtDoor: self._refused,
            ToldIdle: self._idle,
            ToldPaused: self._not_idle,
            ToldGone: self._not_idle,
            ToldCancelled: self._cancelled,
            ToldToStop: self._stopped,
            QueueDropped: self._dropped,
            Dispatched: self._dispatched,
            Rejected: self._rejected,
            Waits: self._waits,
            SaidFull: self._said_full,
        }

    def _wrong(self, rule: str, text: str) -> None:
        self.broken(f"{text} (rule: {rule})")

    # What cores are told.

    def _made(self, event: CoreMade) -> None:
        for cores in (self._unasked, self._waiting, self._cores):
            cores.pop(event.core, None)
        core = self.new_core(event)
        if core is not None:
            self._cores[event.core] = core

    def new_core(self, event: CoreMade) -> NaiveCore | None:
        """What to hold the decisions of a new core against; None if they are judged elsewhere."""
        config = event.config
        if config.has_sequence_batching or PARAMETER in config.parameters:
            return None
        least = event.delays.queued if config.dynamic_batching is not None else 0
        return NaiveCore(config, NaiveQueue(config.dynamic_batching), least=least)

    def _told(self, name: str) -> NaiveCore | None:
        core = self._cores.get(name)
        if core is not None:
            self._unasked[name] = core
        return core

    def _admitted(self, event: Admitted) -> None:
        core = self._told(event.core)
        if core is None:
            return
        if core.stopping:
            self._wrong(ADMISSION, f"request {event.request} was queued by '{event.core}', which is stopping")
        elif error := core.refusal(event):
            self._wrong(ADMISSION, f"request {event.request} was queued by '{event.core}'; right is {error!r}")
        core.queue.add(event)

    def _refused(self, event: RefusedAtDoor) -> None:
        core = self._cores.get(event.core)
        if core is None:
            return
        right = STOPPING if core.stopping else core.refusal(event) or "nothing"
        if not event.error.endswith(right):
            self._wrong(ADMISSION, f"request {event.request} was refused with {event.error!r}; right is {right!r}")

    def _said_full(self, event: SaidFull) -> None:
        core = self._cores.get(event.core)
        if core is not None and core.queue.is_full_for_all() != event.full:
            self._wrong(ADMISSION, f"'{event.core}' says that it is {'not ' * (not event.full)}full")

    def _idle(self, event: ToldIdle) -> None:
        core = self._told(event.core)
        if core is None:
            return
        if event.instance in core.spare:
            core.spare.remove(event.instance)
        (core.spare if event.spare else core.idle).append(event.instance)

    def _not_idle(self, event: ToldPaused | ToldGone) -> None:
        core = self._told(event.core)
        if core is not None:
            core.idle = [instance for instance in core.idle if instance != event.instance]
            core.spare = [instance for instance in core.spare if instance != event.instance]

    def _cancelled(self, event: ToldCancelled) -> None:
        core = self._told(event.core)
        if core is not None and core.queue.entries.pop(event.request, None) is not None:
            core.gave_up[event.request] = None

    def _stopped(self, event: ToldToStop) -> None:
        core = self._told(event.core)
        if core is not None:
            core.stopping = True

    def _dropped(self, event: QueueDropped) -> None:
        core = self._told(event.core)
        if core is None:
            return
        right = {*core.queue.entries, *core.gave_up}
        if {*event.requests} != right or len(event.requests) != len(right):
            self.broken(f"'{event.core}' gave {event.requests} back; queued were {sorted(right)}")
        core.queue.entries.clear()
        core.gave_up.clear()

    # What they decide.

    def _dispatched(self, event: Dispatched) -> None:
        core = self._told(event.core)
        if core is None:
            return
        self._judge(core, event, self._judge_batch)
        core.least = 0
        for request in event.requests:
            core.queue.entries.pop(request, None)
        for instances in (core.idle, core.spare):
            if event.instance in instances:
                instances.remove(event.instance)

    def _rejected(self, event: Rejected) -> None:
        core = self._told(event.core)
        if core is None:
            return

        self._judge(core, event, self._judge_rejection)
        core.least = 0
        core.queue.entries.pop(event.request, None)
        core.gave_up.pop(event.request, None)

    def _judge_rejection(self, event: Rejected, right: RightDecision) -> Wrong | None:
        if isinstance(right, RejectOne) and right.errors.get(event.request) == event.error:
            return None
        return REJECTION, f"'{event.core}' rejected request {event.request}: {event.error!r}; right is {right}"

    def _waits(self, event: Waits) -> None:
        core = self._cores.get(event.core)
        if core is None:
            return
        self._unasked.pop(event.core, None)
        self._waits_until(event.core, core, event.until_s)
        self._judge(core, event, self._judge_wait)

    def _judge_wait(self, event: Waits, right: RightDecision) -> Wrong | None:
        if isinstance(right, WaitFor) and _same(right.until_s, event.until_s):
            return None
        rule = WHEN if isinstance(right, ExecuteRequests) else WAITING if isinstance(right, WaitFor) else REJECTION
        return rule, f"'{event.core}' waits at {event.at_s} s until {event.until_s} s; right is {right}"

    def _waits_until(self, name: str, core: NaiveCore, until_s: float) -> None:
        core.until_s = until_s
        if until_s == NEVER_S:
            self._waiting.pop(name, None)
        else:
            self._waiting[name] = core

    def _judge(self, core: NaiveCore, event: D, judge: Callable[[D, RightDecision], Wrong | None]) -> None:
        """Complain of a decision, unless it is right, or would be a moment before or after."""
        now_s = event.at_s
        wrong = judge(event, core.right_decision(now_s))
        if wrong is None:
            return
        moments = now_s - TOLERANCE_S, now_s + TOLERANCE_S
        if any(judge(event, core.right_decision(moment)) is None for moment in moments):
            return
        self._wrong(*wrong)

    def _judge_batch(self, event: Dispatched, right: RightDecision) -> Wrong | None:
        what = f"'{event.core}' sent {event.requests} to instance {event.instance} at {event.at_s} s"
        if isinstance(right, RejectOne):
            return REJECTION_FIRST, f"{what}; to be rejected are {sorted(right.errors)}"
        if isinstance(right, WaitFor):
            return WHEN, f"{what}; right is to wait until {right.until_s} s"
        if event.requests != right.requests:
            rule = ONE_AT_A_TIME if right.reason is SealReason.UNBATCHED else WHICH
            return rule, f"{what}; right are {right.requests}"
        if event.instance != right.instance:
            return WHERE, f"{what}; right is instance {right.instance}"
        if event.reason is not right.reason:
            return WHY, f"{what}, for {event.reason.value!r}; right is {right.reason.value!r}"
        return None

    # What should have been asked.

    def instant_over(self, now_ns: int) -> None:
        before_s, after_s = now_ns / 1e9 - TOLERANCE_S, now_ns / 1e9 + TOLERANCE_S
        for name, core in list(self._unasked.items()):
            right = core.right_decision(before_s)
            if not isinstance(right, WaitFor):
                self._wrong(WHEN, f"'{name}' was not asked at {before_s} s; right is {right}")
            right = core.right_decision(after_s)
            if isinstance(right, WaitFor):  # otherwise something is due at this very moment: look again at the next
                self._waits_until(name, core, right.until_s)
                del self._unasked[name]
        for name, core in list(self._waiting.items()):
            if core.until_s < before_s:
                self._waits_until(name, core, NEVER_S)
                self._wrong(WAITING, f"'{name}' was not asked at {before_s} s, although it waits for that moment")


def _same(one_s: float, other_s: float) -> bool:
    return one_s == other_s or abs(one_s - other_s) <= TOLERANCE_S
