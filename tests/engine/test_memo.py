"""The bounded memory of what clients repeat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.grpc.infer_reader import InferReader
from trireme.api.http.h1.messages import HeadMemory
from trireme.api.http.infer.decoder import InferDecoder
from trireme.api.http.infer.request import InferTerms
from trireme.api.http.routes import Router
from trireme.api.http2.headers import HeaderReader
from trireme.api.http2.limits import Http2Limits
from trireme.engine.memo import Memo
from trireme.engine.memory.regions import Regions


@given(st.lists(st.binary(max_size=3)), st.integers(0, 5), st.integers(0, 3))
def test_it_holds_the_newest_entries_and_no_long_keys(keys: list[bytes], limit: int, max_key_bytes: int) -> None:
    """As a list of the keys in the order in which they came would say, of which the first goes when it is full."""
    memo: Memo[int] = Memo(limit, max_key_bytes)
    expected: dict[bytes, int] = {}
    for number, key in enumerate(keys):
        memo.remember(key, number)
        if limit and len(key) <= max_key_bytes:
            if key not in expected and len(expected) == limit:
                expected.pop(next(iter(expected)))
            expected[key] = number
        assert memo == expected
        assert len(memo) <= limit
    assert [memo.get(key) for key in keys] == [expected.get(key) for key in keys]


def test_only_one_entry_goes_for_a_new_one() -> None:
    memo: Memo[int] = Memo(3, 10)
    for number in range(4):
        memo.remember(b"%d" % number, number)
    assert memo == {b"1": 1, b"2": 2, b"3": 3}


def test_looking_up_costs_no_call_of_ours() -> None:
    """Small requests look into several of these."""
    assert Memo.get is dict.get
    assert Memo.__getitem__ is dict.__getitem__


@pytest.mark.parametrize(
    "memo",
    [
        lambda: Router()._matches,
        HeadMemory,
        lambda: InferDecoder(InferTerms(1, Regions()))._heads,
        lambda: InferReader(Regions())._heads,
        lambda: HeaderReader(Http2Limits(), list).heads,
    ],
    ids=["paths", "HTTP heads", "JSON heads", "gRPC heads", "header blocks"],
)
def test_all_front_ends_remember_this_way(memo: Callable[[], object]) -> None:
    made = memo()
    assert isinstance(made, Memo)
    assert made.max_key_bytes <= 4_096
    assert made.limit * made.max_key_bytes <= 4 << 20


@pytest.mark.parametrize(
    "memo",
    [lambda: Router()._matches, HeadMemory, lambda: InferReader(Regions())._heads],
    ids=["paths", "HTTP heads", "gRPC heads"],
)
def test_what_names_a_model_is_remembered_of_a_thousand_asked_in_turn(memo: Callable[[], Memo[object]]) -> None:
    """The oldest makes room: of more than there is room for, asked in turn, nothing would ever be found again."""
    held = memo()
    names = [b"model_%d" % number for number in range(1_000)]
    for name in names:
        held.remember(name, name)
    assert all(name in held for name in names)
