"""Queues: no request is overtaken, limits and deadlines hold."""

from __future__ import annotations

from itertools import islice

from ...engine.config.model import ModelConfig
from ...engine.config.objective import PARAMETER
from ...engine.scheduling.adaptive import DELAY_SHARE
from ..events import (
    NEVER_NS,
    BatchSealed,
    RequestQueued,
    RequestRefused,
    RequestRejected,
)
from ..history import Handlers
from .base import Complain, Invariant
from .batches import TOLERANCE_NS
from .resources import ResourceLimits
from .state import ModelView, WorldState

FULL = "Exceeds maximum queue size"
EXPIRED = "Request timeout expired"
TOO_LATE = "Latency objective cannot be met, the request would be answered too late"


class QueueOrder(Invariant):
    """A batch is the head of its queue: by priority, within it by arrival, those behind who outstayed their time
    (docs/reference/scheduling.md#queue-policies, docs/reference/scheduling.md#priorities). So priorities are never
    inverted, and no cancelled or expired request is executed."""

    name = "no request is overtaken"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state

    def handlers(self) -> Handlers:
        return {BatchSealed: self._sealed}

    def _sealed(self, batch: BatchSealed) -> None:
        view = self._state.models[batch.model]
        if view.config.has_sequence_batching:
            return  # a sequence waits for its own slot
        if view.isolated.issuperset(batch.requests):
            return  # it has stood in line already
        line = view.line
        head = tuple([request.number for request in islice(line.ordered(batch.at_ns), len(batch.requests))])
        if head != batch.requests:
            self.broken(f"batch {batch.batch} of '{batch.model}' is {batch.requests}; first in line are {head}")


class QueueLimits(Invariant):
    """A level holds no more than it may; a request that is refused for that reason found it full, and no instance idle;
    a request whose time is over is rejected then, neither before nor after
    (docs/reference/scheduling.md#queue-policies).

    Args:
        resources: knows whether an idle instance may have to wait for some.
    """

    name = "queue limits and deadlines hold"

    def __init__(self, complain: Complain, state: WorldState, resources: ResourceLimits) -> None:
        super().__init__(complain)
        self._state = state
        self._resources = resources
        self._impatient: dict[str, ModelView] = {}  # in which requests wait that are to be rejected at some time

    def handlers(self) -> Handlers:
        return {
            RequestQueued: self._queued,
            RequestRefused: self._refused,
            RequestRejected: self._rejected,
            BatchSealed: self._sealed,
        }

    def _queued(self, event: RequestQueued) -> None:
        view = self._state.models[event.model]
        limit = _queue_limit(view.config, event.level)
        if limit and len(view.line.levels[event.level]) >= limit:
            self.broken(f"request {event.request} joined level {event.level} of '{event.model}', full at {limit}")

    def _refused(self, event: RequestRefused) -> None:
        asked = self._state.asked.get(event.request) if event.error.endswith(FULL) else None
        if asked is None:
            return
        view = self._state.serving[asked.model]
        level = _level(view.config, asked.priority)
        limit = _queue_limit(view.config, level)
        generations = [each for each in self._state.models.values() if each.config is view.config]
        view = max(generations, key=lambda each: len(each.line.levels[level]))  # an ensemble may hold an old one
        found = len(view.line.levels[level])
        if not limit or found < limit:
            self.broken(f"request {event.request} was refused: level {level} of '{asked.model}' has {found} of {limit}")
        elif view.idle_since_ns == event.at_ns or self._state.held or not self._resources.available(view, event.at_ns):
            return
        elif view.idle > 0 and is_due(view, event.at_ns):
            self.broken(f"request {event.request} was refused: '{asked.model}' is full, yet {view.idle} instances idle")

    def _rejected(self, event: RequestRejected) -> None:
        if event.error != EXPIRED:
            return
        view = self._state.home(event.request)
        request = None if view is None else view.line.waiting[event.request]
        if view is None or request is None or request.deadline_ns == NEVER_NS:
            self.broken(f"request {event.request} was rejected as expired, but had no deadline")
        elif abs(event.at_ns - request.deadline_ns) > TOLERANCE_NS and not self._state.held:
            self.broken(
                f"request {event.request} was rejected at {event.at_ns} ns; its deadline is {request.deadline_ns} ns"
            )
        elif view.line.waits_on(request.level):
            self.broken(f"request {event.request} was rejected as expired, but its level lets expired requests wait")

    def _sealed(self, batch: BatchSealed) -> None:
        waiting = self._state.models[batch.model].line.waiting
        for number in batch.requests:
            request = waiting.get(number)
            if request is not None and request.deadline_ns != NEVER_NS and request.deadline_ns < batch.at_ns:
                self.broken(f"request {number} was executed after its deadline")

    def instant_over(self, now_ns: int) -> None:
        if self._state.held:
            return
        for name, view in self._state.touched.items():
            if view.line.rejects:
                self._impatient[name] = view
        for view in self._impatient.values():
            number = view.line.overdue(now_ns - TOLERANCE_NS)
            if number:
                self.broken(f"request {number} of '{view.config.name}' waits on after its deadline")


class Promptness(Invariant):
    """No instance is idle while something waits that it should execute: nothing to wait for, a preferred size reached,
    or the delay over (docs/reference/scheduling.md#forming-a-batch).

    Args:
        resources: knows whether an idle instance may have to wait for some.
    """

    name = "no instance is idle while work is due"

    def __init__(self, complain: Complain, state: WorldState, resources: ResourceLimits) -> None:
        super().__init__(complain)
        self._state = state
        self._resources = resources
        self._patient: dict[str, ModelView] = {}

    def instant_over(self, now_ns: int) -> None:
        if self._state.held:
            return
        for name, view in self._state.touched.items():
            if view.idle > 0 and view.line.waiting:
                self._patient[name] = view
            else:
                self._patient.pop(name, None)
        for view in self._patient.values():
            if is_due(view, now_ns) and self._resources.available(view, now_ns + 1):
                self._late(view, now_ns)

    def _late(self, view: ModelView, now_ns: int) -> None:
        waiting, name = len(view.line.waiting), view.name
        self.broken(f"{view.idle} instances of '{name}' are idle at {now_ns} ns while {waiting} requests wait")


def is_due(view: ModelView, now_ns: int) -> bool:
    """Whether an idle instance should execute something of what waits; something must."""
    batching = view.config.dynamic_batching
    if view.config.has_sequence_batching:
        return False  # it may have to wait for a slot
    if PARAMETER in view.config.parameters and not view.stopping:
        objective_ns = float(view.config.parameters[PARAMETER]) * 1e6
        return view.line.oldest_ns + DELAY_SHARE * objective_ns + TOLERANCE_NS < now_ns  # no delay is longer
    if batching is None or not batching.max_queue_delay_us or view.stopping:
        return True
    line = view.line
    if line.oldest_ns + batching.max_queue_delay_us * 1_000 + TOLERANCE_NS < now_ns:
        return True
    preferred = batching.preferred_batch_sizes or (max(1, view.config.max_batch_size),)
    rows = 0
    for request in line.ordered(now_ns):
        rows += request.rows
        if rows in preferred or rows >= max(preferred):
            return True
    return False


def _level(config: ModelConfig, priority: int) -> int:
    batching = config.dynamic_batching
    if batching is None or not batching.priority_levels:
        return 0
    return priority if 1 <= priority <= batching.priority_levels else batching.default_priority_level


def _queue_limit(config: ModelConfig, level: int) -> int:
    return 0 if config.dynamic_batching is None else config.dynamic_batching.policy(level).max_queue_size
