"""TargetShares of targets, by key and by turns (`engine.routing.shares`)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.routing.route import Target
from trireme.engine.routing.shares import TargetShares

A, B, C = Target("a"), Target("b", 1), Target("b", 2)
KEYS = [b"client-%d" % number for number in range(100_000)]


def placed(*weights: tuple[Target, float]) -> list[Target | None]:
    shares = TargetShares(weights)
    return [shares.of_key(key) for key in KEYS]


def test_each_target_has_its_weight_of_many_keys() -> None:
    found = Counter(placed((A, 50), (B, 35), (C, 15)))
    assert {target: count / len(KEYS) for target, count in found.items()} == pytest.approx(
        {A: 0.50, B: 0.35, C: 0.15}, abs=0.01
    )


def test_a_share_that_grows_from_5_to_10_percent_moves_few_keys() -> None:
    before, after = placed((A, 95), (B, 5)), placed((A, 90), (B, 10))
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {(A, B)}
    assert len(moved) <= 0.06 * len(KEYS)


def test_a_target_that_is_left_out_moves_its_own_keys_only() -> None:
    before, after = placed((A, 50), (B, 30), (C, 20)), placed((A, 50), (B, 30))
    assert all(new == old for old, new in zip(before, after, strict=True) if old != C)
    found = Counter(new for old, new in zip(before, after, strict=True) if old == C)
    assert found[A] / found[B] == pytest.approx(50 / 30, rel=0.05)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.integers(1, 400))
def test_turns_give_each_target_its_share_of_any_number(weights: list[int], count: int) -> None:
    targets = [(Target("model", number + 1), float(weight)) for number, weight in enumerate(weights)]
    shares = TargetShares(targets)
    found = Counter(shares.next() for _ in range(count))
    total = sum(weights)
    if not total:
        assert found == {None: count}
        return
    for target, weight in targets:
        assert abs(found[target] - count * weight / total) <= 6


def test_turns_go_on_when_weights_change() -> None:
    shares = TargetShares([(A, 50), (B, 50)])
    for _ in range(7):
        shares.next()
    following = TargetShares([(A, 50), (B, 50)], shares.turn)
    assert [following.next() for _ in range(20)] == [shares.next() for _ in range(20)]


def test_without_weight_there_is_no_target() -> None:
    shares = TargetShares([(A, 0)])
    assert (shares.of_key(b"x"), shares.next()) == (None, None)
