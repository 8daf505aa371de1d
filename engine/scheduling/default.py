"""The default scheduler (docs/reference/scheduling.md#default-scheduler), for models that name no other.

Rules, besides those of `queueing`:
 1. First come, first served; each execution takes one request, whatever max_batch_size is.
 2. There is no queue limit, no timeout and no priority: what a request asks for in these respects is left to the model.
"""

from __future__ import annotations

from ..config.model import DynamicBatching
from ..execution import SealReason
from ..job import Job
from .queueing import QueueingCore

_NO_POLICIES = DynamicBatching()
_ONE = 1, SealReason.UNBATCHED


class DefaultScheduler(QueueingCore):
    """A `SchedulerCore` that does not batch."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_NO_POLICIES)

    def _joined(self, job: Job, at_end: bool) -> None:
        pass

    def _reordered(self) -> None:
        pass

    def _form(self, now: float, spare: bool) -> tuple[int, SealReason]:
        return _ONE
