"""How an attempt ended, as routers hear of it."""

from __future__ import annotations

import pytest
from sequence_world import sequence_job

from trireme.engine.errors import (
    CancelledError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    RefusalReason,
    TriremeError,
    UnavailableError,
)
from trireme.engine.fleet.types import AttemptEnd, ReplicaLostError, attempt_end
from trireme.engine.scheduling.refusals import not_started


@pytest.mark.parametrize(
    ("error", "executed", "end"),
    [
        (None, True, AttemptEnd.ANSWERED),
        (InternalError("broken"), True, AttemptEnd.FAILED),
        (InternalError("broken"), False, AttemptEnd.ANSWERED),
        (UnavailableError("Request timeout expired", refusal=RefusalReason.QUEUE_TIMEOUT), True, AttemptEnd.ANSWERED),
        (UnavailableError("Exceeds maximum queue size", refusal=RefusalReason.QUEUE_FULL), False, AttemptEnd.REFUSED),
        (UnavailableError("Server is stopping", refusal=RefusalReason.STOPPING), False, AttemptEnd.ABSENT),
        (NotFoundError("Request for unknown model: 'm' is not found"), False, AttemptEnd.ABSENT),
        (InvalidArgumentError("wrong shape"), False, AttemptEnd.ANSWERED),
        (PermissionDeniedError("no"), False, AttemptEnd.ANSWERED),
        (CancelledError(""), True, AttemptEnd.CANCELLED),
        (DeadlineError("late"), True, AttemptEnd.CANCELLED),
        (ReplicaLostError("gone"), True, AttemptEnd.LOST),
        (ReplicaLostError("gone"), False, AttemptEnd.UNREACHABLE),
    ],
)
def test_an_end_says_whether_another_replica_may_be_asked(
    error: TriremeError | None, executed: bool, end: AttemptEnd
) -> None:
    assert attempt_end(error, executed) is end


@pytest.mark.parametrize("executed", [True, False])
def test_a_sequence_that_a_replica_does_not_know_is_told_by_the_text_of_its_refusal(executed: bool) -> None:
    """Servers that say no reason can be asked for sequences as well."""
    assert attempt_end(not_started(sequence_job(5)), executed) is AttemptEnd.NOT_STARTED
