"""The decision table of batch formation says what docs/reference/scheduling.md#forming-a-batch, step 5, says, and the
code obeys the table."""

from __future__ import annotations

from itertools import product

import pytest

from trireme.engine.execution import SealReason
from trireme.engine.scheduling.formation import DECISIONS, Decision, Formation, decide

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
def test_table_agrees_with_the_specification(conditions):
    sends = {Decision.SEND_TO_CUT: "cut", Decision.WAIT: "wait"}
    assert sends.get(decide(conditions), "all") == plain_step_5(*conditions)


def test_every_line_of_the_table_is_needed():
    decided = {decide(conditions) for conditions in ALL_CONDITIONS}
    assert decided == {decision for _, decision in DECISIONS} == set(Decision)


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
