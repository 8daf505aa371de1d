"""Distributions of durations: what is kept of samples, and what is drawn from it."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.profiles import TimeDistribution
from trireme.engine.profiles.durations import PLACES

samples = st.lists(st.floats(0, 100), min_size=1, max_size=200)


@given(samples)
def test_what_is_kept_of_samples(values: list[float]) -> None:
    """Their number, mean, ends, and quantiles that ascend."""
    kept = TimeDistribution.of(values)
    assert kept.count == len(values)
    assert kept.mean_s == pytest.approx(sum(values) / len(values))
    assert kept.quantiles_s[0] == min(values)
    assert kept.quantiles_s[-1] == max(values)
    assert list(kept.quantiles_s) == sorted(kept.quantiles_s)
    assert kept.quantile(0.0) == min(values)
    assert kept.quantile(1.0) == max(values)


def test_one_sample_of_many_is_not_drawn_more_often_than_it_came() -> None:
    """Of 50,000 one took 4,000 times as long, which is the interpreter held up once."""
    values = [0.000025] * 49_999 + [0.1]
    kept = TimeDistribution.of(values)
    assert kept.quantiles_s[-2] == 0.000025
    assert kept.quantile(1.0) == pytest.approx(0.000025 + 2 * 0.1 / 51, rel=0.02)
    assert kept.correction == pytest.approx(1.0, abs=0.02)
    rare = TimeDistribution.of([0.000025] * 990 + [0.01] * 10)
    assert rare.quantile(1.0) == 0.01


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.integers(1, 2_000), st.floats(0, 1e6))
def test_whatever_the_samples_their_mean_is_within_the_quantiles(few: list[float], times: int, rare: float) -> None:
    kept = TimeDistribution.of([*few * times, rare])
    assert kept.quantiles_s[0] <= kept.mean_s <= kept.quantiles_s[-1] <= max(*few, rare)
    assert list(kept.quantiles_s) == sorted(kept.quantiles_s)


@given(samples)
def test_json_gives_the_same_back(values: list[float]) -> None:
    kept = TimeDistribution.of(values)
    assert TimeDistribution.from_json(json.loads(json.dumps(kept.to_json())), "x") == kept


@given(samples, st.floats(0, 10))
def test_a_factor_scales_everything(values: list[float], factor: float) -> None:
    scaled = TimeDistribution.of(values).scaled(factor)
    assert scaled.mean_s == pytest.approx(TimeDistribution.of(values).mean_s * factor)
    assert scaled.quantile(0.5) == pytest.approx(TimeDistribution.of(values).quantile(0.5) * factor)


def test_draws_have_the_mean_and_the_quantiles_of_the_samples() -> None:
    """Of a skewed distribution, too: exponential service times, say."""
    random = Random(1)
    values = [random.expovariate(100.0) for _ in range(20_000)]
    kept = TimeDistribution.of(values)
    drawn = [kept.quantile(random.random()) * kept.correction for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.01, rel=0.03)
    assert sorted(drawn)[19_800] == pytest.approx(math.log(100) / 100, rel=0.05)


def test_neighbours_that_are_alike_make_the_error_larger() -> None:
    """A machine that is slow for half of the time has not been measured by many samples, but by two."""
    mixed, apart = [1.0, 2.0] * 500, [1.0] * 500 + [2.0] * 500
    assert TimeDistribution.of(apart).error_s > 5 * TimeDistribution.of(mixed).error_s
    assert TimeDistribution.of([1.0] * 1000).error_s == 0


def test_only_durations_are_taken() -> None:
    with pytest.raises(InvalidArgumentError, match="one sample at least"):
        TimeDistribution.of([])
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgumentError, match="a number of seconds from 0 on"):
            TimeDistribution.of([1.0, wrong])


GOOD = TimeDistribution.constant(1.0).to_json()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "expected an object with count, mean_s, error_s, quantiles_s"),
        ({**GOOD, "more": 1}, "expected an object"),
        ({**GOOD, "quantiles_s": [1.0]}, f"expected {len(PLACES)} numbers"),
        ({**GOOD, "quantiles_s": [2.0, *[1.0] * (len(PLACES) - 1)]}, "expected ascending numbers"),
        ({**GOOD, "mean_s": "1"}, "expected seconds from 0 on, not '1'"),
        ({**GOOD, "mean_s": 2.0}, "between the least and the longest"),
        ({**GOOD, "error_s": -1}, "expected seconds from 0 on, not -1"),
        ({**GOOD, "count": 0}, "a number of samples from 1 on, not 0"),
        ({**GOOD, "count": True}, "a number of samples from 1 on, not True"),
    ],
)
def test_what_is_wrong_is_said(value: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^here.*{text}"):
        TimeDistribution.from_json(value, "here")
