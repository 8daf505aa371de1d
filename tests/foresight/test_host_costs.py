"""What is worked out of loads that clients put on a server."""

from __future__ import annotations

import numpy as np
import pytest
from predicted_models import foreseen_model

from trireme.engine.profiles import NEVER_LATE, ExecutorKind, ServicePoint, TimeDistribution
from trireme.foresight.host_costs import ServedLoad, joined, late_by, shared_part, slowed_by
from trireme.foresight.service_times import MeasuredModel, MeasuringPlan, measured_points, usual_sizes


def points(side_by_side: int, **took_s: float) -> list[ServicePoint]:
    """By rows: `r1=0.01` is a batch of one row that took 10 ms."""
    return [
        ServicePoint(int(name[1:]), side_by_side, 1.0, TimeDistribution.constant(each)) for name, each in took_s.items()
    ]


def load(clients: int, took_s: float, **batches: int) -> ServedLoad:
    sizes = {int(name[1:]): count for name, count in batches.items()}
    return ServedLoad(clients, np.zeros(1), 0.0, took_s, 1.0, sizes)


def slowed(service: list[ServicePoint], *loads: ServedLoad) -> float:
    return slowed_by(loads, MeasuredModel(foreseen_model().config, 1, ExecutorKind.THREAD, service))


def test_batches_are_compared_with_those_of_their_own_size() -> None:
    """A mean of seven rows and one says nothing of four, where seven take as long as eight."""
    service = points(1, r1=0.010, r4=0.010, r7=0.020, r8=0.020)
    assert slowed(service, load(8, 0.015, r1=50, r7=50)) == pytest.approx(1.0)
    assert slowed(service, load(8, 0.018, r1=50, r7=50)) == pytest.approx(1.2)
    assert slowed(service, load(1, 0.010, r1=50), load(8, 0.022, r8=50)) == pytest.approx(0.032 / 0.030)


def test_what_instances_side_by_side_take_more_is_not_the_servers() -> None:
    """It is known of some sizes, and interpolated; a lone client has one instance at a time."""
    service = [*points(1, r1=0.010, r2=0.010, r3=0.010), *points(2, r1=0.010, r3=0.014)]
    assert slowed(service, load(8, 0.012, r2=10)) == pytest.approx(1.0)
    assert slowed(service, load(1, 0.012, r2=10)) == pytest.approx(1.2)


def test_a_moment_in_which_other_programs_had_the_cores_is_not_believed() -> None:
    service = points(1, r1=0.010)
    assert slowed(service, load(1, 0.100, r1=9)) == 1.5
    assert slowed(service, load(1, 0.001, r1=9)) == 0.8
    assert slowed(service, load(1, 0.010)) == 1.0  # no batch


def test_all_small_sizes_are_measured_and_few_large_ones() -> None:
    for largest, wanted in (
        (1, [1]),
        (6, [1, 2, 3, 4, 5, 6]),
        (40, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 40]),
    ):
        assert list(usual_sizes(foreseen_model(max_batch_size=largest).config)) == wanted


def test_side_by_side_powers_of_two_are_measured_and_what_is_asked_for() -> None:
    config = foreseen_model(max_batch_size=6, instances=2).config
    both = list(measured_points(config, MeasuringPlan()))
    assert [rows for count, rows in both if count == 2] == [1, 2, 4, 6]
    asked = list(measured_points(config, MeasuringPlan(sizes=(3, 5))))
    assert asked == [(1, 3), (1, 5), (2, 3), (2, 5)]


def test_what_is_later_than_nine_of_ten_is_late_and_long_batches_hide_it() -> None:
    """Each rest has its own usual."""
    loads = [
        ServedLoad(1, np.array([usual_s] * 50 + [usual_s + 0.0001] * 49 + [usual_s + 0.0041]), 0.0, 0.0, 1.0, {})
        for usual_s in (0.0003, 0.0008)
    ]
    late = late_by(loads, 0.0001)
    assert late.count == 200
    assert late.mean_s == pytest.approx(2 * 0.004 / 200)
    assert (late.quantile(0.9), late.quantile(1.0)) == (0.0, pytest.approx(0.004))
    assert late_by(loads, 0.002) == late_by([], 0.0001) == NEVER_LATE


def test_loads_that_took_turns_are_one_load() -> None:
    """What is of a request counts by requests, and what is of a batch by batches."""
    few = ServedLoad(8, np.array([0.001] * 4), 0.0001, 0.010, 4.0, {4: 1}, 0.0002)
    many = ServedLoad(8, np.array([0.002] * 12), 0.0003, 0.020, 4.0, {2: 1, 4: 1, 6: 1}, 0.0006)
    both = joined([few, many])
    assert (both.clients, len(both.latencies_s), both.requests, dict(both.sizes)) == (8, 16, 4.0, {2: 1, 4: 2, 6: 1})
    assert both.loop_s == pytest.approx((4 * 0.0001 + 12 * 0.0003) / 16)
    assert both.front_s == pytest.approx((4 * 0.0002 + 12 * 0.0006) / 16)
    assert both.batch_s == pytest.approx((0.010 + 3 * 0.020) / 4)


def test_what_is_shared_is_what_is_saved_in_company() -> None:
    """Alone a request costs 20 of its own and 60 that four share; what costs more in company is not shared."""
    assert shared_part(80e-6, 35e-6, 4.0) == pytest.approx(60e-6)
    assert shared_part(80e-6, 90e-6, 4.0) == 0.0
    assert shared_part(80e-6, 0.0, 4.0) == 80e-6
