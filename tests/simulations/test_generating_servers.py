"""Swarm runs of whole servers with generating models (`simulations.generating_servers`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.generating_servers import play_generating_servers
from trireme.simulations.planted import planted
from trireme.simulations.planted.generating_servers import GENERATING_SERVER_BUGS

SEEDS = 100

FOUND_BY = {
    "stands-still": 5,
    "all-fail-of-one": 5,
    "waits-for-readers": 14,
    "room-unheard": 14,
    "death-of-steps-unheard": 15,
    "arrivals-lost": 29,
}
"""With which seeds the search for some begins, so that it does not take long."""


def test_each_text_is_what_it_is_alone_whatever_strikes_the_server() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 31):
        run = play_generating_servers(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    faults = ("failed step", "broken logits", "lost instance", "stopping", "changes", "queue full", "wrong")
    amid = ("given up amid a text", "deaths", "hangs", "moves", "preempted", "several choices", "tokens found")
    for what in ("answered", "ended: stop", "ended: length", *amid, *(f"failed: {each}" for each in faults)):
        assert counts[what] > 3, f"{what}: {counts[what]}"


def test_a_seed_is_played_the_same_each_time() -> None:
    first, second = play_generating_servers(7), play_generating_servers(7)
    assert first.counts
    assert first == second


def test_text_of_a_last_step_after_its_client_has_left_is_not_missed() -> None:
    assert not (violation := play_generating_servers(4_251).violation), violation


@pytest.mark.slow
def test_so_it_is_in_hundred_and_twenty_runs() -> None:
    assert broken(play_generating_servers, range(31, 151)) == []


@pytest.mark.parametrize("bug", GENERATING_SERVER_BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    begin = FOUND_BY.get(bug, 1)
    with planted(bug):
        found = next((seed for seed in range(begin, begin + SEEDS) if play_generating_servers(seed).violation), None)
    assert found is not None, f"{bug} was not found"
    assert not play_generating_servers(found).violation, "the seed finds the planted bug, not another one"
