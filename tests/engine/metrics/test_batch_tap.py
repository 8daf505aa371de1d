"""Single batches for who watches: bounded, spread evenly, and nothing without a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from trireme.engine.job import ExecutionBatch, SealReason
from trireme.engine.metrics.batch_tap import MOST_REQUESTS, MOST_STREAMS, BatchTap, place_window


class OneJob:
    is_null = False
    received_ns, enqueued_ns = 5, 7


class NullJob(OneJob):
    is_null = True


class OneBatch:
    marks = (10, 20, 30, 40)
    instance_name, gpu, rows, sealed = "m_0_0", None, 3, SealReason.FULL
    answers = ("some",)

    def __init__(self, jobs: Sequence[OneJob]) -> None:
        self.jobs = jobs


def note(tap: BatchTap, number: int, *jobs: OneJob, succeeded: int = 1) -> None:
    tap.note(cast(ExecutionBatch, cast(Any, OneBatch(jobs or (OneJob(),)))), number, 50, succeeded)


def test_a_window_takes_in_so_many_batches_after_others() -> None:
    tap = BatchTap()
    tap.open(2, 3)
    for number in range(1, 9):
        if tap.left:
            note(tap, number)
    assert [batch.number for batch in tap.take()] == [3, 4, 5]
    assert tap.take() == []
    assert tap.left == 0


def test_of_a_batch_times_and_sizes_are_kept() -> None:
    tap = BatchTap()
    tap.open(0, 1)
    note(tap, 9, OneJob(), NullJob(), OneJob(), succeeded=1)
    (batch,) = tap.take()
    assert batch == (9, "m_0_0", None, 3, "full", (10, 20, 30, 40), 50, [(5, 7), (5, 7)], 2, 1, [0, 2])


def test_the_rows_of_a_batch_with_gaps_are_kept() -> None:
    tap = BatchTap()
    tap.open(0, 2)
    note(tap, 1, OneJob(), NullJob(), OneJob(), NullJob())
    note(tap, 2, OneJob(), OneJob())
    assert [list(batch.slots) for batch in tap.take()] == [[0, 2], []]


def test_of_large_batches_some_requests_are_kept() -> None:
    tap = BatchTap()
    tap.open(0, 1)
    note(tap, 1, *[OneJob() for _ in range(MOST_REQUESTS + 9)])
    (batch,) = tap.take()
    assert (len(batch.requests), batch.request_count) == (MOST_REQUESTS, MOST_REQUESTS + 9)


def test_closing_forgets() -> None:
    tap = BatchTap()
    tap.open(0, 5)
    note(tap, 1)
    tap.close()
    assert (tap.left, tap.take()) == (0, [])


@pytest.mark.parametrize(("expected", "most"), [(0, 10), (10, 10), (3, 10)])
def test_a_window_that_is_large_enough_begins_at_once(expected: int, most: int) -> None:
    assert place_window(expected, most, 17) == 0


def test_small_windows_are_spread_evenly() -> None:
    places = [place_window(1000, 100, turn) for turn in range(1, 91)]
    assert all(0 <= place < 900 for place in places)
    tenths = [sum(at * 90 <= place < (at + 1) * 90 for place in places) for at in range(10)]
    assert min(tenths) >= 7
    assert max(tenths) <= 11


def test_streams_are_noted_while_there_is_room() -> None:
    tap = BatchTap()
    assert tap.room == 0
    tap.open(0, 1)
    for number in range(MOST_STREAMS + 3):
        if tap.room:
            tap.note_stream("m_0_0", number, number + 5, failed=False)
    assert len(tap.take_streams()) == MOST_STREAMS
    assert tap.take_streams() == []
    tap.open(0, 1)
    tap.note_stream("m_0_0", 1, 2, failed=True)
    tap.close()
    assert (tap.room, tap.take_streams()) == (0, [])
