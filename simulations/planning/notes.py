"""What a planned run writes down while it runs: a few numbers a request and an execution."""

from __future__ import annotations

import math
from array import array

from ...actors import Reply
from ...engine.job import ExecutionBatch, SealReason
from ...engine.logs.request_log import LoggedRequest

NONE = math.nan
NO_BATCH = -1

REASONS = tuple(SealReason)
_REASON_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}


class Notes:
    """Columns with an entry for each request, in the order in which they came, and for each execution.

    Attributes:
        numbers: of requests that are not answered, by their replies.
    """

    def __init__(self) -> None:
        self.logged: list[LoggedRequest] = []
        self.admitted = array("d")
        self.answered = array("d")
        self.batch = array("l")
        self.refusal = array("b")
        self.numbers: dict[Reply, int] = {}
        self.batch_model = array("h")
        self.batch_instance = array("h")
        self.batch_requests = array("l")
        self.batch_rows = array("l")
        self.batch_reason = array("b")
        self.batch_begun = array("d")
        self.batch_started = array("d")
        self.batch_ended = array("d")
        self.batch_heard = array("d")

    def request_came(self, logged: LoggedRequest) -> int:
        """A request has come; its number."""
        number = len(self.logged)
        self.logged.append(logged)
        self.admitted.append(NONE)
        self.answered.append(NONE)
        self.batch.append(NO_BATCH)
        self.refusal.append(0)
        return number

    def batch_begun_at(self, batch: ExecutionBatch, model: int, instance: int, now: float) -> int:
        """An instance executes a batch; the number of the execution."""
        number = len(self.batch_begun)
        numbers, batches = self.numbers, self.batch
        requests = 0
        for job in batch.jobs:
            if not job.is_null:
                requests += 1
                request = numbers.get(job.reply)  # type: ignore[call-overload]  # that of a step is another's
                if request is not None:
                    batches[request] = number
        self.batch_model.append(model)
        self.batch_instance.append(instance)
        self.batch_requests.append(requests)
        self.batch_rows.append(batch.rows)
        self.batch_reason.append(_REASON_NUMBERS[batch.sealed])
        self.batch_begun.append(now)
        self.batch_started.append(NONE)
        self.batch_ended.append(NONE)
        self.batch_heard.append(NONE)
        return number
