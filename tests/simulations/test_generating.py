"""Swarm runs of the cores that decide what generating models compute (`simulations.generating`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.generating import play_generating
from trireme.simulations.planted import planted
from trireme.simulations.planted.generating import GENERATING_BUGS


def test_whatever_happens_each_text_is_what_it_is_alone() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 121):
        run = play_generating(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    ends = ("stop", "length", "cancelled", "expired", "failed", "refused")
    moves = ("SwapOut", "SwapIn", "Copy", "begun", "preempted", "forks")
    for what in (*ends, *moves, "pieces of prompts", "failed steps", "tokens found"):
        assert counts[what] > 10, f"{what}: {counts[what]}"


@pytest.mark.slow
def test_so_it_is_in_five_thousand_runs() -> None:
    assert broken(play_generating, range(121, 5_121)) == []


@pytest.mark.parametrize("bug", GENERATING_BUGS)
def test_a_planted_bug_is_found_within_a_hundred_seeds(bug: str) -> None:
    with planted(bug):
        found = next((seed for seed in range(1, 101) if play_generating(seed).violation), None)
    assert found is not None, f"{bug} was not found"
    assert not play_generating(found).violation, "the seed finds the planted bug, not another one"
