"""Swarm runs of the core that decides which models are in memory (`simulations.residency_swarm`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.planted import planted
from trireme.simulations.planted.residency import RESIDENCY_BUGS
from trireme.simulations.residency_swarm import play_residency


def test_whatever_happens_each_decision_is_what_the_rules_say() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 81):
        run = play_residency(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    for what in ("hits", "waits", "refused", "Loads", "Leaves", "Drains", "Refuses", "by hand", "failed loads"):
        assert counts[what] > 10, f"{what}: {counts[what]}"


@pytest.mark.slow
def test_so_it_is_in_five_hundred_runs() -> None:
    assert broken(play_residency, range(81, 581)) == []


@pytest.mark.parametrize("bug", RESIDENCY_BUGS)
def test_a_planted_bug_of_the_core_is_found_within_a_thousand_seeds(bug: str) -> None:
    with planted(bug):
        found = next((seed for seed in range(1, 1_001) if play_residency(seed).violation), None)
    assert found is not None, f"{bug} was not found"
    assert not play_residency(found).violation, "the seed finds the planted bug, not another one"
