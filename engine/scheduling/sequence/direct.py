"""The direct strategy: slot n of an instance is row n of its batches (docs/reference/sequences.md#direct-strategy).

Rules:
 1. A batch is formed when the instance executes none. Its rows are the slots from 0 up to the last one that is READY.
 2. A slot that is not READY, or whose request is not compatible with the first one of the batch, contributes a null
    job. Requests that are left out keep their place.
 3. If the model has a queue delay and a minimum slot utilization, both not 0, a batch waits until enough slots are
    ready or the oldest request that is ready has waited so long. When the model is stopping, nothing waits.
"""

from __future__ import annotations

import numpy as np

from ...config.sequence import DirectStrategy
from ...execution import SealReason
from ...job import Job
from ..compatibility import Compatibility
from ..core import InstanceId
from .controls import Controls
from .host import Batch, Host
from .padding import NullJob


class DirectHost(Host):
    """One instance under the direct strategy.

    Args:
        rows: max_batch_size, at least 1; the number of slots.
        compatibility: what the requests of a batch must agree on; None for nothing.
    """

    def __init__(
        self,
        instance: InstanceId,
        controls: Controls,
        strategy: DirectStrategy,
        rows: int,
        compatibility: Compatibility | None,
    ) -> None:
        super().__init__(instance)
        self._controls = controls
        self._rows = rows
        self._compatibility = compatibility
        self._delay_s = strategy.max_queue_delay_us / 1_000_000
        self._enough = _slots_needed(strategy.minimum_slot_utilization, rows)

    def form(self, now: float, draining: bool) -> Batch | None:
        """See `Host.form`."""
        self.ripe_s = None
        if self.executing or not self.ready:
            return None
        reason = SealReason.DRAIN if draining else SealReason.IDLE
        if self._delay_s and self._enough and not draining:
            reason = SealReason.PREFERRED
            if len(self.ready) < self._enough:
                reason = SealReason.DELAY
                ripe_s = min(slot.next_s for slot in self.ready.values()) + self._delay_s
                if now < ripe_s:
                    self.ripe_s = ripe_s
                    return None
        jobs = self._take()
        if len(jobs) == self._rows and not any(isinstance(job, NullJob) for job in jobs):
            reason = SealReason.FULL
        return jobs, reason

    def _take(self) -> list[Job]:
        """The rows of a batch (rule 2)."""
        rows: list[Job | None] = [None] * (max(self.ready) + 1)
        first: Job | None = None
        signature = None
        for number in sorted(self.ready):
            slot = self.ready[number]
            job = slot.head
            assert job is not None, "a slot that is READY has a request that may go"
            if self._compatibility is not None:
                if first is None:
                    signature = self._compatibility.signature(job)
                elif self._compatibility.signature(job) != signature:
                    continue
            first = first or job
            rows[number] = slot.take()
        assert first is not None, "the first request that is ready is compatible with itself"
        return [NullJob(first, self._controls) if job is None else job for job in rows]


def _slots_needed(utilization: float, rows: int) -> int:
    """The fewest ready slots that are enough; 0 for no minimum. In single precision, in which it is configured."""
    if not utilization:
        return 0
    wanted = np.float32(utilization)
    return next(count for count in range(1, rows + 1) if np.float32(count) / np.float32(rows) >= wanted)
