"""Limits of callers: never exceeded, and given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.access.limits import UNLIMITED, CallerLimits, CallerUsage
from trireme.engine.errors import LimitExceededError

STEPS = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 50), st.booleans()), max_size=60)
"""Seconds to the next request, its bytes, and whether the oldest request in flight is answered first."""


@given(STEPS, st.floats(0.5, 20), st.floats(1, 10), st.integers(1, 4), st.floats(1, 100), st.floats(1, 100))
def test_no_window_of_time_has_more_than_burst_and_rate(
    steps: list[tuple[float, int, bool]], rate: float, burst: float, most: int, byte_rate: float, byte_burst: float
) -> None:
    usage = CallerUsage("a", 1)
    usage.limit(CallerLimits(rate, burst, most, byte_rate, byte_burst), 0.0)
    now, in_flight, admitted = 0.0, 0, []
    for wait_s, nbytes, answer in steps:
        now += wait_s
        if answer and in_flight:
            usage.complete()
            in_flight -= 1
        try:
            usage.admit(nbytes, now)
        except LimitExceededError:
            pass
        else:
            in_flight += 1
            admitted.append((now, nbytes))
        assert usage.in_flight == in_flight <= most
    for first, (start_s, _) in enumerate(admitted):
        taken = 0.0
        for count, (end_s, nbytes) in enumerate(admitted[first:], start=1):
            assert count <= burst + rate * (end_s - start_s) + 1e-6
            # The last request may leave the bucket in debt, so it does not count.
            assert taken <= byte_burst + byte_rate * (end_s - start_s) + 1e-6
            taken += nbytes


@given(st.floats(0.1, 100), st.floats(1, 10), st.integers(0, 30))
def test_who_waits_as_long_as_told_is_admitted(rate: float, burst: float, nbytes: int) -> None:
    usage = CallerUsage("a", 1)
    usage.limit(CallerLimits(rate, burst, None, rate, burst), 0.0)
    now = 0.0
    for _ in range(20):
        try:
            usage.admit(nbytes, now)
        except LimitExceededError as error:
            now += error.retry_after_s + 1e-6
            usage.admit(nbytes, now)


def test_a_refused_request_takes_nothing() -> None:
    usage = CallerUsage("a", 1)
    usage.limit(CallerLimits(1.0, 2.0, 1), 0.0)
    usage.admit(0, 0.0)
    for _ in range(5):
        with pytest.raises(LimitExceededError, match="caller 'a' has reached its limit of 1 requests in flight"):
            usage.admit(0, 0.0)
    usage.complete()
    usage.admit(0, 0.0)
    usage.complete()
    with pytest.raises(LimitExceededError, match="1 requests a second; try again in 1 s") as caught:
        usage.admit(0, 0.25)
    assert caught.value.retry_after_s == pytest.approx(0.75)


def test_a_request_larger_than_the_burst_is_paid_for_afterwards() -> None:
    usage = CallerUsage("a", 1)
    usage.limit(CallerLimits(bytes_per_s=10.0, bytes_burst=10.0), 0.0)
    usage.admit(110, 0.0)
    with pytest.raises(LimitExceededError, match="10 bytes a second") as caught:
        usage.admit(0, 0.0)
    assert caught.value.retry_after_s == pytest.approx(10.1)


def test_changed_limits_keep_what_was_counted() -> None:
    usage = CallerUsage("a", 1)
    usage.limit(CallerLimits(1.0, 2.0, 5), 0.0)
    usage.admit(0, 0.0)
    usage.admit(0, 0.0)
    usage.limit(CallerLimits(1.0, 3.0, 2), 0.0)
    with pytest.raises(LimitExceededError, match="2 requests in flight"):
        usage.admit(0, 0.0)
    usage.complete()
    usage.admit(0, 0.0)  # the third of a burst of three
    usage.complete()
    with pytest.raises(LimitExceededError, match="a second"):
        usage.admit(0, 0.0)
    usage.limit(UNLIMITED, 0.0)
    usage.admit(1 << 40, 0.0)


def test_more_answers_than_requests_are_a_fault() -> None:
    usage = CallerUsage("a", 1)
    with pytest.raises(AssertionError, match="more completed"):
        usage.complete()
