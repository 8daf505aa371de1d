"""Owners take turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.fair_queue import FairQueue


def test_an_owner_waits_for_one_item_of_each_other() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.put("many", f"many {number}")
    queue.put("one", "one 0")
    assert [queue.pop() for _ in range(len(queue))] == ["many 0", "one 0", "many 1", "many 2"]
    with pytest.raises(IndexError):
        queue.pop()


@given(st.lists(st.none() | st.sampled_from("abc")))
def test_all_come_out_each_owners_in_order(steps: list[str | None]) -> None:
    """None takes an item; a letter is an owner who puts one in."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    put: list[tuple[str, int]] = []
    taken: list[tuple[str, int]] = []
    for number, owner in enumerate(steps):
        if owner is not None:
            queue.put(owner, (owner, number))
            put.append((owner, number))
        elif len(queue):
            taken.append(queue.pop())
    taken += [queue.pop() for _ in range(len(queue))]
    assert len(queue) == 0
    for owner in "abc":
        assert [item for item in taken if item[0] == owner] == [item for item in put if item[0] == owner]
