"""How the interpreter is set for an event loop: what the garbage collector may look through at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from trireme.api.cli.interpreter import settle_memory

MOST_AT_ONCE = 25_000
"""Objects that live on, at 1 µs each and more: clients beside a crowd are to wait for 50 ms at most."""


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_one_collection_looks_through_few_of_the_objects_that_a_crowd_holds(collector: None) -> None:
    settle_memory()
    youngest, middle, oldest = gc.get_threshold()
    assert youngest * middle <= MOST_AT_ONCE
    assert youngest * middle * oldest >= 25_000_000  # all that live long are looked through hardly ever
