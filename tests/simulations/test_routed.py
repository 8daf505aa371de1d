"""Swarm runs of a whole server with routes (`simulations.routed`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.planted import planted
from trireme.simulations.planted.routed import ROUTED_BUGS
from trireme.simulations.routed import play_routed

FIRST_SEEDS = {"readiness-untold": 20, "begun-elsewhere": 21}
"""Where to begin with those that take long to meet, or whose first seeds take long to play."""


def test_no_request_is_lost_or_misled_whatever_happens_to_routes_and_models() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 11):
        run = play_routed(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    for what in ("answered", "failed", "of sequences", "given up", "routes set", "unloaded", "loaded again", "sticky"):
        assert counts[what] > 5, f"{what}: {counts[what]}"


@pytest.mark.slow
def test_so_it_is_in_forty_runs() -> None:
    assert broken(play_routed, range(11, 51)) == []


@pytest.mark.parametrize("bug", ROUTED_BUGS)
def test_a_planted_bug_is_found_within_two_hundred_seeds(bug: str) -> None:
    first = FIRST_SEEDS.get(bug, 1)
    with planted(bug):
        found = next((seed for seed in range(first, first + 200) if play_routed(seed).violation), None)
    assert found is not None, f"{bug} was not found"
    assert not play_routed(found).violation, "the seed finds the planted bug, not another one"
