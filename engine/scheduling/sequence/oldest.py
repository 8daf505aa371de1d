"""The oldest strategy: the requests of candidate sequences are batched as they come
(docs/reference/sequences.md#oldest-strategy).

Rules:
 1. Each slot, that is each candidate, has at most one request here, from when it is *issued* until it is executed.
 2. Batches are formed of the issued requests as the dynamic batcher does (`formation`), in the order in which they were
    issued; their delay counts from then. There are no null jobs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ...config.sequence import OldestStrategy
from ...job import Job
from ..compatibility import Compatibility
from ..core import InstanceId
from ..formation import Formation
from .host import Batch, Host
from .slot import Slot


class OldestHost(Host):
    """One instance under the oldest strategy.

    Args:
        rows: max_batch_size, at least 1.
        compatibility: what the requests of a batch must agree on; None for nothing.
        least: no batch is formed before so many requests have been issued at a time (`held`); 0 for none.
    """

    def __init__(
        self,
        instance: InstanceId,
        strategy: OldestStrategy,
        rows: int,
        compatibility: Compatibility | None,
        least: int = 0,
    ) -> None:
        super().__init__(instance)
        self._least = least
        preferred = frozenset(strategy.preferred_batch_sizes or (rows,))
        self._formation = Formation(preferred, rows, strategy.max_queue_delay_us / 1_000_000, compatibility)
        self._issued: OrderedDict[Job, Slot] = OrderedDict()

    def issue(self, now: float) -> None:
        """See `Host.issue`."""
        for slot in list(self.ready.values()):
            job = slot.take()
            job.enqueued_s = now
            self._issued[job] = slot

    def form(self, now: float, draining: bool) -> Batch | None:
        """See `Host.form`."""
        self.ripe_s = None
        if not self._issued or (len(self._issued) < self._least and not draining):
            return None
        self._least = 0
        formation = self._formation
        formation.walk(self._issued)
        if self.spare and not formation.is_complete(now):
            return None
        decision = formation.decide(now, draining)
        if decision is None:
            self.ripe_s = formation.ripe_s
            return None
        count, reason = decision
        return [self._issued.popitem(last=False)[0] for _ in range(count)], reason

    def withdraw(self, job: Job) -> Slot | None:
        """See `Host.withdraw`."""
        slot = self._issued.pop(job, None)
        if slot is not None and self._least:
            self._least -= 1  # it counts as if it were still there (`held`)
        return slot

    def issued(self) -> Sequence[Job]:
        """See `Host.issued`."""
        return list(self._issued)
