"""Steps of a generating model take longer after a rest: by how much is measured, and interpolated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
from generating_profiles import steps_of
from trio.testing import MockClock

from trireme.engine.profiles.generation import RestedSteps
from trireme.foresight.planned_steps import RestedTimes
from trireme.foresight.rested_steps import measure_rests, rested_steps


def test_what_steps_take_more_is_told_by_medians() -> None:
    usual, after = (0.010, 0.004, 0.004), (0.015, 0.006, 0.005)
    held_up = (0.9, 0.9, 0.9)
    (found,) = rested_steps({0.0: [usual, held_up, usual], 0.1: [after, after, held_up]})
    assert found.rest_s == 0.1
    assert found.more_s == pytest.approx((0.005, 0.002, 0.001))


def test_a_longer_rest_costs_no_less_and_a_later_step_no_more() -> None:
    usual = (0.01, 0.01, 0.01)
    took = {0.0: [usual], 0.01: [(0.014, 0.012, 0.013)], 0.1: [(0.012, 0.013, 0.009)]}
    short, long = rested_steps(took)
    assert short.more_s == pytest.approx((0.004, 0.002, 0.002))
    assert long.more_s == pytest.approx((0.004, 0.003, 0.002))


def test_a_rest_without_steps_tells_nothing() -> None:
    assert rested_steps({0.0: [(1.0, 1.0, 1.0)], 0.1: []}) == ()


async def test_rests_take_turns(autojump_clock: MockClock) -> None:
    """Steps of this model take a tenth of the rest more, the second one half of that."""
    over_s = trio.current_time()
    rests: list[float] = []

    async def ask() -> Sequence[float]:
        nonlocal over_s
        rests.append(round(trio.current_time() - over_s, 6))
        await trio.sleep(1.0)
        over_s = trio.current_time()
        return [1.0 + rests[-1] / 10, 1.0 + rests[-1] / 20, 1.0]

    found = await measure_rests(ask, 0.0)
    assert rests == [0.0, 0.003, 0.01, 0.03, 0.1, 0.3] * 3
    assert [each.rest_s for each in found] == sorted(set(rests))[1:]
    for each in found:
        assert each.more_s == pytest.approx((each.rest_s / 10, each.rest_s / 20, 0.0))


def test_between_two_rests_it_is_interpolated() -> None:
    rested = (RestedSteps(0.01, (0.002, 0.001)), RestedSteps(0.03, (0.006, 0.001)))
    times = RestedTimes(replace(steps_of(), rested=rested), 2.0)
    assert [times(rest_s, 0) for rest_s in (0.0, 0.005, 0.01, 0.02, 1e9)] == pytest.approx(
        [0, 0.002, 0.004, 0.008, 0.012]
    )
    assert [times(1e9, number) for number in range(4)] == pytest.approx([0.012, 0.002, 0, 0])
    assert RestedTimes(steps_of())(1.0, 0) == 0.0
