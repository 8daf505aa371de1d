"""The restart policy: growing delays, forgiveness with time, an end to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.restart import RestartPolicy


def test_delays_double_and_stop_growing() -> None:
    policy = RestartPolicy(limit=6, window_s=1000, first_delay_s=1, longest_delay_s=10)
    assert [policy.died(now) for now in range(6)] == [1, 2, 4, 8, 10, 10]


def test_one_death_too_many_ends_it() -> None:
    policy = RestartPolicy(limit=2, window_s=60)
    assert policy.died(0) is not None
    assert policy.died(1) is not None
    assert policy.died(2) is None


def test_old_deaths_are_forgiven() -> None:
    policy = RestartPolicy(limit=1, window_s=60, first_delay_s=1)
    assert policy.died(0) == 1
    assert policy.died(61) == 1


def test_no_restart_at_all_with_a_limit_of_zero() -> None:
    assert RestartPolicy(limit=0, window_s=60).died(0) is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(0, 5))
def test_never_more_restarts_within_the_window_than_the_limit(gaps: list[float], limit: int) -> None:
    policy = RestartPolicy(limit, window_s=60)
    now = 0.0
    restarted: list[float] = []
    for gap in gaps:
        now += gap
        if policy.died(now) is not None:
            restarted.append(now)
        assert sum(now - when <= 60 for when in restarted) <= limit
