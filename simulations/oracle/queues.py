"""A batcher's queue, as its rules say it: a list, looked through from end to end (docs/reference/scheduling.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...engine.config.model import DynamicBatching, QueuePolicy, TimeoutAction
from ...engine.tensor import Tensor
from .observed import NEVER_S, Admitted, RefusedAtDoor

NO_POLICY = QueuePolicy()


@dataclass(slots=True)
class NaiveEntry:
    """A queued request. `deadline_s` is when its time in the queue is over, `NEVER_S` for never."""

    number: int
    rows: int
    level: int
    arrival: int
    queued_s: float
    deadline_s: float
    inputs: Mapping[str, Tensor]


class NaiveQueue:
    """What is queued for a model.

    Args:
        batching: the model's; None for the default scheduler, which has one queue without limits.

    Attributes:
        entries: by request, in order of arrival.
        is_plain: no request has waited for a limited time, and none in a level: all go in order of arrival.
    """

    def __init__(self, batching: DynamicBatching | None) -> None:
        self.batching = batching
        self.entries: dict[int, NaiveEntry] = {}
        self.is_plain = batching is None or not batching.priority_levels
        self._arrivals = 0

    def level_of(self, priority: int) -> int:
        """A request without a priority, or with one that is out of range, gets the default level."""
        if self.batching is None or not self.batching.priority_levels:
            return 0
        in_range = 1 <= priority <= self.batching.priority_levels
        return priority if in_range else self.batching.default_priority_level

    def policy(self, level: int) -> QueuePolicy:
        """The policy of a level, or else the default one."""
        return NO_POLICY if self.batching is None else self.batching.policy(level)

    def timeout_s(self, level: int, asked_us: int) -> float:
        """The default timeout, unless overrides are allowed and a shorter one, which is not 0, was asked for."""
        policy = self.policy(level)
        timeout_us = policy.default_timeout_us
        if timeout_us == 0:
            return NEVER_S
        if policy.allow_timeout_override and asked_us != 0 and asked_us < timeout_us:
            timeout_us = asked_us
        return timeout_us / 1_000_000

    def is_full_for(self, event: Admitted | RefusedAtDoor) -> bool:
        """A level that holds as many requests as it may, delayed ones included, takes no more; 0 is no limit."""
        level = self.level_of(event.priority)
        limit = self.policy(level).max_queue_size
        return limit != 0 and sum(entry.level == level for entry in self.entries.values()) >= limit

    def is_full_for_all(self) -> bool:
        """Without levels, that is: with some of them it depends on the request."""
        limit = self.policy(0).max_queue_size
        levels = 0 if self.batching is None else self.batching.priority_levels
        return not levels and 0 < limit <= len(self.entries)

    def add(self, event: Admitted) -> None:
        self._arrivals += 1
        level = self.level_of(event.priority)
        deadline_s = event.at_s + self.timeout_s(level, event.timeout_us)
        self.is_plain = self.is_plain and deadline_s == NEVER_S
        self.entries[event.request] = NaiveEntry(
            event.request, event.rows, level, self._arrivals, event.at_s, deadline_s, event.inputs
        )

    def expired(self, now_s: float) -> list[NaiveEntry]:
        """A request whose time is over is rejected at once, unless its level delays it."""
        if self.is_plain:
            return []
        over = [entry for entry in self.entries.values() if entry.deadline_s <= now_s]
        return [entry for entry in over if self.policy(entry.level).timeout_action is TimeoutAction.REJECT]

    def ordered(self, now_s: float) -> list[NaiveEntry]:
        """Level 1 before level 2, and so on. Within a level in order of arrival; a delayed request comes after all
        that are not, in the order in which their time was over, and before the next level. None has `expired`."""
        if self.is_plain:
            return list(self.entries.values())

        def place(entry: NaiveEntry) -> tuple[int, bool, float, int]:
            delayed = entry.deadline_s <= now_s
            return entry.level, delayed, entry.deadline_s if delayed else 0.0, entry.arrival

        return sorted(self.entries.values(), key=place)

    def next_deadline_s(self, now_s: float) -> float:
        """When the time of another request will be over."""
        if self.is_plain:
            return NEVER_S
        return min((entry.deadline_s for entry in self.entries.values() if entry.deadline_s > now_s), default=NEVER_S)
