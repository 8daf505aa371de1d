"""The search: what is played, on how much of the log, and what is chosen. Nothing is played here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.foresight.search.objective import Aim, PlanObjective, read_objective
from trireme.foresight.search.searching import FINALISTS, PlanSearch, SearchState
from trireme.foresight.search.settings import ModelSetting, PlanSetting
from trireme.foresight.search.space import PlanSpace
from trireme.foresight.search.trials import Trial
from trireme.foresight.summary import RunSummary

OBJECTIVE = read_objective("p99<50ms", Aim.INSTANCES)


def space(instances: int, delays: int) -> PlanSpace:
    settings = tuple(
        ModelSetting(count, 8, True, delay_us=delay * 100, queue_limits=(0,))
        for count in range(1, instances + 1)
        for delay in range(delays)
    )
    return PlanSpace(PlanSetting((("m", settings[-1]),)), {"m": settings})


def trial(setting: PlanSetting, requests: int = 1_000, plays: int = 1, **figures: float) -> Trial:
    """As if more instances and one certain delay made it faster."""
    its = setting.of("m")
    p99_s = 0.12 / its.instances + abs(its.delay_us - 700) * 1e-6
    summary = replace(RunSummary(1_000, 1_000, p99_s / 3, p99_s / 2, p99_s, p99_s / 3, 100.0), **figures)
    return Trial(setting, requests, (summary,) * plays, {}, (summary.throughput,) * plays)


def search_through(space: PlanSpace, count: int, objective: PlanObjective = OBJECTIVE, seed: int = 1) -> PlanSearch:
    search = PlanSearch(space, objective, 9_000, count=count, plays=3, seed=seed)
    while (asked := search.next()) is not None:
        assert asked.plays == (3 if search.state is SearchState.FINAL else 1)
        assert len(set(asked.settings)) == len(asked.settings) > 0
        search.told([trial(setting, asked.requests, asked.plays) for setting in asked.settings])
    return search


def test_a_small_space_is_played_as_a_whole_and_its_best_found() -> None:
    everything = space(4, 10)
    search = search_through(everything, 200)
    assert set(search.seen) == set(everything.all())
    chosen = search.final[0].setting.of("m")
    assert (chosen.instances, chosen.delay_us) == (3, 700)


def test_hopeless_settings_are_played_on_the_beginning_only() -> None:
    search = search_through(space(4, 10), 200)
    assert len(search.whole) <= 1 + round(40 / 9) + 1
    assert search.next() is None


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 120), st.integers(0, 5))
def test_the_search_ends_and_keeps_to_its_number(instances: int, delays: int, count: int, seed: int) -> None:
    where = space(instances, delays)
    search = search_through(where, count, seed=seed)
    assert len(search.seen) <= min(count, len(where))
    assert len(search.final) <= FINALISTS + 1
    assert where.present in {each.setting for each in search.final}
    best = min(search.final, key=lambda each: each.order(OBJECTIVE))
    assert search.final[0].is_like(best, OBJECTIVE)


def test_neighbours_lead_to_the_best_of_a_large_space() -> None:
    search = search_through(space(8, 300), 200)
    assert search.final[0].setting.instances == 3
    assert abs(search.final[0].setting.of("m").delay_us - 700) <= 9_000
    assert search.final[0].keeps(OBJECTIVE)


def test_the_same_seed_makes_the_same_search() -> None:
    once, again, other = (search_through(space(8, 40), 60, seed=seed) for seed in (1, 1, 2))
    assert list(once.seen) == list(again.seen)
    assert list(once.seen) != list(other.seen)


def test_settings_that_cannot_be_served_are_left_out() -> None:
    search = PlanSearch(space(1, 4), OBJECTIVE, 9_000, count=10, plays=3, seed=1)
    search.told([])
    assert search.next() is None
    assert search.final == []


def test_missing_the_bound_by_less_is_better_than_having_fewer_instances() -> None:
    slow, quick, many = (
        trial(PlanSetting((("m", ModelSetting(count, 8)),)), p99_s=p99_s)
        for count, p99_s in ((1, 0.09), (2, 0.06), (3, 0.04))
    )
    assert sorted([slow, quick, many], key=lambda each: each.order(OBJECTIVE)) == [many, quick, slow]


@pytest.mark.parametrize("aim", [Aim.THROUGHPUT, Aim.GOODPUT])
def test_more_is_better_and_what_is_alike_is_decided_by_latency(aim: Aim) -> None:
    objective = read_objective("p99<50ms", aim)
    setting = PlanSetting((("m", ModelSetting(2, 8)),))
    much, alike, little = (
        trial(setting, throughput=throughput, p99_s=p99_s)
        for throughput, p99_s in ((100.0, 0.03), (100.01, 0.02), (60.0, 0.01))
    )
    assert sorted([little, much, alike], key=lambda each: each.order(objective)) == [alike, much, little]


def test_nine_of_ten_plays_decide() -> None:
    setting = PlanSetting((("m", ModelSetting()),))
    good, bad = trial(setting, p99_s=0.04).overall[0], trial(setting, p99_s=0.06).overall[0]
    for bad_ones, kept in ((1, True), (2, False)):
        plays = (*[good] * (11 - bad_ones), *[bad] * bad_ones)
        assert Trial(setting, 1_000, plays).keeps(OBJECTIVE) is kept


def test_chance_is_no_reason_to_change_a_setting() -> None:
    """Of what is alike, the one that is most like the present one is chosen; what is surely better is chosen anyway."""
    where = space(2, 1)
    present = where.present
    for lower_s, chosen_delay in ((0.029, 0), (0.019, 100)):
        search = PlanSearch(PlanSpace(present, {"m": (present.of("m"),)}), OBJECTIVE, 100, count=5, plays=2, seed=1)
        search.told([trial(present)])
        assert search.state is SearchState.FINAL
        other = present.with_model("m", replace(present.of("m"), delay_us=100))
        now, better = (
            Trial(setting, 100, tuple(trial(setting, p99_s=p99_s).overall[0] for p99_s in plays))
            for setting, plays in ((present, (0.028, 0.032)), (other, (lower_s - 0.002, lower_s)))
        )
        search.told([now, better])
        assert search.final[0].setting.of("m").delay_us == chosen_delay
