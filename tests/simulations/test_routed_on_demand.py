"""Swarm runs of a whole server with routes, whose models are loaded on demand (`simulations.routed_on_demand`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.routed_on_demand import play_routed_on_demand


def test_requests_for_routes_load_their_targets_and_none_is_lost() -> None:
    counts: Counter[str] = Counter()
    for seed in range(3, 7):
        run = play_routed_on_demand(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    for what in ("answered", "loads", "of sequences", "routes set"):
        assert counts[what] > 20, f"{what}: {counts[what]}"


@pytest.mark.slow
def test_so_it_is_in_twenty_five_runs() -> None:
    assert broken(play_routed_on_demand, range(1, 26)) == []
