"""How many replicas there are to be (`engine.fleet.scaling`)."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.fleet.scaling import (
    LoadReading,
    ReplicaScaler,
    ScalingSettings,
    expected_wait_s,
    mean_wait_s,
    planned_replicas,
)

SETTINGS = ScalingSettings(least=1, most=8, target_s=0.010, up_s=3, down_s=30, settle_s=10)
SLOW = LoadReading(rate_hz=100, queue_s=0.025, busy=0.95, instances=1)
BUSY = LoadReading(rate_hz=100, queue_s=0.008, busy=0.80, instances=1)
IDLE = LoadReading(rate_hz=10, queue_s=0.000, busy=0.10, instances=1)


def run(scaler: ReplicaScaler, replicas: int, reading: LoadReading, from_s: int, to_s: int) -> list[tuple[int, int]]:
    """When the number changed, and to what."""
    changes: list[tuple[int, int]] = []
    for now_s in range(from_s, to_s):
        wanted = scaler.decide(replicas, {"digits": [reading] * replicas}, now_s)
        if wanted != replicas:
            changes.append((now_s, wanted))
            replicas = wanted
    return changes


def test_waiting_too_long_adds_replicas_in_proportion_after_a_while() -> None:
    scaler = ReplicaScaler(SETTINGS)
    assert run(scaler, 2, SLOW, 0, 10) == [(3, 4)], "2.5 times as long as the target, but at most twice as many"
    assert scaler.why == "requests for 'digits' wait 25.0 ms, the target is 10.0 ms"
    slightly = LoadReading(100, 0.011, 0.9, 1)
    assert run(ReplicaScaler(SETTINGS), 5, slightly, 0, 10) == [(3, 6)]


def test_after_a_change_nothing_is_decided_until_it_has_settled() -> None:
    assert run(ReplicaScaler(SETTINGS), 1, SLOW, 0, 28) == [(3, 2), (13, 4), (23, 8)]
    assert run(ReplicaScaler(SETTINGS), 1, SLOW, 0, 100)[-1] == (23, 8), "never more than there may be"


def test_one_less_at_a_time_if_the_rest_would_be_enough_for_long() -> None:
    assert run(ReplicaScaler(SETTINGS), 3, IDLE, 0, 100) == [(30, 2), (61, 1)]
    assert run(ReplicaScaler(SETTINGS), 3, BUSY, 0, 300) == [], "2 would be busier than they can be"


def test_one_slow_second_is_no_reason() -> None:
    scaler = ReplicaScaler(SETTINGS)
    for now_s in range(60):
        assert scaler.decide(2, {"digits": [SLOW if now_s % 3 else BUSY] * 2}, now_s) == 2


def test_what_is_planned_is_there_before_anybody_waits() -> None:
    planned = replace(SETTINGS, capacities={"digits": 30, "unknown": 1})
    fast = LoadReading(rate_hz=50, queue_s=0.0, busy=0.05, instances=1)
    scaler = ReplicaScaler(planned)
    assert run(scaler, 2, fast, 0, 10) == [(3, 4)], "100 requests a second for 30 each"
    assert scaler.why == "the requests that come need 4 replicas by the capacities that were planned"
    assert run(ReplicaScaler(SETTINGS), 2, fast, 0, 40) == [(30, 1)], "without a plan they are one too many"
    assert run(ReplicaScaler(planned), 4, LoadReading(15, 0.0, 0.01, 1), 0, 300) == [(30, 3), (61, 2), (92, 1)]
    assert run(ReplicaScaler(planned), 4, LoadReading(24, 0.0, 0.01, 1), 0, 300) == [], "4 need 3.2"


def test_waits_count_beside_a_plan() -> None:
    bold = replace(SETTINGS, capacities={"digits": 1000})
    assert run(ReplicaScaler(bold), 2, SLOW, 0, 10) == [(3, 4)]


@given(st.lists(st.tuples(st.floats(0.1, 1000), st.floats(0.1, 1000)), max_size=5))
def test_needs_of_models_add_up(models: list[tuple[float, float]]) -> None:
    readings = {str(number): [LoadReading(rate, 0, 0, 1)] * 2 for number, (rate, _) in enumerate(models)}
    capacities = {str(number): capacity for number, (_, capacity) in enumerate(models)}
    needed = sum(2 * rate / capacity for rate, capacity in models)
    assert needed - 1e-6 <= planned_replicas(readings, capacities) < needed + 1 + 1e-6
    assert planned_replicas(readings, {}) == 0


def test_the_model_that_needs_most_decides() -> None:
    scaler = ReplicaScaler(SETTINGS)
    counts = [scaler.decide(2, {"fast": [IDLE] * 2, "slow": [SLOW] * 2}, now_s) for now_s in range(5)]
    assert counts == [2, 2, 2, 4, 2]
    one_busy = {"idle": [IDLE] * 3, "busy": [BUSY] * 3}
    assert {ReplicaScaler(SETTINGS).decide(3, one_busy, now_s) for now_s in range(300)} == {3}


def test_without_readings_only_the_bounds_hold() -> None:
    scaler = ReplicaScaler(SETTINGS)
    assert [scaler.decide(count, {}, 0.0) for count in (0, 1, 3, 12)] == [1, 1, 3, 8]
    assert scaler.why == "there are to be 1 to 8"


def test_no_replica_is_taken_away_whose_memory_the_models_need() -> None:
    def counts(replicas: int, needed: int, settings: ScalingSettings = SETTINGS) -> list[int]:
        scaler, found = ReplicaScaler(settings), [replicas]
        for now_s in range(300):
            found.append(scaler.decide(found[-1], {"digits": [IDLE] * found[-1]}, now_s, needed))
        whys.append(scaler.why)
        return sorted(set(found), reverse=True)

    whys: list[str] = []
    assert counts(5, 3) == [5, 4, 3]
    assert counts(5, 0) == [5, 4, 3, 2, 1]
    assert counts(5, 9) == [8, 5], "no more than there may be"
    assert counts(3, 3, replace(SETTINGS, least=3)) == [3]
    scaler = ReplicaScaler(SETTINGS)
    assert [scaler.decide(count, {}, 0.0, 3) for count in (0, 1, 3, 5)] == [3, 3, 3, 5], "at once, and also unread"
    assert scaler.decide(2, {}, 0.0, 3) == 3
    assert scaler.why == "there are to be 3 to 8, as the models need 3 for their memory"


def test_waiting_is_weighed_by_requests() -> None:
    assert mean_wait_s([LoadReading(300, 0.010, 1, 1), LoadReading(100, 0.030, 1, 1)]) == pytest.approx(0.015)
    assert mean_wait_s([LoadReading(0, 0.5, 0, 1)]) == 0


def test_what_is_expected_of_more_than_they_can_do_is_without_end() -> None:
    assert expected_wait_s([BUSY] * 3, 2) == math.inf
    assert expected_wait_s([LoadReading(0, 0, 0, 1)], 1) == 0


@pytest.mark.parametrize(("instances", "busy"), [(1, 0.5), (1, 0.9), (2, 1.5), (4, 3.2)])
def test_expected_waits_are_those_of_a_simulated_queue(instances: int, busy: float) -> None:
    chance = Random(instances)
    free_s = [0.0] * instances
    now_s = waited_s = 0.0
    count = 200_000
    for _ in range(count):
        now_s += chance.expovariate(busy)
        begins_s = max(now_s, min(free_s))
        waited_s += begins_s - now_s
        free_s[free_s.index(min(free_s))] = begins_s + chance.expovariate(1.0)
    reading = LoadReading(rate_hz=busy, queue_s=0, busy=busy, instances=instances)
    assert expected_wait_s([reading], 1) == pytest.approx(waited_s / count, rel=0.1)
