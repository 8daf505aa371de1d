"""Swarm runs of the router alone (`simulations.router_swarm`)."""

from __future__ import annotations

from collections import Counter

import pytest
from many_seeds import broken

from trireme.simulations.planted import planted
from trireme.simulations.planted.routes import ROUTE_BUGS
from trireme.simulations.router_swarm import play_router


def test_whatever_happens_each_decision_is_what_the_rules_leave() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 61):
        run = play_router(seed)
        assert not run.violation, f"seed {seed}: {run.violation}"
        counts += run.counts
    for what in ("turn", "keyed", "sequence", "no route", "cannot serve", "copied", "missed", "replaced", "refused"):
        assert counts[what] > 10, f"{what}: {counts[what]}"
    for what in ("step", "overdue", "back", "done", "stopped"):
        assert counts[what] > 5, f"{what}: {counts[what]}"


@pytest.mark.slow
def test_so_it_is_in_five_hundred_runs() -> None:
    assert broken(play_router, range(61, 561)) == []


@pytest.mark.parametrize("bug", ROUTE_BUGS)
def test_a_planted_bug_of_the_router_is_found_within_two_hundred_seeds(bug: str) -> None:
    with planted(bug):
        found = next((seed for seed in range(1, 201) if play_router(seed).violation), None)
    assert found is not None, f"{bug} was not found"
    assert not play_router(found).violation, "the seed finds the planted bug, not another one"
