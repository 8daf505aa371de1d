"""The statistics of ensembles: right ones pass, each kind of wrong one does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trireme.engine.errors import FailureReason
from trireme.engine.job import SealReason
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry
from trireme.simulations.events import (
    NEVER_NS,
    BatchSealed,
    ReplyDelivered,
    RequestAnswered,
    RequestQueued,
    RequestSubmitted,
    StepSubmitted,
)
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.ensemble_durations import RightSums
from trireme.simulations.oracle.observed import Measured
from trireme.simulations.plan import ModelPlan, StepPlan

MEMBER = ModelPlan("m").config()
ENSEMBLE = ModelPlan("e", steps=(StepPlan("m"), StepPlan("m", (1,)))).config()


def step(number: int, at_ns: int, batch: int, marks: tuple[int, int, int, int]) -> list[object]:
    """A step that is queued at once, executed, and answered when its batch is over."""
    return [
        StepSubmitted(at_ns, number, 1, number - 10),
        RequestSubmitted(at_ns, number, "m", 2, 0, 0),
        RequestQueued(at_ns, number, "m", 2, 0, NEVER_NS),
        BatchSealed(marks[0], batch, "m", 1, "m_0", "no batching", (number,), 2),
        Measured(batch, *marks),
        RequestAnswered(marks[3], number, ""),
    ]


WELL: list[object] = [
    RequestSubmitted(1_000, 1, "e", 2, 0, 0),
    RequestQueued(3_000, 1, "e", 2, 0, NEVER_NS),
    *step(11, 3_000, 1, (10_000, 11_000, 13_000, 14_000)),
    *step(12, 14_000, 2, (20_000, 20_000, 25_000, 27_000)),
    ReplyDelivered(27_000, 1, "", True, False),
]
BADLY: list[object] = [*WELL[:-1], ReplyDelivered(27_000, 1, "failed", True, False)]


def counted_well(own: ModelStatistics) -> None:
    marks = (10_000, 11_000, 18_000, 21_000)  # one input, seven infer, three output
    own.record_execution(2, marks, 0, SealReason.UNBATCHED)
    own.record_successes([(1_000, 3_000, 2)], marks, 27_000)


def counted_badly(own: ModelStatistics) -> None:
    for _ in range(2):
        own.record_failure(1_000, 27_000, FailureReason.OTHER)


def complaints(events: list[object], *count: Callable[[ModelStatistics], None]) -> str:
    found: list[str] = []
    rule = RightSums(lambda violation: found.append(violation.text), WorldState([MEMBER, ENSEMBLE]))
    for event in events:
        handler = rule.handlers().get(type(event))
        if handler is not None:
            handler(event)
    own = ModelStatistics()
    for each in count:
        each(own)
    rule.reported([ModelStatisticsEntry("e", 1, own)], {"e": "e"})
    return "".join(found)


def test_right_statistics_pass() -> None:
    assert complaints(WELL, counted_well) == ""
    assert complaints(BADLY, counted_badly) == ""


def wrong_queue(own: ModelStatistics) -> None:
    own.record_execution(2, (20_000, 21_000, 28_000, 31_000), 0, SealReason.UNBATCHED)
    own.record_successes([(1_000, 3_000, 2)], (20_000, 21_000, 28_000, 31_000), 27_000)


def last_step_alone(own: ModelStatistics) -> None:
    own.record_execution(2, (10_000, 10_000, 15_000, 17_000), 0, SealReason.UNBATCHED)
    own.record_successes([(1_000, 3_000, 2)], (10_000, 10_000, 15_000, 17_000), 27_000)


def one_row(own: ModelStatistics) -> None:
    marks = (10_000, 11_000, 18_000, 21_000)
    own.record_execution(1, marks, 0, SealReason.UNBATCHED)
    own.record_successes([(1_000, 3_000, 1)], marks, 27_000)


def released_late(own: ModelStatistics) -> None:
    marks = (10_000, 11_000, 18_000, 21_000)
    own.record_execution(2, marks, 0, SealReason.UNBATCHED)
    own.record_successes([(1_000, 3_000, 2)], marks, 28_000)


def failed_once(own: ModelStatistics) -> None:
    own.record_failure(1_000, 27_000, FailureReason.OTHER)


@pytest.mark.parametrize(
    ("events", "count", "text"),
    [
        (WELL, wrong_queue, "queue ns is 17000, right is 7000"),
        (WELL, last_step_alone, "compute_infer ns is 5000, right is 7000"),
        (WELL, one_row, "inference_count is 1, right is 2"),
        (WELL, released_late, "success ns is 27000, right is 26000"),
        (WELL, counted_badly, "fail is 2, right is 0"),
        (BADLY, failed_once, "fail is 1, right is 2"),
    ],
)
def test_a_wrong_statistic_is_complained_of(
    events: list[object], count: Callable[[ModelStatistics], None], text: str
) -> None:
    assert text in complaints(events, count)
