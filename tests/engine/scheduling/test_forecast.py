"""When an instance will be through with what it holds."""

from __future__ import annotations

import math

import pytest

from trireme.engine.scheduling.forecast import LEAD_S, Durations, Forecast


def test_nothing_is_known_before_a_batch_of_that_size_is_over(make_job) -> None:
    forecast = Forecast({})
    small, large = make_job(1), make_job(2)
    forecast.begin(small, 1, 0.0)
    assert forecast.opens_s() == math.inf
    forecast.over(small, 0.010)
    forecast.begin(large, 2, 0.010)
    assert forecast.opens_s() == math.inf, "two rows are another size than one"


def test_the_next_batch_may_be_bound_just_before_the_end(make_job) -> None:
    forecast = Forecast({1: 0.010})
    forecast.begin(make_job(1), 1, 5.0)
    assert forecast.opens_s() == pytest.approx(5.010 - LEAD_S)


def test_batches_are_executed_one_after_the_other(make_job) -> None:
    forecast = Forecast({1: 0.010, 3: 0.040})
    first = make_job(1)
    forecast.begin(first, 1, 5.0)
    forecast.begin(make_job(2), 7, 5.009)
    assert forecast.opens_s() == pytest.approx(5.010 + 0.040 - LEAD_S)
    forecast.over(first, 5.012)
    assert forecast.opens_s() == pytest.approx(5.012 + 0.040 - LEAD_S), "the second one began when the first was over"


def test_the_latest_batch_counts_for_a_quarter_and_a_wait_for_the_one_before_for_nothing(make_job) -> None:
    durations: Durations = {}
    forecast = Forecast(durations)
    first, second = make_job(1), make_job(2)
    forecast.begin(first, 1, 1.0)
    forecast.begin(second, 1, 1.0)
    forecast.over(first, 1.010)
    assert durations == {1: pytest.approx(0.010)}
    forecast.over(second, 1.024)
    assert durations == {1: pytest.approx(0.011)}


def test_instances_of_a_model_learn_from_each_other(make_job) -> None:
    durations: Durations = {}
    one, other = Forecast(durations), Forecast(durations)
    job = make_job(1)
    other.begin(make_job(2), 1, 0.0)
    one.begin(job, 1, 0.0)
    one.over(job, 0.010)
    assert other.opens_s() == pytest.approx(0.010 - LEAD_S)
