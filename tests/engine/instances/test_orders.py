"""Which instances a configuration asks for, and which of those that there are will do
(docs/reference/model-control.md#changes-in-place)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config.instance_groups import RateLimit
from trireme.engine.config.model import InstanceGroup, ModelConfig
from trireme.engine.instances.orders import InstanceOrder, instance_orders, match


def orders(*groups: InstanceGroup, limits: Sequence[RateLimit] = ()) -> list[InstanceOrder]:
    return list(instance_orders(ModelConfig("m", instance_group=groups), limits))


def group(name: str, count: int, **fields: object) -> InstanceGroup:
    return InstanceGroup(name, "KIND_CPU", count, **fields)  # type: ignore[arg-type]


def names(found: Sequence[InstanceOrder]) -> list[str]:
    return [order.spec.name for order in found]


def test_a_group_asks_for_its_count_on_each_device() -> None:
    wanted = orders(group("c", 2), InstanceGroup("g", "KIND_GPU", 2, gpus=(0, 3)), group("p", 1, passive=True))
    assert names(wanted) == ["c_0", "c_1", "g_0", "g_1", "g_2", "g_3", "p_0"]
    assert [order.spec.device_id for order in wanted] == [0, 0, 0, 0, 3, 3, 0]
    assert [order.passive for order in wanted] == [False] * 6 + [True]
    (bound,) = orders(group("b", 1, host_policy="x"))
    assert bound.spec.host_policy == "x"


@pytest.mark.parametrize(
    ("before", "after", "kept", "missing"),
    [
        ([group("a", 2)], [group("a", 3)], ["a_0", "a_1"], ["a_2"]),
        ([group("a", 3)], [group("a", 1)], ["a_0"], []),
        ([group("a", 2)], [group("b", 2)], ["a_0", "a_1"], []),
        ([group("a", 1), group("b", 1)], [group("b", 1)], ["b_0"], []),
        ([group("a", 1)], [group("a", 1, host_policy="x")], [], ["a_0"]),
        ([group("a", 2)], [group("b", 1), group("a", 2)], ["a_0", "a_1"], ["b_0"]),
        ([InstanceGroup("g", "KIND_GPU", 1, (0, 1))], [InstanceGroup("g", "KIND_GPU", 1, (0, 1))], ["g_0", "g_1"], []),
        ([InstanceGroup("g", "KIND_GPU", 1, (0, 1))], [InstanceGroup("g", "KIND_GPU", 1, (1,))], [], ["g_0"]),
    ],
)
def test_what_is_alike_stays(
    before: list[InstanceGroup], after: list[InstanceGroup], kept: list[str], missing: list[str]
) -> None:
    present = orders(*before)
    positions, open_orders = match(present, orders(*after))
    assert [present[position].spec.name for position in sorted(positions)] == kept
    assert names(open_orders) == missing


def test_another_rate_limit_is_another_instance() -> None:
    positions, open_orders = match(
        orders(group("a", 1), limits=[RateLimit(priority=1)]), orders(group("a", 1), limits=[RateLimit(priority=2)])
    )
    assert not positions
    assert names(open_orders) == ["a_0"]


GROUPS = st.lists(st.builds(group, st.sampled_from("ab"), st.integers(1, 4), host_policy=st.sampled_from(["", "x"])))


@given(GROUPS, GROUPS)
def test_afterwards_there_are_the_instances_that_are_wanted(
    before: list[InstanceGroup], after: list[InstanceGroup]
) -> None:
    present, wanted = orders(*before), orders(*after)
    kept, missing = match(present, wanted)
    there = [present[position].likeness for position in kept] + [order.likeness for order in missing]
    assert sorted(map(repr, there)) == sorted(repr(order.likeness) for order in wanted)
