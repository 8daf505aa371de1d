"""How schedulers refuse jobs: one error for each reason (docs/reference/scheduling.md).

The first two are raised at the door, before a job counts as accepted; the others answer accepted ones.
"""

from __future__ import annotations

from ..errors import CancelledError, FailureReason, UnavailableError, request_prefix
from ..job import Job


def stopping(job: Job) -> UnavailableError:
    return UnavailableError(
        f"{request_prefix(job.id)}Server is stopping, scheduler for model has stopped accepting new inference requests"
    )


def queue_full(request_id: str) -> UnavailableError:
    return UnavailableError(f"{request_prefix(request_id)}Exceeds maximum queue size")


def expired() -> UnavailableError:
    return UnavailableError("Request timeout expired", reason=FailureReason.REJECTED)


def cancelled() -> CancelledError:
    return CancelledError("")
