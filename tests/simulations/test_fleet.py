"""Swarm runs of a fleet (`simulations.fleet`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.fleet.swarm import play_fleet
from trireme.simulations.planted import planted
from trireme.simulations.planted.fleet import FLEET_BUGS

FIRST_SEEDS = {"report-unheard": 56, "lost-unheard": 33, "drains-unheard": 112, "failures-add-up": 144}
"""Where to begin with those that take long to meet, or whose first seeds take long to play."""


def test_whatever_happens_to_a_fleet_each_request_is_answered_as_it_should() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 61):
        run = play_fleet(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    for what in ("answered", "sequence answered", "failed", "refused", "looked up"):
        assert counts[what] > 20, f"{what}: {counts[what]}"
    for what in ("retried", "scaled out", "scaled in", "upgraded", "killed", "cut", "failing", "slow"):
        assert counts[what] > 5, f"{what}: {counts[what]}"


def test_a_seed_is_always_the_same_run() -> None:
    assert play_fleet(7).counts == play_fleet(7).counts


@pytest.mark.slow
def test_so_it_is_in_five_hundred_runs() -> None:
    assert broken(play_fleet, range(61, 561)) == []


@pytest.mark.parametrize("bug", FLEET_BUGS)
def test_a_planted_bug_of_the_router_is_found_within_two_hundred_seeds(bug: str) -> None:
    first = FIRST_SEEDS.get(bug, 1)
    with planted(bug):
        found = next((seed for seed in range(first, first + 200) if play_fleet(seed).violation), None)
    assert found is not None, f"{bug} was not found"
    assert not play_fleet(found).violation, "the seed finds the planted bug, not another one"
