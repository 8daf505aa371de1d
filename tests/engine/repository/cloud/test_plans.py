"""What is fetched into the cache, and what leaves it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.repository.cloud.listing import RemoteObject
from trireme.engine.repository.cloud.plans import (
    CachedFile,
    merged,
    plan_cleaning,
    plan_fetch,
    progress_text,
    ranges_left,
    same_bytes,
    size_text,
)


def one(name: str, size: int = 3, tag: str = "t", modified_ns: int = 5) -> RemoteObject:
    return RemoteObject(name, name, size, tag, True, modified_ns)


def test_what_is_complete_is_kept() -> None:
    kept, gone, short, touched, part = (one(name) for name in ("kept", "gone", "short", "touched", "part"))
    cached = {
        kept.key: CachedFile(3, 5),
        short.key: CachedFile(2, 5),
        touched.key: CachedFile(3, 6),
        part.key: CachedFile(3, 5, partial=True),
        one("kept", tag="other").key: CachedFile(3, 5),
    }
    plan = plan_fetch([kept, gone, short, touched, part], cached)
    assert plan.keep == (kept,)
    assert plan.fetch == (gone, short, touched, part)


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair))))


@given(size=st.integers(0, 40), done=RANGES, step=st.integers(1, 12))
def test_ranges_left_are_what_is_not_done(size: int, done: list[tuple[int, int]], step: int) -> None:
    left = ranges_left(size, done, step)
    there = {byte for first, end in done for byte in range(first, end)}
    fetched = [byte for first, end in left for byte in range(first, end)]
    assert fetched == [byte for byte in range(size) if byte not in there]
    assert all(0 < end - first <= step for first, end in left)


@given(RANGES)
def test_merged_ranges_hold_the_same_bytes(ranges: list[tuple[int, int]]) -> None:
    joined = merged(ranges)
    bytes_of = [{byte for first, end in each for byte in range(first, end)} for each in (ranges, joined)]
    assert bytes_of[0] == bytes_of[1]
    assert all(one_end < first for (_, one_end), (first, _) in itertools.pairwise(joined))


FILES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(
        CachedFile,
        size=st.integers(0, 9),
        used=st.booleans(),
        used_ns=st.integers(0, 5),
        listed=st.booleans(),
        partial=st.booleans(),
    ),
)


@given(files=FILES, limit=st.none() | st.integers(0, 40))
def test_what_leaves_the_cache(files: dict[str, CachedFile], limit: int | None) -> None:
    leaving = plan_cleaning(files, limit)
    may = {key for key, file in files.items() if not file.used and not (file.partial and file.listed)}
    assert set(leaving) <= may
    if limit is None:
        assert set(leaving) == {key for key in may if not files[key].listed}
        return
    rest = sum(file.size for key, file in files.items() if key not in leaving)
    assert rest <= limit or set(leaving) == may
    if leaving:  # the last one had to go
        assert rest + files[leaving[-1]].size > limit
    ages = [(files[key].listed, files[key].used_ns) for key in leaving]
    assert ages == sorted(ages)
    stays = [(files[key].listed, files[key].used_ns) for key in may - set(leaving)]
    assert all(age <= other for age in ages for other in stays)


def test_listings_of_the_same_contents() -> None:
    assert same_bytes([one("a"), one("b")], [one("b", modified_ns=9), one("a")])
    assert not same_bytes([one("a")], [one("a", tag="u")])
    assert not same_bytes([one("a")], [one("a"), one("b")])


@pytest.mark.parametrize(
    ("done", "total", "progress", "size"),
    [
        (0, 0, "100 % (0 of 0 bytes)", "0 bytes"),
        (3, 12, "25 % (3 of 12 bytes)", "12 bytes"),
        (512, 2048, "25 % (0.5 of 2.0 KiB)", "2.0 KiB"),
        (5 << 20, 10 << 20, "50 % (5.0 of 10.0 MiB)", "10.0 MiB"),
        (1 << 30, 3 << 30, "33 % (1.0 of 3.0 GiB)", "3.0 GiB"),
    ],
)
def test_texts(done: int, total: int, progress: str, size: str) -> None:
    assert (progress_text(done, total), size_text(total)) == (progress, size)
