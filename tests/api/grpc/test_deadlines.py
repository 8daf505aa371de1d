"""Deadlines come due in order, are forgotten when their calls end, and leave nothing behind."""

from __future__ import annotations

import math

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from trireme.api.grpc.deadlines import Deadlines, Entry


class Call:
    """Notes when it was told."""

    def __init__(self, name: int = 0, told: list[int] | None = None) -> None:
        self.name = name
        self.told = told if told is not None else []

    def expire(self) -> None:
        self.told.append(self.name)


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=300), st.integers(0, 20))
def test_due_ones_are_told_in_order(calls: list[tuple[int, bool]], now_s: int) -> None:
    """All that are due and were not removed, by deadline and then by arrival; and the count is right."""
    deadlines = Deadlines()
    told: list[int] = []
    entries = [deadlines.add(deadline_s, Call(name, told)) for name, (deadline_s, _) in enumerate(calls)]
    for entry, (_, removed) in zip(entries, calls, strict=True):
        if removed:
            deadlines.remove(entry)
            deadlines.remove(entry)
    left = sorted((deadline_s, name) for name, (deadline_s, removed) in enumerate(calls) if not removed)
    assert len(deadlines) == len(left)
    deadlines.expire(now_s)
    assert told == [name for deadline_s, name in left if deadline_s <= now_s]
    for entry in entries:
        deadlines.remove(entry)
    assert len(deadlines) == 0
    assert deadlines.next_s == math.inf


def test_removed_deadlines_do_not_pile_up() -> None:
    """Ten thousand calls that end in time, beside one that does not."""
    deadlines = Deadlines()
    deadlines.add(1e6, Call())
    most = 0
    for _ in range(10_000):
        deadlines.remove(deadlines.add(1e9, Call()))
        most = max(most, len(deadlines._heap))
    assert most < 200
    assert len(deadlines) == 1


def test_an_ended_call_is_let_go() -> None:
    deadlines = Deadlines()
    entry = deadlines.add(1.0, Call())
    deadlines.add(0.5, Call())
    deadlines.remove(entry)
    assert entry.call is None


async def test_the_task_wakes_at_the_next_deadline(autojump_clock: MockClock) -> None:
    """Also at one that comes in later and is sooner."""
    deadlines = Deadlines()
    times: list[float] = []

    class Timed:
        def expire(self) -> None:
            times.append(round(trio.current_time() - start_s, 3))

    start_s = trio.current_time()
    entries: list[Entry] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.keep_watching)
        await trio.sleep(1)
        entries.append(deadlines.add(start_s + 10, Timed()))
        await trio.sleep(1)
        entries.append(deadlines.add(start_s + 5, Timed()))
        entries.append(deadlines.add(start_s + 7, Timed()))
        deadlines.remove(entries[-1])
        await trio.sleep(20)
        deadlines.add(start_s + 1, Timed())  # it has passed already
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert times == [5, 10, 22]
