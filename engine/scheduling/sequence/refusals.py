"""How the sequence batcher refuses jobs (docs/reference/sequences.md#admission,
docs/reference/sequences.md#time-limits, docs/reference/errors.md#request-validation). Texts without a request id have
none in Triton either.

`wrong_id_type` to `stopping` are raised at the door, before a job counts as accepted; the others answer accepted ones.
"""

from __future__ import annotations

from ...datatypes import DataType
from ...errors import FailureReason, InvalidArgumentError, UnavailableError, UnsupportedError, request_prefix
from ...job import Job
from .sequence import CorrelationId


def id_too_long() -> UnsupportedError:
    return UnsupportedError("string correlation ID cannot be longer than 128 characters")


def wrong_id_type(job: Job, control: str, given: DataType, expected: DataType) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{request_prefix(job.id)}sequence batching control '{control}' data-type is '{given.name}', but model "
        f"'{job.model_name}' expects '{expected.name}'"
    )


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


def stopping() -> UnavailableError:
    return UnavailableError("Server is stopping, scheduler for model has stopped accepting new inference requests")


def expired() -> UnavailableError:
    return UnavailableError("timeout of the corresponding sequence has been expired", reason=FailureReason.REJECTED)


def lost(job: Job, correlation_id: CorrelationId) -> UnavailableError:
    return UnavailableError(
        f"{request_prefix(job.id)}sequence {correlation_id} to model '{job.model_name}' is lost, because the model "
        "instance that it was bound to died; start the sequence again",
        reason=FailureReason.BACKEND,
    )


def slot_died(job: Job, correlation_id: CorrelationId) -> UnavailableError:
    return UnavailableError(
        f"{request_prefix(job.id)}sequence {correlation_id} to model '{job.model_name}' is lost, because its slot "
        "died; start the sequence again",
        reason=FailureReason.BACKEND,
    )
