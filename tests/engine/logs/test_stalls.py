"""What counts as a stall of the event loop, and from when to when the server is unwell because of one."""

from __future__ import annotations

from trireme.engine.logs.stalls import RECOVERY_S, STALL_S, LoopStalls


def test_a_beat_in_time_is_no_stall() -> None:
    stalls = LoopStalls(limit_s=5)
    assert stalls.came(10.0, 10.0 + STALL_S - 0.01) == 0
    assert (stalls.count, stalls.longest_s, stalls.unwell) == (0, 0.0, False)


def test_stalls_are_counted_and_the_longest_is_kept() -> None:
    stalls = LoopStalls(limit_s=5)
    assert [stalls.came(0, 2), stalls.came(10, 14), stalls.came(20, 21)] == [2, 4, 1]
    assert (stalls.count, stalls.longest_s, stalls.unwell) == (3, 4, False)


def test_a_long_stall_makes_unwell_while_it_lasts_and_until_the_loop_has_recovered() -> None:
    stalls = LoopStalls(limit_s=5)
    stalls.waiting(100.0, 104.9)
    assert not stalls.unwell
    stalls.waiting(100.0, 105.0)
    assert stalls.unwell
    stalls.came(100.0, 107.0)
    stalls.came(107.25, 107.26)
    assert stalls.unwell
    stalls.came(107.0 + RECOVERY_S - 0.1, 107.0 + RECOVERY_S - 0.1)
    assert stalls.unwell
    stalls.came(107.0 + RECOVERY_S, 107.0 + RECOVERY_S)
    assert not stalls.unwell


def test_another_stall_puts_the_recovery_off() -> None:
    stalls = LoopStalls(limit_s=5)
    stalls.came(0.0, 6.0)
    stalls.came(10.0, 11.5)
    stalls.came(16.0, 16.0)
    assert stalls.unwell
    stalls.came(11.5 + RECOVERY_S, 11.5 + RECOVERY_S)
    assert not stalls.unwell


def test_without_a_limit_nothing_makes_unwell() -> None:
    stalls = LoopStalls(limit_s=0)
    stalls.waiting(0.0, 1e6)
    stalls.came(0.0, 1e6)
    assert (stalls.count, stalls.unwell) == (1, False)
