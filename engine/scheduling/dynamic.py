"""The dynamic batcher (docs/reference/scheduling.md#dynamic-batching): requests wait in a queue, and idle instances
take batches of them.

Rules, besides those of `queueing`:
 1. While all instances are busy, batches grow.
 2. `formation` decides what a batch holds, and whether to wait for more.
"""

from __future__ import annotations

import math

from ..config.model import DynamicBatching
from ..execution import SealReason
from ..job import Job
from .compatibility import Compatibility
from .formation import Formation
from .queueing import QueueingCore


class DynamicBatcher(QueueingCore):
    """A `SchedulerCore` that batches.

    Args:
        batching: the model's ``dynamic_batching``.
        max_batch_size: the model's, in rows; 0 for a model without a batch dimension.
        compatibility: what requests must agree on to share a batch; None for nothing.
    """

    __slots__ = ("_formation", "_is_current")

    def __init__(
        self, batching: DynamicBatching, max_batch_size: int, compatibility: Compatibility | None = None
    ) -> None:
        super().__init__(batching)
        max_rows = max(1, max_batch_size)
        preferred = frozenset(batching.preferred_batch_sizes or (max_rows,))
        self._formation = Formation(preferred, max_rows, batching.max_queue_delay_us / 1_000_000, compatibility)
        self._is_current = True  # whether the formation agrees with the queue

    def _joined(self, job: Job, at_end: bool) -> None:
        if not at_end:
            self._is_current = False
        elif self._is_current and self._formation.closed is None:
            self._formation.add(job)

    def _reordered(self) -> None:
        self._is_current = False

    def _form(self, now: float, spare: bool) -> tuple[int, SealReason] | float:
        formation = self._formation
        if not self._is_current:
            formation.walk(self._queue)
            self._is_current = True
        if spare and not formation.is_complete(now):
            return math.inf
        decision = formation.decide(now, self._stopping)
        if decision is None:
            return formation.ripe_s
        self._is_current = decision[0] == self._queue.size
        if self._is_current:
            formation.clear()
        return decision
