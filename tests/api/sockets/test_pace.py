"""Whether a body arrives fast enough: time that the server waits for the client, and nothing else."""

from __future__ import annotations

from trireme.api.sockets.limits import BodyPace, Limits

LIMITS = Limits(body_rate=100, body_grace_s=10.0)


def test_rate_counts_after_the_grace() -> None:
    pace = BodyPace(LIMITS)
    pace.wait(1000.0)
    assert not pace.is_slow(1010.0)
    assert pace.is_slow(1010.1)
    pace.arrived(2000, 1010.1)
    assert not pace.is_slow(1e9), "no reader waits for more"
    pace.wait(2000.0)
    assert not pace.is_slow(2009.8)  # hardly 20 s of waiting, 2,000 bytes
    assert pace.is_slow(2010.1)


def test_crumbs_do_not_help() -> None:
    """A byte now and then resets no clock."""
    pace = BodyPace(LIMITS)
    for second in range(10):
        pace.wait(second)
        pace.arrived(1, second + 1.0)
        assert not pace.is_slow(second + 1.0)
    pace.wait(10.0)
    assert pace.is_slow(10.5)


def test_a_fast_client_may_take_long() -> None:
    pace = BodyPace(LIMITS)
    for second in range(10_000):
        pace.wait(second)
        pace.arrived(100, second + 1.0)
        assert not pace.is_slow(second + 1.0)


def test_waiting_twice_is_waiting_once() -> None:
    pace = BodyPace(LIMITS)
    pace.wait(0.0)
    pace.wait(9.0)
    assert pace.is_slow(10.5)
