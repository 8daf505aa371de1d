"""Objectives, as they are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InvalidArgumentError
from trireme.foresight.search.objective import Aim, Measure, ObjectiveBound, PlanObjective, read_objective

REFUSED = ObjectiveBound(Measure.REFUSED, 0.01)


def test_bounds_are_read_with_their_units() -> None:
    objective = read_objective("p99<50ms, digits:mean<=5e3us,throughput>100/s,refused<0.5%", Aim.INSTANCES)
    assert objective.bounds == (
        ObjectiveBound(Measure.P99, 0.05),
        ObjectiveBound(Measure.MEAN, 0.005, model="digits"),
        ObjectiveBound(Measure.THROUGHPUT, 100.0, upper=False),
        ObjectiveBound(Measure.REFUSED, 0.005),
    )
    assert str(objective) == ("minimise instances with p99<50ms, digits:mean<5ms, throughput>100/s, refused<0.5%")
    assert objective.good_within_s("digits") == pytest.approx(0.005)
    assert objective.good_within_s("other") == pytest.approx(0.05)


def test_few_requests_may_be_refused_unless_said_otherwise() -> None:
    assert read_objective("p99<1s", Aim.INSTANCES).bounds == (ObjectiveBound(Measure.P99, 1.0), REFUSED)
    assert read_objective("", Aim.THROUGHPUT) == PlanObjective((REFUSED,), Aim.THROUGHPUT)
    assert read_objective("p99<1s", Aim.GOODPUT).bounds == (ObjectiveBound(Measure.P99, 1.0),)


@pytest.mark.parametrize(
    ("text", "aim", "told"),
    [
        ("p99", Aim.INSTANCES, "'p99' is no bound"),
        ("p98<5ms", Aim.INSTANCES, "'p98' is no measure; expected one of p50, p95, p99, mean, throughput, refused"),
        ("p99<5", Aim.INSTANCES, "found unit '' of p99, expected 'us', 'µs', 'ms', 's'"),
        ("p99<5/s", Aim.INSTANCES, "found unit '/s'"),
        ("p99<0ms", Aim.INSTANCES, "'0' is no number above 0"),
        ("p99<1e999ms", Aim.INSTANCES, "is no number above 0"),
        ("p99<--ms", Aim.INSTANCES, "is no number"),
        ("p99>5ms", Aim.INSTANCES, "p99 needs <"),
        ("throughput<5", Aim.INSTANCES, "throughput needs >"),
        ("p99<5ms,,", Aim.INSTANCES, "'' is no bound"),
        ("", Aim.INSTANCES, "needs a bound"),
        ("refused<1%", Aim.INSTANCES, "needs a bound"),
        ("throughput>5", Aim.GOODPUT, "a bound of latency"),
    ],
)
def test_what_is_wrong_is_said(text: str, aim: Aim, told: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        read_objective(text, aim)
    assert told in str(raised.value)


@given(st.text(max_size=30))
def test_any_text_is_an_objective_or_refused(text: str) -> None:
    try:
        objective = read_objective(text, Aim.THROUGHPUT)
    except InvalidArgumentError:
        return
    assert objective.bounds


@given(st.sampled_from(["p50", "p95", "p99", "mean"]), st.floats(0.001, 1e6))
def test_what_is_shown_can_be_read_again(measure: str, milliseconds: float) -> None:
    objective = read_objective(f"{measure}<{milliseconds:g}ms", Aim.INSTANCES)
    assert str(read_objective(str(objective.bounds[0]), Aim.INSTANCES)) == str(objective)


@given(st.floats(0.001, 10.0), st.floats(0.0, 100.0))
def test_a_bound_is_missed_by_what_is_above_it(limit: float, value: float) -> None:
    bound = ObjectiveBound(Measure.P99, limit)
    assert (bound.excess(value) == 0) == (value <= limit)
    assert bound.excess(math.nan) == math.inf
    least = ObjectiveBound(Measure.THROUGHPUT, limit, upper=False)
    assert (least.excess(value) == 0) == (value >= limit)
