"""Quantiles of the last minute, and histograms (docs/reference/metrics.md#families-of-a-model)."""

from __future__ import annotations

import logging
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config.model import ModelConfig
from trireme.engine.metrics.statistics import (
    SLICE_NS,
    SLICES,
    Histogram,
    RecentDurations,
    common_quantiles,
    first_response_histogram,
)

QUANTILES = (0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def recent(*durations_us: int, now_ns: int = 0) -> RecentDurations:
    made = RecentDurations()
    for duration_us in durations_us:
        made.add(duration_us, now_ns)
    return made


def test_without_durations_there_are_no_quantiles() -> None:
    assert all(math.isnan(value) for value in common_quantiles([recent()], (0.5, 0.9), 0))


def test_short_durations_are_exact() -> None:
    assert common_quantiles([recent(*range(1, 101))], (0.5, 0.9, 0.99, 1.0), 0) == [50, 90, 99, 100]


def test_shares_beyond_all_are_those_at_the_ends() -> None:
    """Whatever summary_quantiles names has a value, as in Triton; in the order in which they are asked for."""
    assert common_quantiles([recent(1, 2, 3)], (1.5, -0.1, 0.5, 1.5), 0) == [3, 1, 2, 3]


def test_times_that_went_backwards_count_as_none() -> None:
    assert common_quantiles([recent(-5, -1)], (0.5,), 0) == [0]


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=200), st.sampled_from(QUANTILES))
def test_a_quantile_is_right_to_its_first_eight_digits(durations: list[int], quantile: float) -> None:
    """Rule 1, against the plain definition: the smallest duration that this share of all do not exceed."""
    rank = max(1, math.ceil(quantile * len(durations)))
    exact = sorted(durations)[rank - 1]
    (found,) = common_quantiles([recent(*durations)], (quantile,), 0)
    assert abs(Fraction(found) - exact) <= Fraction(exact, 256)
    assert found == exact or exact >= 256


@given(st.lists(st.integers(0, 2**62)))
def test_what_is_kept_is_bounded(durations: list[int]) -> None:
    made = recent(*durations)
    for _, counts in made._slices:
        assert all(key.bit_length() <= 8 or key % (1 << (key.bit_length() - 8)) == 0 for key in counts)


@given(
    st.lists(st.tuples(st.integers(0, 20 * SLICE_NS), st.integers(0, 255)), min_size=1), st.integers(0, 8 * SLICE_NS)
)
def test_what_is_older_than_five_slices_is_forgotten(events: list[tuple[int, int]], later_ns: int) -> None:
    """Rule 2, against a plain list: the current slice and the four before it count, whole."""
    events.sort()
    made = RecentDurations()
    for now_ns, duration_us in events:
        made.add(duration_us, now_ns)
        assert len(made._slices) <= SLICES
    now_ns = events[-1][0] + later_ns
    counted = sorted(us for at_ns, us in events if at_ns // SLICE_NS > now_ns // SLICE_NS - SLICES)
    found = common_quantiles([made], (0.5, 1.0), now_ns)
    if counted:
        assert found == [counted[math.ceil(len(counted) / 2) - 1], counted[-1]]
    else:
        assert all(math.isnan(value) for value in found)


def test_the_last_48_seconds_always_count_and_those_before_60_never() -> None:
    made = recent(7, now_ns=SLICE_NS - 1)
    assert common_quantiles([made], (0.5,), SLICE_NS - 1 + 48_000_000_000) == [7]
    made = recent(7, now_ns=0)
    assert common_quantiles([made], (0.5,), 59_999_999_999) == [7]
    assert math.isnan(common_quantiles([made], (0.5,), 60_000_000_000)[0])


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    histogram = Histogram((-1, 0, 2.5, 100))
    for value in (0, 1, 2, 3, 100, 101, 5000):
        histogram.add(value)
    assert histogram.buckets() == [(-1, 0), (0, 1), (2.5, 3), (100, 5), (math.inf, 7)]
    assert histogram.total == 5207


def test_only_decoupled_models_have_a_histogram_of_first_responses() -> None:
    assert first_response_histogram(ModelConfig("m")) is None
    histogram = first_response_histogram(ModelConfig("m", decoupled=True))
    assert histogram is not None
    assert histogram.bounds == (100, 500, 2000, 5000)


def test_a_model_can_have_bounds_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    buckets = {"nv_inference_first_response_histogram_ms": (1.0, 2.5), "other": (3.0,)}
    with caplog.at_level(logging.WARNING, "trireme"):
        histogram = first_response_histogram(ModelConfig("m", decoupled=True, histogram_buckets=buckets))
    assert histogram is not None
    assert histogram.bounds == (1.0, 2.5)
    assert caplog.messages == [
        "Metric family 'other' in 'metric_identifier' is not a customizable metric in Triton core."
    ]
