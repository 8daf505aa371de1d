"""What of a measurement of large documents is left out, because the machine itself was slow."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
SLOW, USUAL = 40.0, 0.05


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import stalls

    return stalls


@pytest.fixture
def large_json(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import large_json

    return large_json


def test_a_stall_is_all_the_time_that_the_same_work_took_longer(stalls: ModuleType) -> None:
    """From the last time that it was as fast as usual, until it has ended the last time that it was not."""
    search = stalls.StallSearch(0.0)
    for at_s, cpu_ms in ((1.0, USUAL), (2.0, SLOW), (3.0, SLOW / 2), (4.0, USUAL), (5.0, USUAL), (6.0, SLOW)):
        search.note(at_s, at_s + 0.1, cpu_ms)
    assert search.stalls == [stalls.Stall(1.1, 3.1, SLOW), stalls.Stall(5.1, 6.1, SLOW)]


def test_no_stall_is_found_where_the_work_takes_no_longer(stalls: ModuleType) -> None:
    """Nor if it only had to wait for a processor, which takes it no CPU time."""
    search = stalls.StallSearch(0.0)
    for at_s in range(10):
        search.note(at_s, at_s + 0.9, USUAL)
    assert search.stalls == []


def test_the_search_ends_when_it_is_told(stalls: ModuleType) -> None:
    told = iter([False, False, True])
    assert all(stall.cpu_ms > 0 for stall in stalls.search(lambda _wait_s: next(told)))
    assert next(told, None) is None


def test_waits_in_stalls_are_left_out_but_for_the_longest(large_json: ModuleType) -> None:
    stall = large_json.Stall(10.0, 11.0, SLOW)
    before, across, within, just_after, later = (
        large_json.Wait(all_ms, began_s, 0.0, 0.0)
        for all_ms, began_s in ((3.0, 9.9), (200.0, 9.9), (30.0, 10.5), (20.0, 11.01), (2.0, 11.1))
    )
    waits = large_json.Waits.of([before, across, within, just_after, later], 0, [stall])
    assert waits.longest == [before, later]
    assert (waits.asked, waits.p99_ms, waits.stalled_ms) == (5, 3.0, 200.0)
    assert large_json.Waits.of([before], 0, [stall]).stalled_ms == 0.0
