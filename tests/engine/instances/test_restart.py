"""The restart policy: growing delays with a ceiling, deaths forgotten after a healthy time, and no end to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.instances.restart import RestartPolicy


def test_delays_double_up_to_a_ceiling_and_never_end() -> None:
    policy = RestartPolicy(limit=2, healthy_s=1000, first_delay_s=1, longest_delay_s=10)
    assert [policy.died(now) for now in range(6)] == [1, 2, 4, 8, 10, 10]
    assert [policy.died(now) for now in range(6, 5000)] == [10] * 4994


def test_more_deaths_in_a_row_than_the_limit_are_failing() -> None:
    policy = RestartPolicy(limit=2, healthy_s=60)
    failing = []
    for now in range(3):
        policy.started(now)
        policy.died(now + 0.5)
        failing.append(policy.failing)
    assert failing == [False, False, True]


def test_a_child_that_was_up_for_long_enough_begins_anew() -> None:
    policy = RestartPolicy(limit=0, healthy_s=60, first_delay_s=1)
    delays = []
    for up_s in (1, 59.9, 60, 1000, 5):
        policy.started(1000.0)
        delays.append(policy.died(1000.0 + up_s))
    assert delays == [1, 2, 1, 1, 2]


def test_time_in_which_it_could_not_be_started_does_not_count_as_healthy() -> None:
    policy = RestartPolicy(limit=5, healthy_s=60, first_delay_s=1)
    policy.started(0)
    assert [policy.died(1), policy.died(100), policy.died(200)] == [1, 2, 4]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(0, 5))
def test_the_delay_is_bounded_and_the_policy_says_when_it_is_failing(ups: list[float], limit: int) -> None:
    policy = RestartPolicy(limit, healthy_s=60)
    in_a_row = 0
    for up_s in ups:
        policy.started(1.0)
        delay_s = policy.died(1.0 + up_s)
        in_a_row = 1 if (1.0 + up_s) - 1.0 >= 60 else in_a_row + 1
        assert 0.1 <= delay_s <= 30
        assert policy.deaths == in_a_row
        assert policy.failing == (in_a_row > limit)
