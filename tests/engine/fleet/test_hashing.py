"""The order in which keys prefer replicas (`engine.fleet.hashing`)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.fleet.hashing import BUCKETS, Rendezvous, bucket_of, sequence_key

NAMES = [f"replica-{number}" for number in range(10)]


def rendezvous(names: list[str], weights: list[float] | None = None) -> Rendezvous:
    order = Rendezvous()
    for name, weight in zip(names, weights or [1.0] * len(names), strict=True):
        order.add(name, weight)
    return order


def firsts(order: Rendezvous) -> list[str | None]:
    return [order.first(bucket) for bucket in range(BUCKETS)]


def test_each_replica_is_preferred_by_its_weights_share() -> None:
    weights = [1.0] * 8 + [2.0, 0.5]
    counts = Counter(firsts(rendezvous(NAMES, weights)))
    for name, weight in zip(NAMES, weights, strict=True):
        assert counts[name] == pytest.approx(BUCKETS * weight / sum(weights), rel=0.05)


def test_a_replica_that_comes_or_goes_moves_keys_to_and_from_itself_only() -> None:
    order = rendezvous(NAMES)
    before = firsts(order)
    order.add("new", 1.0)
    after = firsts(order)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"new"}
    assert len(moved) == pytest.approx(BUCKETS / 11, rel=0.05)
    order.remove("new")
    assert firsts(order) == before
    order.remove(NAMES[3])
    assert all(old == new or old == NAMES[3] for old, new in zip(before, firsts(order), strict=True))


def test_where_replicas_are_in_memory_does_not_count() -> None:
    forth, back = rendezvous(NAMES), rendezvous(NAMES[::-1])
    back.remove(NAMES[4])
    firsts(back)
    back.add(NAMES[4], 1.0)
    assert [list(forth.in_order(bucket)) for bucket in range(200)] == [
        list(back.in_order(bucket)) for bucket in range(200)
    ]


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, BUCKETS - 1))
def test_the_order_has_each_replica_once(names: set[str], bucket: int) -> None:
    order = rendezvous(sorted(names))
    ordered = list(order.in_order(bucket))
    assert sorted(ordered) == sorted(names)
    assert order.first(bucket) == (ordered[0] if ordered else None)
    assert len(order) == len(names)


def test_the_second_choices_of_a_replicas_keys_are_spread_over_all_others() -> None:
    order = rendezvous(NAMES)
    seconds: Counter[str] = Counter()
    for bucket in range(BUCKETS):
        if order.first(bucket) == NAMES[0]:
            ordered = order.in_order(bucket)
            next(ordered)
            seconds[next(ordered)] += 1
    assert min(seconds.values()) > 0.8 * max(seconds.values())


def test_keys_of_sequences_tell_numbers_from_texts_and_models_apart() -> None:
    keys = [sequence_key("m", 5), sequence_key("m", "5"), sequence_key("n", 5), sequence_key("m", 6)]
    assert len({bucket_of(key) for key in keys}) == len(keys)
