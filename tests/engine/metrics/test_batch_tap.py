"""Single batches and requests for who watches: bounded, spread evenly, and nothing without a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from trireme.engine.errors import FailureReason, InternalError, RefusalReason, UnavailableError
from trireme.engine.job import ExecutionBatch, SealReason
from trireme.engine.metrics.batch_tap import FROM_CACHE, MOST_ENDED, MOST_REQUESTS, SUCCEEDED, BatchTap, place_window


class OneJob:
    is_null = False
    received_ns, enqueued_ns = 5, 7


class NullJob(OneJob):
    is_null = True


class OneBatch:
    marks = (10, 20, 30, 40)
    instance_name, gpu, rows, sealed = "m_0_0", None, 3, SealReason.FULL

    def __init__(
        self, jobs: Sequence[OneJob], rescheduled: Sequence[OneJob] = (), failed: Sequence[OneJob] = ()
    ) -> None:
        self.jobs = jobs
        self.rescheduled = rescheduled
        self.answers = [
            (job, InternalError("no") if job in failed else None, True) for job in jobs if job not in rescheduled
        ]


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


def test_of_a_batch_only_requests_are_kept_that_it_has_answered_well() -> None:
    jobs = [OneJob() for _ in range(4)]
    for number, job in enumerate(jobs):
        job.received_ns = number
    tap = BatchTap()
    tap.open(0, 9)
    tap.note(cast(Any, OneBatch(jobs, failed=jobs[1:2])), 1, 50, 3)
    tap.note(cast(Any, OneBatch(jobs, rescheduled=jobs[2:])), 2, 50, 4)
    received = [[request[0] for request in batch.requests] for batch in tap.take()]
    assert received == [[0, 2, 3], [0, 1]], "one has failed, and of the second batch two are executed again"


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


def test_some_requests_are_noted_by_themselves_and_all_are_counted() -> None:
    tap = BatchTap()
    assert not tap.watched
    tap.open(0, 1)
    assert tap.watched
    for number in range(MOST_ENDED + 3):
        tap.note_request(number, number + 5, RefusalReason.QUEUE_FULL)
    taken = tap.take_requests()
    assert (len(taken), tap.unanswered) == (MOST_ENDED, MOST_ENDED + 3)
    assert taken[1] == (1, -1, 6, "refused: queue full", "")
    assert tap.take_requests() == []
    tap.note_request(1, 2, RefusalReason.INVALID, times=7)
    tap.close()
    assert (tap.watched, tap.take_requests(), tap.unanswered) == (False, [], MOST_ENDED + 10)


def test_results_in_words() -> None:
    tap = BatchTap()
    tap.open(0, 1)
    refused = UnavailableError("no", refusal=RefusalReason.QUEUE_TIMEOUT)
    refused.refusal_counted = True
    tap.note_request(1, 9, refused)
    tap.note_request(1, 9, InternalError("no", reason=FailureReason.BACKEND), 5, "m_0_0")
    tap.note_request(1, 9, UnavailableError("gone", reason=FailureReason.CANCELED))
    tap.note_request(1, 9, None, 5, "m_0_0")
    tap.note_request(1, 9)
    results = [(each.result, each.start_ns, each.instance) for each in tap.take_requests()]
    assert results == [
        ("refused: queue timeout", -1, ""),
        ("failed: backend", 5, "m_0_0"),
        ("failed: canceled", -1, ""),
        (SUCCEEDED, 5, "m_0_0"),
        (FROM_CACHE, -1, ""),
    ]
    assert tap.unanswered == 3
