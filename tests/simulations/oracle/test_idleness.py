"""A core must know which instances are idle: also those that have just executed, beside a queue or in place."""

from __future__ import annotations

import pytest

from trireme.engine.job import SealReason
from trireme.simulations.events import DONE, BatchSealed, ExecutionEnded, InstanceAttached, InstanceDetached
from trireme.simulations.history import Recorder
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.idleness import IdleIsKnown
from trireme.simulations.oracle.observed import CoreMade, Dispatched, ToldGone, ToldIdle, ToldPaused
from trireme.simulations.plan import ModelPlan, SequencesPlan

CONFIG = ModelPlan("m", instances=2, dynamic=True).config()
MADE = CoreMade("m", CONFIG)
UP = [MADE, InstanceAttached(0, "m", "m_0"), ToldIdle("m", 1), InstanceAttached(0, "m", "m_1"), ToldIdle("m", 2)]
SENT = [Dispatched(0.0, "m", 1, (7,), SealReason.IDLE), BatchSealed(0, 1, "m", 1, "m_0", "instance idle", (7,), 1)]
OVER = ExecutionEnded(0, 1, DONE)
GONE = InstanceDetached(0, "m", "m_0")
NOW = "an instant is over"

GOOD: dict[str, list[object]] = {
    "both idle": [*UP, NOW],
    "one at work": [*UP, *SENT, NOW],
    "idle again": [*UP, *SENT, NOW, OVER, ToldIdle("m", 1), NOW],
    "executed in place": [*UP, *SENT, OVER, ToldIdle("m", 1), *SENT, OVER, ToldIdle("m", 1), NOW],
    "gone": [*UP, GONE, ToldGone("m", 1), NOW],
    "died at work": [*UP, *SENT, ExecutionEnded(0, 1, "InstanceCrash"), GONE, ToldGone("m", 1), NOW],
    "one that needs leave": [*UP, ToldPaused("m", 1), NOW],
}

BAD: dict[str, list[object]] = {
    "forgotten after its execution": [*UP, *SENT, NOW, OVER, NOW],
    "forgotten after an execution in place": [*UP, *SENT, OVER, NOW],
    "known although it is at work": [*UP, *SENT, ToldIdle("m", 1), NOW],
    "known although it has gone": [*UP, GONE, NOW],
    "never known": [MADE, InstanceAttached(0, "m", "m_0"), NOW],
}


def complaints(records: list[object], model: ModelPlan) -> list[str]:
    found: list[str] = []
    state = WorldState([model.config()])
    rule = IdleIsKnown(lambda violation: found.append(violation.text), state)
    recorder = Recorder(_Now())
    recorder.listen(rule.handlers())
    recorder.listen(state.handlers())
    for record in records:
        if record is NOW:
            rule.instant_over(0)
            state.instant_over()
        else:
            recorder.tell(record)
    return found


class _Now:
    def now_ns(self) -> int:
        return 0


MODELS = [ModelPlan("m", instances=2, dynamic=True), ModelPlan("m", instances=2, sequences=SequencesPlan())]


@pytest.mark.parametrize("model", MODELS, ids=["dynamic", "stateful"])
@pytest.mark.parametrize("records", GOOD.values(), ids=GOOD)
def test_who_is_idle_and_known_to_be_passes(records: list[object], model: ModelPlan) -> None:
    assert complaints(records, model) == []


@pytest.mark.parametrize("model", MODELS, ids=["dynamic", "stateful"])
@pytest.mark.parametrize("records", BAD.values(), ids=BAD)
def test_a_core_that_is_wrong_about_it_is_complained_of(records: list[object], model: ModelPlan) -> None:
    assert len(complaints(records, model)) == 1
