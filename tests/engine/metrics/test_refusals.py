"""Which reason a refusal is counted by, and how the metric looks."""

from __future__ import annotations

from copy import copy

import pytest

from trireme.engine.errors import (
    CancelledError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RefusalReason,
    TriremeError,
    UnavailableError,
    UnsupportedError,
)
from trireme.engine.metrics.page import write_text
from trireme.engine.metrics.refusals import RefusalCounts, count_refusal, refused_families
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFoundError("x"), RefusalReason.UNKNOWN_MODEL),
        (UnavailableError("x"), RefusalReason.NOT_READY),
        (UnavailableError("x", refusal=RefusalReason.QUEUE_FULL), RefusalReason.QUEUE_FULL),
        (InvalidArgumentError("x"), RefusalReason.INVALID),
        (UnsupportedError("x"), RefusalReason.INVALID),
        (InternalError("x"), RefusalReason.INVALID),
        (CancelledError("x"), None),
        (DeadlineError("x"), None),
    ],
)
def test_an_error_without_a_reason_of_its_own_is_counted_by_its_kind(
    error: TriremeError, reason: RefusalReason | None
) -> None:
    counts: dict[RefusalReason, int] = {}
    count_refusal(counts, error)
    assert counts == ({} if reason is None else {reason: 1})
    assert error.refusal_counted


def test_a_copy_of_an_error_that_was_counted_is_marked_too() -> None:
    error = UnavailableError("x", refusal=RefusalReason.STOPPING)
    assert not copy(error).refusal_counted
    count_refusal({}, error)
    assert copy(error).refusal_counted
    assert copy(error).refusal_reason is RefusalReason.STOPPING


def test_the_series_without_a_model_are_all_there_and_those_of_models_when_they_occur() -> None:
    counts = RefusalCounts()
    counts.count(RefusalReason.UNKNOWN_MODEL)
    statistics = ModelStatistics()
    counts.count(RefusalReason.QUEUE_FULL, statistics.refused)
    counts.count(RefusalReason.QUEUE_FULL, statistics.refused)
    entry = ModelStatisticsEntry("m", 3, statistics)
    lines = write_text(refused_families([entry], counts.counts)).splitlines()
    assert lines[1] == "# TYPE trireme_refused_total counter"
    assert lines[2:-1] == [
        f'trireme_refused_total{{reason="{reason.value}"}} {int(reason is RefusalReason.UNKNOWN_MODEL)}'
        for reason in RefusalReason
    ]
    assert lines[-1] == 'trireme_refused_total{model="m",reason="queue_full",version="3"} 2'
