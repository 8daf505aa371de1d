"""Models of a planned run: the server's own, but that nothing is counted for statistics: a tenth of the time."""

from __future__ import annotations

from typing import Any

from ...actors.model import Model
from ...actors.scheduler import Scheduler
from ...engine.job import ExecutionBatch
from ...engine.scheduling.dispatcher import Accounts


class UncountedAccounts(Accounts):
    """Takes note of what is executed again only, which is queued again by that."""

    def count(self, batch: ExecutionBatch, now_ns: int) -> None:
        if batch.rescheduled:
            super().count(batch, now_ns)


class UncountedScheduler(Scheduler):
    """A scheduler of a planned run."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._accounts = UncountedAccounts(self._statistics, self._clock)


class UncountedModel(Model):
    """A model of a planned run."""

    scheduler_class = UncountedScheduler
