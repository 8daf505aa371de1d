"""Optimisation profiles: which of them an instance has, and which of them a batch gets."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fake_plans import plan, tensor
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.tensorrt.library import OptimizationProfile, Range, choose
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError, TriremeError
from trireme.engine.tensor import Tensor

WIDE = """
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
SMALL = ((1, 1), (1, 4), (2, 8))
LARGE = ((1, 4), (8, 32), (8, 64))
HUGE = ((1, 100), (8, 200), (8, 300))


def three_profiles() -> bytes:
    return plan("double", [tensor("IN", (-1, -1), SMALL, LARGE, HUGE)], [tensor("OUT", (-1, -1))])


def request(rows: int, columns: int) -> list[Tensor]:
    return [Tensor("IN", FP32, (rows, columns), bytes(rows * columns * 4))]


def used(machine: Any, runner: Any, rows: int, columns: int) -> int:
    """The profile that a batch is executed with."""
    runner.launch(request(rows, columns))
    (context,) = [context for context in machine.trt.contexts if context.flying]
    machine.gpus.run()
    return context.profile


@pytest.mark.parametrize(
    ("rows", "columns", "index"),
    [
        (1, 4, 0),  # both allow it, the first is made for it
        (2, 8, 0),  # |2-1| + |8-4| against |2-8| + |8-32|
        (3, 5, 1),  # only the second allows three rows
        (1, 9, 1),
        (8, 100, 2),
    ],
)
def test_a_batch_gets_the_nearest_profile_that_allows_it(machine: Any, rows: int, columns: int, index: int) -> None:
    group = 'gpus: [ 0 ] profile: [ "0", "1", "2" ]'
    runner = machine.start(three_profiles(), machine.config(tensors=WIDE, group=group))
    assert used(machine, runner, rows, columns) == index


def test_an_instance_has_the_first_profile_unless_its_group_names_others(machine: Any) -> None:
    runner = machine.start(three_profiles(), machine.config(tensors=WIDE))
    assert [context.profile for context in machine.trt.contexts] == [0]
    with pytest.raises(InternalError, match=r"dimension 1 to be between 1 and 8 but received 9$"):
        runner.launch(request(1, 9))


def test_groups_have_profiles_of_their_own(machine: Any) -> None:
    config = machine.config(
        'max_batch_size: 8 instance_group { name: "other" kind: KIND_GPU count: 1 gpus: [ 0 ] profile: [ "2", "2" ] }',
        WIDE,
    )
    machine.load(three_profiles(), config)
    machine.loaded.create_instance(InstanceSpec("other_0", "KIND_GPU", 0))
    assert [context.profile for context in machine.trt.contexts] == [2]


def test_what_fits_no_profile_is_refused_by_the_first_and_logged(
    machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    group = 'gpus: [ 0 ] profile: [ "0", "1" ]'
    runner = machine.start(three_profiles(), machine.config(tensors=WIDE, group=group))
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError) as caught:
        runner.launch(request(1, 65))
    assert str(caught.value) == (
        "request specifies invalid shape for input 'IN' for m_0. Error details: model expected the shape of dimension "
        "1 to be between 1 and 8 but received 65"
    )
    (logged,) = caplog.messages
    assert logged == (
        "failed to find any Optimization Profile among [ 0[0] 1[1]] to support the requested dimensions (or shape "
        "values), proceeding with first profile."
    )


def test_a_profile_that_is_not_there(machine: Any) -> None:
    error = machine.refusal(three_profiles(), machine.config(tensors=WIDE, group='gpus: [ 0 ] profile: [ "3" ]'))
    assert error.status_text == (
        "Invalid argument: Can not set the specified optimization profile 3[3] for m_0. Expected optimization profile "
        "index range 0-2"
    )


def test_a_profile_that_cannot_be_set(machine: Any) -> None:
    """The binding raises, and only the log says why."""
    machine.trt.refuses_profiles = True
    error = machine.refusal(three_profiles(), machine.config(tensors=WIDE))
    assert str(error) == (
        "Can not set the specified optimization profile default[0] for m_0: setOptimizationProfileAsync: no profile 0"
    )


def test_a_configuration_that_fixes_what_a_profile_does_not_allow(machine: Any) -> None:
    error = machine.refusal(three_profiles(), machine.config(tensors=WIDE.replace("-1", "9")))
    assert error.status_text == (
        "Invalid argument: model configuration specified invalid shape for input 'IN' for model m. Error details: "
        "model expected the shape of dimension 1 to be between 1 and 8 but received 9"
    )


def test_the_allocation_strategy_is_what_the_parameter_says(machine: Any) -> None:
    parameter = (
        'parameters { key: "execution_context_allocation_strategy" value { string_value: "ON_PROFILE_CHANGE" } }'
    )
    machine.start(three_profiles(), machine.config(f"max_batch_size: 2 {parameter}", WIDE))
    assert [context.strategy.name for context in machine.trt.contexts] == ["ON_PROFILE_CHANGE"]


dims = st.lists(st.integers(0, 6), min_size=3, max_size=3).map(sorted)
ranges = st.tuples(dims, dims).map(lambda pair: Range(*zip(*pair, strict=True)))


@given(st.lists(ranges, min_size=1, max_size=4), st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_the_choice_is_the_nearest_of_those_that_fit(allowed: list[Range], shape: tuple[int, int]) -> None:
    """Against a definition that looks at all of them."""
    profiles = [OptimizationProfile(at, str(at), {"IN": one}, {}) for at, one in enumerate(allowed)]
    fitting = [
        profile
        for profile, one in zip(profiles, allowed, strict=True)
        if all(least <= dim <= most for least, dim, most in zip(one.minimum, shape, one.maximum, strict=True))
    ]
    if not fitting:
        with pytest.raises(TriremeError):
            choose(profiles, {"IN": shape}, {}, "m_0")
        return
    far = {p.index: sum(abs(a - b) for a, b in zip(p.shapes["IN"].optimum, shape, strict=True)) for p in fitting}
    assert choose(profiles, {"IN": shape}, {}, "m_0").index == min(far, key=lambda index: far[index])
