"""How schedulers refuse jobs: one error for each reason (docs/reference/scheduling.md,
docs/reference/sequences.md#admission, docs/reference/sequences.md#time-limits,
docs/reference/errors.md#request-validation). Texts without a request id have none in Triton either.

`expired`, `too_late`, `cancelled`, `backlog_expired`, `lost` and `slot_died` answer accepted jobs; the others are
raised at the door, before a job counts as accepted.
"""

from __future__ import annotations

from ..errors import (
    CancelledError,
    FailureReason,
    InvalidArgumentError,
    RefusalReason,
    UnavailableError,
    request_prefix,
)
from ..job import Job

_TOO_LATE = "Latency objective cannot be met, the request would be answered too late"


def stopping(job: Job) -> UnavailableError:
    return UnavailableError(
        f"{request_prefix(job.id)}Server is stopping, scheduler for model has stopped accepting new inference requests",
        refusal=RefusalReason.STOPPING,
    )


def queue_full(request_id: str) -> UnavailableError:
    return UnavailableError(f"{request_prefix(request_id)}Exceeds maximum queue size", refusal=RefusalReason.QUEUE_FULL)


def expired() -> UnavailableError:
    return UnavailableError(
        "Request timeout expired", reason=FailureReason.REJECTED, refusal=RefusalReason.QUEUE_TIMEOUT
    )


def would_be_late(request_id: str) -> UnavailableError:
    return UnavailableError(f"{request_prefix(request_id)}{_TOO_LATE}", refusal=RefusalReason.OBJECTIVE)


def too_late() -> UnavailableError:
    return UnavailableError(_TOO_LATE, reason=FailureReason.REJECTED, refusal=RefusalReason.OBJECTIVE)


def cancelled() -> CancelledError:
    return CancelledError("")


# Of requests of sequences.


def batched(job: Job) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"inference request to model '{job.model_name}' must specify batch-size 1 due to requirements of sequence "
        "batcher"
    )


def no_id(job: Job) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"inference request to model '{job.model_name}' must specify a non-zero or non-empty correlation ID"
    )


def not_started(job: Job) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"inference request for sequence {job.request.correlation_id} to model '{job.model_name}' must specify the "
        "START flag on the first request of the sequence"
    )


def no_new_sequence() -> UnavailableError:
    return UnavailableError(
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
        refusal=RefusalReason.STOPPING,
    )


def backlog_expired() -> UnavailableError:
    return UnavailableError(
        "timeout of the corresponding sequence has been expired",
        reason=FailureReason.REJECTED,
        refusal=RefusalReason.QUEUE_TIMEOUT,
    )


def lost(job: Job, correlation_id: int | str) -> UnavailableError:
    return UnavailableError(
        f"{request_prefix(job.id)}sequence {correlation_id} to model '{job.model_name}' is lost, because the model "
        "instance that it was bound to died; start the sequence again",
        reason=FailureReason.BACKEND,
    )


def slot_died(job: Job, correlation_id: int | str) -> UnavailableError:
    return UnavailableError(
        f"{request_prefix(job.id)}sequence {correlation_id} to model '{job.model_name}' is lost, because its slot "
        "died; start the sequence again",
        reason=FailureReason.BACKEND,
    )
