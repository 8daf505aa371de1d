"""When a server drains, and when it stops: the rules of `engine.draining`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.draining import Draining, Ending

TERM, INT = 15, 2


def test_the_first_signal_begins_the_drain_and_its_time_ends_it() -> None:
    draining = Draining({TERM: 5.0})
    assert (draining.state, draining.until_s) == (Ending.SERVING, math.inf)
    draining.signalled(TERM, 100.0)
    assert (draining.state, draining.until_s) == (Ending.DRAINING, 105.0)
    draining.tick(104.9)
    assert draining.state is Ending.DRAINING
    draining.tick(105.0)
    assert (draining.state, draining.until_s) == (Ending.STOPPING, math.inf)


@pytest.mark.parametrize("second", [TERM, INT])
def test_a_second_signal_ends_the_drain(second: int) -> None:
    draining = Draining({TERM: 5.0, INT: 5.0})
    draining.signalled(TERM, 0.0)
    draining.signalled(second, 0.1)
    assert draining.state is Ending.STOPPING


@pytest.mark.parametrize("drain_s", [{}, {TERM: 0.0}, {INT: 5.0}])
def test_without_time_for_it_there_is_no_drain(drain_s: dict[int, float]) -> None:
    draining = Draining(drain_s)
    draining.signalled(TERM, 0.0)
    assert draining.state is Ending.STOPPING


@given(
    st.floats(0, 10) | st.just(math.inf),
    st.lists(st.tuples(st.sampled_from(["signal", "tick"]), st.floats(0, 3)), max_size=20),
)
def test_it_goes_one_way_and_waits_for_a_signal(drain_s: float, events: list[tuple[str, float]]) -> None:
    """Whatever happens when: no end without a signal, none too soon, and none is taken back."""
    draining = Draining({TERM: drain_s})
    now, signals, first_s = 0.0, 0, math.inf
    order = list(Ending)
    for what, passed_s in events:
        now += passed_s
        before = draining.state
        if what == "signal":
            signals += 1
            first_s = min(first_s, now)
            draining.signalled(TERM, now)
        else:
            draining.tick(now)
        assert order.index(draining.state) >= order.index(before)
        assert (draining.state is Ending.SERVING) == (signals == 0)
        assert draining.state is not Ending.STOPPING or signals > 1 or now >= first_s + drain_s
        assert draining.until_s == math.inf or draining.state is Ending.DRAINING
