"""Swarm runs of a fleet that manages itself (`simulations.fleet.managed`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.fleet.managed import play_managed_fleet
from trireme.simulations.planted import planted
from trireme.simulations.planted.managed_fleet import MANAGED_FLEET_BUGS

FIRST_SEEDS = {
    "never-settles": 70,
    "loaded-beyond-room": 77,
    "moved-at-once": 41,
    "release-unheard": 118,
    "ends-with-its-models": 118,
    "absent-is-final": 1_051,
}
"""Where to begin with those that take long to meet, or whose first seeds take long to play."""


def test_replicas_and_models_come_and_go_and_no_request_is_lost_to_it() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 61):
        run = play_managed_fleet(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    for what in ("answered", "sequence answered", "failed", "refused", "retried", "loaded"):
        assert counts[what] > 20, f"{what}: {counts[what]}"
    for what in ("grown by queue time", "shrunk by queue time", "rolled", "roster lost", "nowhere", "killed", "silent"):
        assert counts[what] > 5, f"{what}: {counts[what]}"


def test_a_seed_is_always_the_same_run() -> None:
    assert play_managed_fleet(7).counts == play_managed_fleet(7).counts


@pytest.mark.slow
def test_so_it_is_in_five_hundred_runs() -> None:
    assert broken(play_managed_fleet, range(61, 561)) == []


@pytest.mark.parametrize("bug", MANAGED_FLEET_BUGS)
def test_a_planted_bug_of_roster_or_scaler_is_found_within_two_hundred_seeds(bug: str) -> None:
    first = FIRST_SEEDS.get(bug, 1)
    with planted(bug):
        found = next((seed for seed in range(first, first + 200) if play_managed_fleet(seed).violation), None)
    assert found is not None, f"{bug} was not found"
    assert not play_managed_fleet(found).violation, "the seed finds the planted bug, not another one"
