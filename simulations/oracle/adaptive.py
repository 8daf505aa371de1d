"""What the adaptive batcher decides: each time it is asked, there is one right answer
(docs/adaptive_batching.md, `engine.scheduling.adaptive`).

The oracle keeps a queue, a list of idle instances and the batches in execution of its own, learns service times and the
rate from what the core was told, with the same two estimators, and works the answer out from scratch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...engine.config.model import DynamicBatching, ModelConfig
from ...engine.config.objective import latency_objective_s
from ...engine.job import SealReason
from ...engine.scheduling.adaptive import BEARABLE, DELAY_SHARE, MEMORY, WAITED, WORTH, sizes_up_to
from ...engine.scheduling.service_times import ArrivalRate, ServiceTimes
from ..history import Handlers
from ..invariants.queueing import EXPIRED, TOO_LATE
from .batches import Batch, may_share
from .decisions import CANCELLED, ExecuteRequests, NaiveCore, RejectOne, RightDecision, RightDecisions, WaitFor
from .observed import (
    NEVER_S,
    Admitted,
    CoreMade,
    Dispatched,
    RefusedAtDoor,
    Rejected,
    ToldExecuted,
    ToldGone,
    ToldIdle,
    ToldPaused,
)
from .queues import NaiveEntry, NaiveQueue

BORDER_S = 1e-6
"""Requests that are so close to being late may be refused or not."""


@dataclass(slots=True)
class NaiveHeld:
    """A batch in execution. `behind`: its instance still executed another one when it was sent."""

    instance: int
    rows: int
    start_s: float
    behind: bool


@dataclass(slots=True)
class AdaptiveCore(NaiveCore):
    """An adaptive batcher, as it should be.

    Attributes:
        asked_for: requests that have come.
        instances: that it has ever been told are idle, and not that they are gone.
        held: by the first request of each batch in execution.
        free_s: by instance, when its last batch was over.
        going: requests that make way for those behind them.
    """

    objective_s: float = math.inf
    batching: DynamicBatching = field(default_factory=DynamicBatching)
    times: ServiceTimes = field(default_factory=ServiceTimes)
    rate: ArrivalRate = field(default_factory=lambda: ArrivalRate(1.0))
    sizes: tuple[int, ...] = (1,)
    preferred: tuple[int, ...] = ()
    target: int = 1
    needed: int = 1
    delay_s: float = 0.0
    asked_for: set[int] = field(default_factory=set)
    instances: set[int] = field(default_factory=set)
    held: dict[int, NaiveHeld] = field(default_factory=dict)
    free_s: dict[int, float] = field(default_factory=dict)
    going: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, config: ModelConfig, batching: DynamicBatching, objective_s: float) -> AdaptiveCore:
        most = max(1, config.max_batch_size)
        preferred = batching.preferred_batch_sizes if set(batching.preferred_batch_sizes) - {most} else ()
        sizes = tuple(sorted(preferred)) if preferred else sizes_up_to(most)
        core = cls(config, NaiveQueue(batching), objective_s=objective_s, batching=batching, sizes=sizes)
        core.rate = ArrivalRate(MEMORY * objective_s)
        core.preferred = preferred
        core.target = max(sizes)
        return core

    # What it learns.

    def comes(self, event: Admitted | RefusedAtDoor) -> None:
        if event.request not in self.asked_for:
            self.asked_for.add(event.request)
            self.rate.arrived(event.rows, event.at_s)

    def executed(self, event: ToldExecuted) -> None:
        held = self.held.pop(event.first, None)
        if held is None:
            return
        start_s = held.start_s
        if held.behind and self.free_s.get(event.instance, -math.inf) > start_s:
            start_s = self.free_s[event.instance]
        self.free_s[event.instance] = event.at_s
        if not event.failed:
            self.times.learn(held.rows, event.at_s - start_s)
            self._choose(event.at_s)

    def _choose(self, now_s: float) -> None:
        """The target, and how long to wait for how much."""
        times = self.times
        count = max(len(self.instances), len(self.idle) + len(self.held) + 1)
        per_s = self.rate.rows_per_s(now_s)
        rates: dict[int, float] = {}
        for size in self.sizes:
            spare_s = self.objective_s - times.bound_s(size)
            if spare_s > 0:
                come = per_s / count * min(times.expected_s(size), spare_s)
                rates[size] = min(size, come) / times.expected_s(size)
        best = max(rates.values(), default=0.0)
        as_good = [size for size, rate in rates.items() if rate >= best * (1 - 1e-9)]
        self.target = max(as_good, default=self.sizes[0])
        bearable = [size for size in self.sizes if per_s / count * times.expected_s(size) <= BEARABLE * size]
        come = math.floor(per_s * DELAY_SHARE * self.objective_s)
        self.needed = max(1, min(min(bearable, default=self.target), self.target, come))
        self.delay_s = 0.0 if self.needed == 1 else self.needed / per_s

    # What is right.

    def refusal(self, event: Admitted | RefusedAtDoor) -> str:
        margin_s = self._margin_s(event)
        if margin_s < -BORDER_S or (margin_s < 0 and isinstance(event, RefusedAtDoor)):
            return TOO_LATE
        if abs(margin_s) <= BORDER_S and isinstance(event, RefusedAtDoor) and event.error.endswith(TOO_LATE):
            return TOO_LATE
        return NaiveCore.refusal(self, event)

    def _margin_s(self, event: Admitted | RefusedAtDoor) -> float:
        """How long before it is due the request will be over; less than nothing if it would be late."""
        now_s = event.at_s
        free_s = self._free_from(now_s)
        queued = len(self.queue.entries) + len(self.gave_up)
        if not self.times.known or not free_s or (not queued and free_s[0] <= now_s):
            return math.inf
        level = self.queue.level_of(event.priority)
        ahead = sum(entry.rows for entry in self.queue.entries.values() if entry.level <= level)
        size = max(self.target, event.rows)
        before, inside = divmod(ahead, size)
        if inside + event.rows > size:
            before, inside = before + 1, 0
        wait_s = free_s[before % len(free_s)] - now_s + before // len(free_s) * self.times.expected_s(size)
        come = math.ceil(self.rate.rows_per_s(now_s) * wait_s / len(free_s))
        return self.objective_s - wait_s - self.times.expected_s(min(size, inside + event.rows + come))

    def _free_from(self, now_s: float) -> list[float]:
        ends = [held.start_s + self.times.expected_s(held.rows) for held in self.held.values()]
        return sorted([now_s for _ in self.idle] + [max(now_s, end_s) for end_s in ends])

    def right_decision(self, now_s: float) -> RightDecision:
        errors = dict.fromkeys(self.gave_up, CANCELLED)
        errors.update((entry.number, EXPIRED) for entry in self.queue.expired(now_s))
        line = [entry for entry in self.queue.ordered(now_s) if entry.number not in errors]
        late, next_s = self._late(line, now_s)
        errors.update(dict.fromkeys([*late, *self.going], TOO_LATE))
        if errors:
            return RejectOne(errors)
        next_s = min(next_s, self.queue.next_deadline_s(now_s))
        if not line or not (self.idle or self.spare):
            return WaitFor(next_s)
        batch, is_tight = self._batch(line, now_s)
        if self.idle and is_tight and (going := self._making_way(line, batch, now_s)):
            return RejectOne(dict.fromkeys(going, TOO_LATE))
        if not self.idle:
            ripe_s = now_s if batch.reason is not SealReason.IDLE else NEVER_S
        else:
            ripe_s, batch = self._ripe(line[: batch.count], batch, now_s)
        if ripe_s > now_s:
            return WaitFor(min(next_s, ripe_s))
        numbers = tuple([entry.number for entry in line[: batch.count]])
        reason = SealReason.DRAIN if batch.reason is SealReason.IDLE and self.stopping else batch.reason
        return ExecuteRequests((self.idle or self.spare)[0], numbers, reason)

    def _late(self, line: Sequence[NaiveEntry], now_s: float) -> tuple[list[int], float]:
        """Requests that would be late even alone; and when another one will be, if no instance is idle."""
        late: list[int] = []
        if not self.times.known:
            return late, NEVER_S
        start_s = min(self._free_from(now_s), default=now_s)
        may_try = bool(self.idle) or not self.held
        spared = not may_try  # one hopeless request is let be if an instance is idle, or none executes anything
        while True:
            left = [entry for entry in line if entry.number not in late]
            heads = {entry.level: entry for entry in reversed(left)}
            found = False
            next_s = NEVER_S
            for level in sorted(heads):
                entry = heads[level]
                takes_s = self.times.bound_s(entry.rows)
                last_s = entry.queued_s + self.objective_s - takes_s
                if start_s < last_s:
                    next_s = min(next_s, last_s)
                elif takes_s >= self.objective_s and not spared:
                    spared = True
                else:
                    late.append(entry.number)
                    found = True
            if not found or (may_try and spared):
                return late, NEVER_S if self.idle else next_s

    def _batch(self, line: Sequence[NaiveEntry], now_s: float) -> tuple[Batch, bool]:
        """The batch at the head; IDLE if more can join it. And whether it could hold more, were it not due so soon."""
        known = self.times.known
        most = self.target if known else max(1, self.config.max_batch_size)
        count, rows = 1, line[0].rows
        reason, is_tight = SealReason.IDLE, False
        cuts = {1: rows} if rows in self.preferred else {}
        for entry in line[1:]:
            if rows >= most:
                break
            due_s = min(each.queued_s for each in line[: count + 1]) + self.objective_s
            if rows + entry.rows > most:
                reason = SealReason.FULL
                break
            if known and now_s + self.times.bound_s(rows + entry.rows) > due_s:
                reason, is_tight = SealReason.FULL, True
                break
            if not may_share(self.config, line[0], entry):
                reason = SealReason.SHAPE
                break
            count, rows = count + 1, rows + entry.rows
            if rows in self.preferred:
                cuts[count] = rows
        if rows >= most:
            reason = SealReason.FULL
        if not cuts:
            return Batch(count, reason), is_tight
        count = max(cuts)
        return Batch(count, SealReason.FULL if cuts[count] >= most else SealReason.PREFERRED), is_tight

    def _making_way(self, line: Sequence[NaiveEntry], batch: Batch, now_s: float) -> list[int]:
        """Those at the head that keep a batch of the target size from being made of those behind them."""
        last_s = now_s + self.times.bound_s(self.target) - self.objective_s
        count = next((index for index, entry in enumerate(line) if entry.queued_s >= last_s), len(line))
        if count == len(line) or line[0].level != line[count].level:
            return []
        other, is_tight = self._batch(line[count:], now_s)
        if other.reason is not SealReason.FULL or is_tight:
            return []
        rates: list[float] = []
        for entries in (line[: batch.count], line[count:][: other.count]):
            rows = sum(entry.rows for entry in entries)
            rates.append(rows / self.times.expected_s(rows))
        return [entry.number for entry in line[:count]] if rates[0] < WORTH * rates[1] else []

    def _ripe(self, entries: Sequence[NaiveEntry], batch: Batch, now_s: float) -> tuple[float, Batch]:
        """When the batch is sent to an idle instance, and with which reason."""
        if batch.reason is not SealReason.IDLE or self.stopping or sum(each.rows for each in entries) >= self.needed:
            return now_s, batch
        oldest_s = min(entry.queued_s for entry in entries)
        spare_s = self.objective_s - self.times.bound_s(self.needed)
        ripe_s = oldest_s + min(self.delay_s, WAITED * spare_s)
        return ripe_s, Batch(batch.count, SealReason.DELAY)


class RightAdaptations(RightDecisions):
    """Whatever an adaptive batcher decides, its rules say just that: it refuses nothing but what would be late by its
    own estimate, no instance is idle while a batch need not wait, and batches are within their limits."""

    name = "adaptive batchers decide what the rules say"

    def handlers(self) -> Handlers:
        return {**super().handlers(), ToldExecuted: self._executed}

    def new_core(self, event: CoreMade) -> NaiveCore | None:
        objective_s = latency_objective_s(event.config)
        batching = event.config.dynamic_batching
        if objective_s is None or batching is None:
            return None
        return AdaptiveCore.of(event.config, batching, objective_s)

    def _of(self, name: str) -> AdaptiveCore | None:
        core = self._cores.get(name)
        return core if isinstance(core, AdaptiveCore) else None

    def _admitted(self, event: Admitted) -> None:
        if (core := self._of(event.core)) is not None:
            core.comes(event)
        super()._admitted(event)

    def _refused(self, event: RefusedAtDoor) -> None:
        core = self._of(event.core)
        if core is not None and not core.stopping:
            core.comes(event)
        super()._refused(event)

    def _executed(self, event: ToldExecuted) -> None:
        core = self._told(event.core)
        if isinstance(core, AdaptiveCore):
            core.executed(event)

    def _idle(self, event: ToldIdle) -> None:
        if (core := self._of(event.core)) is not None:
            core.instances.add(event.instance)
        super()._idle(event)

    def _not_idle(self, event: ToldPaused | ToldGone) -> None:
        core = self._of(event.core)
        if core is not None and isinstance(event, ToldGone):
            core.instances.discard(event.instance)
            core.free_s.pop(event.instance, None)
            core.held = {first: held for first, held in core.held.items() if held.instance != event.instance}
        super()._not_idle(event)

    def _dispatched(self, event: Dispatched) -> None:
        core = self._of(event.core)
        if core is None:
            return
        entries = [core.queue.entries.get(request) for request in event.requests]
        behind = not core.idle
        super()._dispatched(event)
        rows = sum(entry.rows for entry in entries if entry is not None)
        core.held[event.requests[0]] = NaiveHeld(event.instance, rows, event.at_s, behind)

    def _rejected(self, event: Rejected) -> None:
        core = self._of(event.core)
        if core is None:
            return
        right = core.right_decision(event.at_s)
        super()._rejected(event)
        if isinstance(right, RejectOne) and event.error == TOO_LATE and not core.going:
            core.going = {number for number, error in right.errors.items() if error == TOO_LATE}
        core.going.discard(event.request)
