"""Canaries under drawn traffic: bad ones go back in their first step, good ones get all (`simulations.canaries`)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from many_seeds import in_processes, wrong_canary

from trireme.simulations.canaries import MOST_REQUESTS, CanaryKind, draw_canary, play_canary


def wrong(seeds: range, kind: CanaryKind, heavy: bool = False) -> list[str]:
    """What did not end as it should."""
    return [text for text in in_processes(partial(wrong_canary, kind=kind, heavy=heavy), seeds) if text]


@pytest.mark.parametrize("kind", CanaryKind)
def test_each_canary_ends_as_it_should(kind: CanaryKind) -> None:
    assert [wrong_canary(seed, kind) for seed in range(1, 4)] == [""] * 3


@pytest.mark.parametrize("seed", [15, 20, 21, 54])
def test_latencies_that_hardly_differ_and_rise_with_the_load_hide_no_slow_canary(seed: int) -> None:
    """While they rise, requests of both sides take longer than the others' known 99th percentile."""
    plan = draw_canary(seed, CanaryKind.SLOW)
    plan = replace(plan, shape="constant", swell=0.5, swell_s=300.0 if seed % 2 else 600.0)
    assert play_canary(plan).right(plan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CanaryKind)
def test_of_many_canaries_none_ends_otherwise(kind: CanaryKind) -> None:
    """What came of thousands is in docs/simulations.md: they take half an hour."""
    assert not wrong(range(4, 31), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CanaryKind)
def test_of_latencies_with_a_heavy_tail_few_are_taken_for_another(kind: CanaryKind) -> None:
    assert len(wrong(range(1, 13), kind, heavy=True)) <= 1


def test_a_canary_of_a_seed_is_always_the_same_and_says_what_happened() -> None:
    plan = draw_canary(2, CanaryKind.GOOD)
    end = play_canary(plan)
    assert (plan, end) == (draw_canary(2, CanaryKind.GOOD), play_canary(plan))
    assert [event.percent for event in end.events if event.step_began] == [10, 50, 100]
    assert end.new < end.seen < MOST_REQUESTS
