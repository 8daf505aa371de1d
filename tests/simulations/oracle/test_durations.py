"""What statistics must say: the server's own pass when they agree with what was seen, and not otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracle_tape import Tape

from trireme.engine.errors import FailureReason
from trireme.engine.job import SealReason
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry
from trireme.simulations.events import (
    BatchSealed,
    ExecutionStarted,
    ReplyDelivered,
    RequestQueued,
    RequestRejected,
    RequestSubmitted,
)
from trireme.simulations.invariants.queueing import EXPIRED
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.durations import RightDurations
from trireme.simulations.oracle.observed import Measured, ToldSettled
from trireme.simulations.plan import ModelPlan

MS = 1_000_000


def asked(request: int, sent_ms: int, rows: int = 1) -> list[object]:
    """A request that is queued one millisecond after it was received."""
    return [
        RequestSubmitted(sent_ms * MS, request, "m", rows, 0, 0),
        RequestQueued((sent_ms + 1) * MS, request, "m", rows, 0, -1),
    ]


def answered(at_ms: int, request: int, error: str = "") -> ReplyDelivered:
    return ReplyDelivered(at_ms * MS, request, error, True, False)


HISTORY = [
    *asked(1, 0),
    *asked(2, 2, rows=3),
    *asked(3, 3),
    RequestRejected(5 * MS, 3, EXPIRED),
    answered(5, 3, EXPIRED),
    BatchSealed(10 * MS, 1, "m", 1, "m_0", "instance idle", (1, 2), 4),
    ExecutionStarted(10 * MS, 1),
    Measured(1, 10 * MS, 11 * MS, 15 * MS, 18 * MS),
    ToldSettled(18e-3, "m", (1, 2), ()),
    answered(18, 1),
    answered(19, 2, "broken"),  # it waited for its turn; what counts is when it was settled
]


def right() -> ModelStatistics:
    """The statistics of that."""
    own = ModelStatistics()
    marks = [10 * MS, 11 * MS, 15 * MS, 18 * MS]
    own.record_failure(3 * MS, 5 * MS, FailureReason.REJECTED)
    own.record_execution(4, marks, 0, SealReason.IDLE)
    own.record_successes([(0, 1 * MS, 1)], marks, 18 * MS)
    own.record_failure(2 * MS, 18 * MS, FailureReason.BACKEND)
    return own


def complaint(own: ModelStatistics, *more: object) -> str:
    state = WorldState([ModelPlan("m", dynamic=True).config()])
    made: list[RightDurations] = []

    def rule(complain: Callable[..., None]) -> RightDurations:
        made.append(RightDurations(complain, state))
        return made[0]

    tape = Tape(rule)
    tape.play(*HISTORY, *more)
    made[0].reported([ModelStatisticsEntry("m", 1, own)], {"m": "m"})
    return tape.complaints[0] if tape.complaints else ""


def test_statistics_that_agree_with_what_was_seen_pass() -> None:
    assert complaint(right()) == ""


def swap_phases(own: ModelStatistics) -> None:
    own.compute_input, own.compute_output = own.compute_output, own.compute_input


def swap_queue(own: ModelStatistics) -> None:
    own.queue, own.compute_infer = own.compute_infer, own.queue


def swap_in_batches(own: ModelStatistics) -> None:
    batch = own.batches[4]
    batch.input_ns, batch.output_ns = batch.output_ns, batch.input_ns


def count_requests(own: ModelStatistics) -> None:
    own.batches[2] = own.batches.pop(4)


def set_to(name: str, value: int) -> Callable[[ModelStatistics], None]:
    return lambda own: setattr(own, name, value)


WRONG: dict[str, tuple[str, Callable[[ModelStatistics], None]]] = {
    "input and output": ("compute_input ns is 3000000, right is 1000000", swap_phases),
    "queue and inference": ("queue ns is 4000000, right is 9000000", swap_queue),
    "input and output, by batch size": ("batches of 4: compute_input ns", swap_in_batches),
    "requests for rows": ("batches of 4 is 0, right is 1", count_requests),
    "inferences": ("inference_count is 4, right is 1", set_to("inference_count", 4)),
    "executions": ("execution_count is 2, right is 1", set_to("execution_count", 2)),
    "microseconds": ("queue us is 1, right is 9000", lambda own: setattr(own.queue, "us", 1)),
    "the reason of a failure": ("REJECTED is 0", lambda own: own.failures.update({FailureReason.REJECTED: 0})),
    "the reason of a batch": ("sealed: instance idle is 0", lambda own: own.sealed.update({SealReason.IDLE: 0})),
    "the time of a failure": ("fail ns is 0", lambda own: setattr(own.fail, "ns", 0)),
}  # fmt: skip


@pytest.mark.parametrize(("text", "change"), WRONG.values(), ids=WRONG)
def test_statistics_that_do_not_are_complained_of(text: str, change: Callable[[ModelStatistics], None]) -> None:
    own = right()
    change(own)
    assert text in complaint(own)


def test_an_execution_begins_when_it_says_so() -> None:
    more = [BatchSealed(0, 9, "m", 1, "m_0", "", (), 1), ExecutionStarted(20 * MS, 9), Measured(9, MS, MS, MS, 30 * MS)]
    assert "batch 9 began" in complaint(right(), *more)
