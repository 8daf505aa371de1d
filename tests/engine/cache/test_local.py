"""The local cache: what it keeps, what it forgets, what it says about that."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.cache import EntryTooLargeError, LocalCache
from trireme.engine.cache.caches import OVERHEAD_BYTES
from trireme.engine.clock import SystemClock
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.metrics.page import write_text


def local(size: int) -> LocalCache:
    return LocalCache({"size": str(size)}, SystemClock())


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    cache = local(3 * (OVERHEAD_BYTES + 10))
    for key in "abc":
        assert cache.insert(key, b"x" * 10)
    assert cache.lookup("a") is not None
    assert cache.insert("d", b"x" * 10)
    assert [cache.lookup(key) is not None for key in "abcd"] == [True, False, True, True]


def test_an_entry_is_never_replaced() -> None:
    cache = local(10_000)
    assert cache.insert("a", b"first")
    assert not cache.insert("a", b"second")
    assert cache.lookup("a") == b"first"


def test_an_entry_larger_than_the_cache_leaves_the_others_alone() -> None:
    cache = local(1000)
    cache.insert("a", b"x")
    with pytest.raises(EntryTooLargeError, match="Requested byte_size: 1320 is greater than total cache size: 1000"):
        cache.insert("b", b"x" * 1000)
    assert cache.lookup("a") == b"x"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("insert"), st.sampled_from("abcdef"), st.integers(0, 900)),
            st.tuples(st.just("lookup"), st.sampled_from("abcdef"), st.just(0)),
        )
    )
)
def test_it_holds_what_a_simple_map_with_a_limit_would_hold(steps: list[tuple[str, str, int]]) -> None:
    """Against a model of it, written without care for speed; and its bytes never exceed the limit."""
    cache = local(2000)
    kept: OrderedDict[str, bytes] = OrderedDict()
    for what, key, length in steps:
        if what == "lookup":
            assert cache.lookup(key) == kept.get(key)
            if key in kept:
                kept.move_to_end(key)
        else:
            entry = b"x" * length
            new = cache.insert(key, entry)
            assert new == (key not in kept)
            if new:
                kept[key] = entry
            while sum(len(value) + OVERHEAD_BYTES for value in kept.values()) > 2000:
                kept.popitem(last=False)
        assert cache._used == sum(len(value) + OVERHEAD_BYTES for value in kept.values()) <= 2000


def test_it_tells_the_metrics_what_triton_tells() -> None:
    """Names, texts and order of docs/reference/response-cache.md#metrics-of-the-local-cache."""
    cache = local(2 * OVERHEAD_BYTES + 160)
    cache.insert("a", b"x" * 80)
    cache.insert("b", b"x" * 80)
    cache.insert("c", b"x" * 80)
    cache.lookup("a")
    cache.lookup("b")
    cache.lookup("c")
    lines = [line for line in write_text(cache.families()).splitlines() if not line.startswith("#")]
    assert lines[:6] == [
        "nv_cache_util 1",
        "nv_cache_num_entries 2",
        "nv_cache_num_hits 2",
        "nv_cache_num_misses 1",
        "nv_cache_num_lookups 3",
        "nv_cache_num_evictions 1",
    ]
    assert [line.split()[0] for line in lines[6:]] == ["nv_cache_lookup_duration", "nv_cache_insertion_duration"]
    assert "# TYPE nv_cache_util gauge" in write_text(cache.families())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "Failed to initialize LocalCache: config didn't contain a valid 'size' field."),
        ({"size": "many"}, "Failed to initialize LocalCache: 'size' is a number of bytes, not 'many'"),
        ({"size": "100"}, "Failed to initialize LocalCache: 'size' is at least 128 bytes, got 100"),
        ({"size": "-5"}, "Failed to initialize LocalCache: 'size' is at least 128 bytes, got -5"),
        ({"size": "1000", "host": "x"}, "Failed to initialize LocalCache: it has no setting 'host', only 'size'"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        LocalCache(settings, SystemClock())
    assert raised.value.message == text
