"""The rules of the response cache, and of what ensembles ask of members: each kind of wrong history is reported."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_tape import Tape

from trireme.engine.datatypes import FP32
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry
from trireme.engine.tensor import Tensor
from trireme.simulations.events import ReplyDelivered, RequestSubmitted, StepSubmitted
from trireme.simulations.invariants.base import Complain
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.cache import RightHits
from trireme.simulations.oracle.members import MembersAreAsked
from trireme.simulations.oracle.observed import Admitted, CoreMade, FoundInCache
from trireme.simulations.plan import ModelPlan, StepPlan

CACHED = ModelPlan("m", cached=True).config()
ENSEMBLE = ModelPlan("e", steps=(StepPlan("m"),)).config()
MADE = CoreMade("m", CACHED)


def inputs(value: float, rows: int = 1) -> dict[str, Tensor]:
    return {"INPUT0": Tensor("INPUT0", FP32, (rows, 4), array=np.full((rows, 4), value, np.float32))}


def queued(request: int, value: float, rows: int = 1, core: str = "m") -> Admitted:
    return Admitted(0.0, core, request, rows, 0, 0, inputs(value, rows))


def found(request: int, value: float, rows: int = 1, core: str = "m") -> FoundInCache:
    return FoundInCache(core, request, inputs(value, rows))


def answered(request: int, error: str = "", *, final: bool = True, late: bool = False) -> ReplyDelivered:
    return ReplyDelivered(0, request, error, final, late)


def hits(*, plenty: bool = True) -> Tape:
    def rule(complain: Complain) -> RightHits:
        return RightHits(complain, WorldState([CACHED]), plenty)

    return Tape(rule)


GOOD: dict[str, list[object]] = {
    "asked again": [MADE, queued(1, 5), answered(1), found(2, 5)],
    "two at once": [MADE, queued(1, 5), queued(2, 5), answered(1), answered(2), found(3, 5)],
    "an error is not kept": [MADE, queued(1, 5), answered(1, "failed"), queued(2, 5)],
    "other contents": [MADE, queued(1, 5), answered(1), queued(2, 6)],
    "other shapes": [MADE, queued(1, 5), answered(1), queued(2, 5, rows=2)],
    "loaded again": [MADE, queued(1, 5), answered(1), CoreMade("m~2", CACHED), queued(2, 5, core="m~2")],
}
BAD: dict[str, list[object]] = {
    "nothing was asked": [MADE, found(1, 5)],
    "not answered yet": [MADE, queued(1, 5), found(2, 5)],
    "answered by an error": [MADE, queued(1, 5), answered(1, "failed"), found(2, 5)],
    "other contents": [MADE, queued(1, 5), answered(1), found(2, 6)],
    "other shapes": [MADE, queued(1, 5), answered(1), found(2, 5, rows=2)],
    "of the model before": [MADE, queued(1, 5), answered(1), CoreMade("m~2", CACHED), found(2, 5, core="m~2")],
    "not found": [MADE, queued(1, 5), answered(1), queued(2, 5)],
}


@pytest.mark.parametrize("records", GOOD.values(), ids=GOOD)
def test_right_hits_pass(records: list[object]) -> None:
    assert hits().play(*records) == ""


@pytest.mark.parametrize("records", BAD.values(), ids=BAD)
def test_a_wrong_hit_or_miss_is_complained_of(records: list[object]) -> None:
    tape = hits()
    assert tape.play(*records[:-1]) == ""
    assert tape.play(records[-1]) != ""


def test_what_a_small_cache_has_lost_may_be_executed_again() -> None:
    assert hits(plenty=False).play(MADE, queued(1, 5), answered(1), queued(2, 5)) == ""


@pytest.mark.parametrize(("counted", "complaint"), [(1, ""), (2, "'m' counts 2 misses; 1 responses were kept")])
def test_misses_are_the_responses_that_were_kept(counted: int, complaint: str) -> None:
    complaints: list[str] = []
    rule = RightHits(lambda violation: complaints.append(violation.text), WorldState([CACHED]), True)
    for event in (MADE, queued(1, 5), queued(2, 5), answered(1), answered(2)):
        rule.handlers()[type(event)](event)
    statistics = ModelStatistics()
    for _ in range(counted):
        statistics.record_cache_miss(0, 0)
    rule.reported([ModelStatisticsEntry("m", 1, statistics)], {"m": "m"})
    assert "".join(complaints) == complaint


@pytest.mark.parametrize(
    "step",
    [
        RequestSubmitted(0, 7, "m", 1, 3, 500, 9, True, True),
        RequestSubmitted(0, 7, "m", 1, 2, 0, 9, True, True),
        RequestSubmitted(0, 7, "m", 1, 2, 500, 8, True, True),
        RequestSubmitted(0, 7, "m", 1, 2, 500, 9, False, True),
        RequestSubmitted(0, 7, "m", 1, 2, 500, 9, True, False),
    ],
)
def test_a_step_that_asks_for_something_else_is_complained_of(step: RequestSubmitted) -> None:
    complaints: list[str] = []
    rule = MembersAreAsked(lambda violation: complaints.append(violation.text), WorldState([ENSEMBLE]))
    asked = RequestSubmitted(0, 1, "e", 1, 2, 500, 9, True, True)
    same = RequestSubmitted(0, 6, "m", 1, 2, 500, 9, True, True)
    for event in (asked, StepSubmitted(0, 6, 1, 1), same, StepSubmitted(0, 7, 1, 2)):
        rule.handlers()[type(event)](event)
    assert complaints == []
    rule.handlers()[RequestSubmitted](step)
    assert complaints != []
