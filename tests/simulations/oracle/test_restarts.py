"""The rule of restarts: each kind of wrong delay is reported."""

from __future__ import annotations

import pytest

from trireme.simulations.events import FaultStruck, InstanceAttached, InstanceDetached
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.restarts import RightRestarts
from trireme.simulations.plan import ModelPlan

MS = 1_000_000


def up(at_ms: int, instance: str = "m_0") -> InstanceAttached:
    return InstanceAttached(at_ms * MS, "m", instance)


def dead(at_ms: int, instance: str = "m_0") -> InstanceDetached:
    return InstanceDetached(at_ms * MS, "m", instance)


def fails(at_ms: int) -> FaultStruck:
    return FaultStruck(at_ms * MS, "start fails", "m", 0)


FOUR = [up(0), dead(10), up(110), dead(120), up(320), dead(330), up(730)]

GOOD: dict[str, list[object]] = {
    "twice as long each time": [*FOUR, dead(740), up(1540)],
    "recovered": [*FOUR, dead(1730), up(1830)],
    "each instance by itself": [up(0), up(0, "m_1"), dead(10), dead(20, "m_1"), up(110), up(120, "m_1")],
    "a start that fails": [up(0), dead(10), fails(110), up(310), dead(320), up(720), dead(730), up(1530)],
    "recovered after a start that failed": [up(0), dead(10), fails(110), up(310), dead(1310), up(1410)],
    "a fault that is none of a start": [up(0), dead(10), FaultStruck(50 * MS, "backend raises", "m", 3), up(110)],
    "never again": [up(0), dead(10)],
}
BAD: dict[str, list[object]] = {
    "too early": [up(0), dead(10), up(109)],
    "too late": [up(0), dead(10), up(111)],
    "as long as before": [up(0), dead(10), up(110), dead(120), up(220)],
    "recovered too soon": [*FOUR, dead(1729), up(1829)],
    "not recovered": [*FOUR, dead(1730), up(2530)],
    "too late after a recovery": [up(0), dead(10), fails(110), up(310), dead(1310), up(1510)],
    "before a start that fails is waited for": [up(0), dead(10), fails(50), up(60)],
}


def complaints(events: list[object]) -> list[str]:
    found: list[str] = []
    state = WorldState([ModelPlan("m").config()])
    state.models["m"].served = True
    rule = RightRestarts(lambda violation: found.append(violation.text), state, 1_000 * MS)
    for event in events:
        rule.handlers()[type(event)](event)
    return found


@pytest.mark.parametrize("events", GOOD.values(), ids=GOOD)
def test_right_delays_pass(events: list[object]) -> None:
    assert complaints(events) == []


@pytest.mark.parametrize("events", BAD.values(), ids=BAD)
def test_a_wrong_delay_is_complained_of(events: list[object]) -> None:
    assert complaints(events[:-1]) == []
    assert complaints(events) != []
