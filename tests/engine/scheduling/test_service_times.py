"""What an adaptive batcher learns."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.scheduling.service_times import ArrivalRate, ServiceTimes


def learnt(*seen: tuple[int, float]) -> ServiceTimes:
    times = ServiceTimes()
    for rows, seconds in seen:
        times.learn(rows, seconds)
    return times


def test_nothing_is_known_at_first():
    times = ServiceTimes()
    assert not times.known
    assert times.expected_s(4) == times.bound_s(4) == 0


def test_after_one_size_twice_as_much_is_worth_a_try():
    times = learnt((4, 0.2))
    assert times.expected_s(2) == times.expected_s(8) == 0.2
    assert times.expected_s(16) == 0.4


def test_sizes_between_and_beyond_are_on_the_line():
    times = learnt((2, 0.02), (8, 0.05))
    assert times.expected_s(5) == pytest.approx(0.035)
    assert times.expected_s(1) == pytest.approx(0.015)
    assert times.expected_s(16) == pytest.approx(0.09)


def test_larger_batches_never_take_less():
    times = learnt((2, 0.05), (8, 0.02))
    assert times.expected_s(8) >= times.expected_s(2)


def test_what_is_larger_than_all_that_was_seen_is_worth_a_try():
    """The slope between two sizes that are nearly the same says little, and less while the times change."""
    times = learnt((1, 0.01), (7, 0.012), (8, 0.02))
    assert times.expected_s(16) == pytest.approx(0.02 + 0.01 / 7 * 8)


def test_small_batch_that_hung_says_nothing_about_larger_ones_that_are_seen():
    times = learnt((1, 0.6), *[(16, 0.06), (32, 0.12)] * 20)
    assert times.expected_s(16) == pytest.approx(0.06, rel=0.05)
    assert times.expected_s(32) == pytest.approx(0.12, rel=0.05)
    assert times.expected_s(1) <= times.expected_s(16)


def test_one_that_hung_is_forgotten():
    usual = [(4, 0.01)] * 8
    times = learnt(*usual, (4, 100.0), *usual)
    assert times.expected_s(4) == pytest.approx(0.01)


def test_slow_first_batch_is_forgotten():
    times = learnt((4, 10.0), *[(4, 0.01)] * 40)
    assert times.expected_s(4) == pytest.approx(0.01)


def test_lasting_change_is_learnt():
    times = learnt(*[(4, 0.01)] * 50, *[(4, 0.1)] * 25)
    assert times.expected_s(4) == pytest.approx(0.1, rel=0.02)


def test_sizes_not_seen_for_long_follow_a_change():
    times = learnt(*[(1, 0.01), (8, 0.02)] * 10, *[(8, 0.02)] * 40, *[(8, 0.04)] * 40)
    assert times.expected_s(1) == pytest.approx(0.02, rel=0.1)


def test_size_not_seen_for_very_long_is_forgotten():
    """Then a larger one is worth a try again."""
    times = learnt(*[(8, 1.0)] * 16, *[(1, 0.001)] * 200)
    assert times.expected_s(8) == pytest.approx(0.004)


def test_large_size_that_was_slow_by_chance_is_tried_again_soon():
    times = learnt(*[(8, 0.015)] * 4, (16, 1.0))
    assert times.expected_s(16) == pytest.approx(0.045)
    for _ in range(20):
        times.learn(8, 0.015)
    assert times.expected_s(16) == pytest.approx(0.015)


def test_sizes_seen_by_turns_do_not_follow_each_other():
    times = learnt(*[(1, 0.01), (8, 0.02)] * 10, *[(1, 0.01), (8, 0.04)] * 40)
    assert times.expected_s(1) == pytest.approx(0.01, rel=0.05)
    assert times.expected_s(8) == pytest.approx(0.04, rel=0.05)


SIZES = (1, 2, 4, 8, 16)


def cost_s(rows: int) -> float:
    return 0.01 + 0.001 * rows


def drifted(factor: float, measured: Sequence[int]) -> dict[int, float]:
    """By what factor each size is expected to take more, when first all were measured, and then these."""
    before = [(rows, cost_s(rows)) for rows in SIZES * 12]
    times = learnt(*before, *[(rows, factor * cost_s(rows)) for rows in measured])
    return {rows: times.expected_s(rows) / cost_s(rows) for rows in SIZES}


def test_six_batches_on_one_side_are_a_drift_of_all_sizes() -> None:
    """By as much as the one that is closest to what was expected. The others may have been slow by chance."""
    before = [(1, 0.01), (8, 0.02)] * 8
    slow = [(8, 0.03), (8, 0.026), (8, 0.024), (8, 0.028), (8, 0.03)]
    assert learnt(*before, *slow).expected_s(1) == pytest.approx(0.01, rel=0.05)
    assert learnt(*before, *slow, (8, 0.026)).expected_s(1) == pytest.approx(0.012, rel=0.02)
    assert learnt(*before, *slow, (1, 0.009), (8, 0.026)).expected_s(1) == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("change", [1.04, 1 / 1.04])
def test_a_drift_is_followed_while_it_goes_on(change: float) -> None:
    """Requests are refused, or late, by what is expected meanwhile."""
    times = learnt(*[(4, 0.02), (10, 0.03)] * 10)
    factor = 1.0
    for _ in range(12):
        for rows, seconds in ((4, 0.02), (10, 0.03)):
            factor *= change
            times.learn(rows, seconds * factor)
            assert times.expected_s(rows) == pytest.approx(seconds * factor, rel=0.25)
            assert times.bound_s(rows) < 1.3 * times.expected_s(rows)


@given(st.integers(0, 2**32))
def test_what_is_noise_moves_little(seed: int) -> None:
    chance = Random(seed)
    times = ServiceTimes()
    for number in range(100):
        times.learn(8, 0.02 * chance.lognormvariate(0, 0.1))
        assert number < 16 or times.expected_s(8) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("measured", [(16,), (8, 16), (4, 8, 16), (16, 8, 8, 4), (2, 4, 8, 16), (1, 16)])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_drift_is_followed_once_by_however_many_sizes_it_is_seen(factor: float, measured: tuple[int, ...]) -> None:
    """Sizes that are not measured followed each of those that were: twice as slow became eight times."""
    assert drifted(factor, measured * 60) == pytest.approx(dict.fromkeys(SIZES, factor), rel=0.05)


def test_drift_is_followed_once_when_sizes_see_it_one_after_the_other() -> None:
    measured = [8] * 40 + [4] * 40 + [2] * 40
    assert drifted(2.0, measured)[1] == pytest.approx(2.0, rel=0.02)


def test_size_that_is_new_tells_nothing_about_what_was_before() -> None:
    """Those that followed a drift before it came do not forget that."""
    before = [(rows, cost_s(rows)) for rows in (1, 8) * 12]
    times = learnt(*before, *[(8, 2 * cost_s(8))] * 30, *[(4, 2 * cost_s(4))] * 60)
    assert times.expected_s(1) == pytest.approx(2 * cost_s(1), rel=0.05)


def test_size_not_seen_for_long_lies_between_those_that_were() -> None:
    """One got twice as slow, another one is as it was: what is not known is said to be in between."""
    before = [(rows, cost_s(rows)) for rows in SIZES * 12]
    times = learnt(*before, *[(8, cost_s(8)), (16, 2 * cost_s(16))] * 40)
    assert times.expected_s(1) / cost_s(1) == pytest.approx(2**0.5, rel=0.05)


@given(
    factor=st.floats(0.34, 2.9),
    measured=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
    turns=st.randoms(use_true_random=False),
)
def test_nothing_goes_beyond_a_drift_but_for_a_while(factor: float, measured: list[int], turns: Random) -> None:
    """However sizes are measured by turns, in the end all have followed, and none by more. (Those that are larger than
    all that are measured are forgotten.)"""
    order = measured * 12
    turns.shuffle(order)
    now = drifted(factor, [*order, *measured * 18])
    followed = [rows for rows in SIZES if rows <= max(measured)]
    assert [now[rows] for rows in followed] == pytest.approx([factor for _ in followed], rel=0.1)


def test_bound_covers_nearly_all():
    times = learnt(*[(4, 0.01)] * 50, *([(4, 0.01)] * 4 + [(4, 0.02)]) * 12)
    assert times.bound_s(4) >= 0.019


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(0, 1e4)), min_size=1, max_size=60))
def test_what_is_expected_is_positive_and_grows(seen):
    times = learnt(*seen)
    expected = [times.expected_s(rows) for rows in (1, 2, 3, 7, 30, 1000, 1 << 41)]
    assert expected == sorted(expected)
    assert expected[0] > 0


def test_rate_is_that_of_what_came():
    rate = ArrivalRate(1.0)
    assert rate.rows_per_s(0.0) == 0
    for number in range(1000):
        rate.arrived(2, number * 0.01)
    assert rate.rows_per_s(10.0) == pytest.approx(200, rel=0.02)


def test_rate_falls_when_nothing_comes():
    rate = ArrivalRate(1.0)
    for number in range(1000):
        rate.arrived(1, number * 0.01)
    assert rate.rows_per_s(20.0) < 0.01


def test_short_process_is_not_taken_for_a_slow_one():
    rate = ArrivalRate(1.0)
    for number in range(20):
        rate.arrived(1, number * 0.01)
    assert rate.rows_per_s(0.2) == pytest.approx(100, rel=0.15)
