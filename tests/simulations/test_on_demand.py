"""Swarm runs of whole servers whose models are loaded on demand (`simulations.on_demand`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.on_demand import play_on_demand
from trireme.simulations.planted import planted
from trireme.simulations.planted.residents import RESIDENTS_BUGS

FIRST_SEEDS = {"failure-unsaid": 13, "one-of-many-in-flight": 17, "forgotten-while-leaving": 19, "unvisited": 24}
"""Where to begin with those that take long to meet, or whose first seeds take long to play."""


def test_nothing_is_lost_and_each_decision_is_what_the_rules_say() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 11):
        run = play_on_demand(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    for what in ("answered", "given up", "by hand", *(f"refused: {each}" for each in ("model_memory", "load_failed"))):
        assert counts[what] > 3, f"{what}: {counts[what]}"


@pytest.mark.slow
def test_so_it_is_in_hundred_runs() -> None:
    assert broken(play_on_demand, range(11, 111)) == []


@pytest.mark.parametrize("bug", [*RESIDENTS_BUGS, "forgotten-while-leaving", "one-of-many-in-flight"])
def test_a_planted_bug_is_found_within_a_thousand_seeds(bug: str) -> None:
    first = FIRST_SEEDS.get(bug, 1)
    with planted(bug):
        found = next((seed for seed in range(first, first + 1_000) if play_on_demand(seed).violation), None)
    assert found is not None, f"{bug} was not found"
    assert not play_on_demand(found).violation, "the seed finds the planted bug, not another one"
