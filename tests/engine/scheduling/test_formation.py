"""Batch formation decides what docs/reference/scheduling.md#forming-a-batch, step 5, says."""

from __future__ import annotations

from itertools import product

import pytest

from trireme.engine.job import SealReason
from trireme.engine.scheduling.formation import Formation

ALL_CONDITIONS = list(product((False, True), repeat=5))


def plain_step_5(cut: bool, late: bool, closed: bool, large: bool, patient: bool) -> str:
    """The step in the order in which the specification tells it."""
    if cut and not late:
        return "cut"
    if closed or large:
        return "all"
    if late or not patient:
        return "all"
    return "wait"


@pytest.mark.parametrize("conditions", ALL_CONDITIONS)
def test_decisions_agree_with_the_specification(conditions, make_job):
    cut, late, closed, large, patient = conditions
    formation = Formation({4}, 8, 0.5 if late or patient else 0.0, None)
    formation.count, formation.rows = 3, 4 if large else 3
    formation._cut = 2 if cut else 0
    formation.closed = SealReason.SHAPE if closed else None
    decided = formation.decide(1.0 if late else 0.0, draining=not patient)
    sent = "wait" if decided is None else "cut" if decided[0] == 2 else "all"
    assert sent == plain_step_5(*conditions)


@pytest.mark.parametrize(
    ("rows", "delay_s", "now", "draining", "expected"),
    [
        ([1, 1, 1, 1, 1], 0.0, 0.0, False, (4, SealReason.PREFERRED)),
        ([8], 0.5, 0.0, False, (1, SealReason.FULL)),
        ([7, 2], 0.5, 0.0, False, (1, SealReason.FULL)),
        ([7, 2], 0.5, 0.5, False, (1, SealReason.FULL)),
        ([2, 3], 0.5, 0.5, False, (2, SealReason.DELAY)),
        ([4, 1], 0.5, 0.5, False, (2, SealReason.DELAY)),
        ([5], 0.5, 0.0, False, (1, SealReason.FULL)),
        ([3], 0.0, 0.0, False, (1, SealReason.IDLE)),
        ([3], 0.0, 0.0, True, (1, SealReason.DRAIN)),
        ([3], 0.5, 0.0, True, (1, SealReason.DRAIN)),
        ([3], 0.5, 0.25, False, None),
    ],
)
def test_each_decision_comes_with_its_reason(make_job, rows, delay_s, now, draining, expected):
    """Preferred size 4, at most 8 rows; all jobs arrived at 0."""
    formation = Formation(frozenset({4}), 8, delay_s, None)
    for count in rows:
        if not formation.add(make_job(rows=count)):
            break
    assert formation.decide(now, draining) == expected
