"""Schedulers that hold requests back until enough are there: a test aid of Triton's, from the environment.

Without the variables a model gets the ordinary scheduler.

Rules:
 1. ``TRITONSERVER_DELAY_SCHEDULER=N``: a dynamic batcher dispatches nothing, and lets nothing expire or leave, until
    its queue has held N requests once.
 2. With it, a sequence batcher of the direct strategy forms no batch until the slots of all instances hold N requests,
    and the backlog as many as ``TRITONSERVER_BACKLOG_DELAY_SCHEDULER`` says. The oldest strategy: until N requests are
    issued to the instance, for each instance.
 3. Requests that are cancelled while they are held count as if they were still there: in Triton they are. With the
    oldest strategy so do those that were issued from a slot that died.
 4. A scheduler that is stopping holds nothing back.
"""

from __future__ import annotations

from collections.abc import Collection

from ..config.model import DynamicBatching
from ..job import Job
from ..scheduler_delays import SchedulerDelays
from .core import WAIT, Action
from .formation import Compatibility
from .queueing import DynamicBatcher
from .sequence.batcher import SequenceBatcher
from .sequence.strategies import SequencePlan


class HeldDynamicBatcher(DynamicBatcher):
    """Rule 1."""

    __slots__ = ("_cancelled", "_least")

    def __init__(
        self, batching: DynamicBatching, max_batch_size: int, compatibility: Compatibility | None, least: int
    ) -> None:
        super().__init__(batching, max_batch_size, compatibility)
        self._least = least
        self._cancelled = 0

    def cancel(self, job: Job) -> None:
        """See `SchedulerCore.cancel` (rule 3)."""
        before = len(self._queue)
        super().cancel(job)
        self._cancelled += before - len(self._queue)

    def next_action(self, now: float) -> Action:
        if self._least and not self._stopping:
            if len(self._queue) < self._least - self._cancelled:
                return WAIT
            self._least = 0
        return super().next_action(now)


class HeldSequenceBatcher(SequenceBatcher):
    """Rule 2, for the direct strategy."""

    def __init__(self, plan: SequencePlan, delays: SchedulerDelays) -> None:
        super().__init__(plan)
        self._delays = delays
        self._holds = True
        self._cancelled_in_slots = self._cancelled_in_backlog = 0

    def _reject_cancelled(self, jobs: Collection[Job]) -> None:
        for job in jobs:  # rule 3
            if job in self._queued and self._queued[job].slot is None:
                self._cancelled_in_backlog += 1
            else:
                self._cancelled_in_slots += 1
        super()._reject_cancelled(jobs)

    def _held_back(self) -> bool:
        if self._holds and not self._stopping:
            in_backlog = self._backlog.requests
            in_slots = len(self._queued) - in_backlog + self._cancelled_in_slots
            in_backlog += self._cancelled_in_backlog
            self._holds = in_slots < self._delays.queued or in_backlog < self._delays.backlog
        return self._holds and not self._stopping
