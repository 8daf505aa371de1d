"""Figures of a log that was played."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from trireme.clients.played import UNANSWERED, PlayedLog
from trireme.engine.logs.request_log import LoggedRequest, RequestTraffic


def played(latencies_s: list[float], statuses: list[int]) -> PlayedLog:
    count = len(latencies_s)
    scheduled = np.arange(count) / 100
    sent = scheduled + np.where(np.arange(count) % 50 == 0, 0.002, 0.0)
    reason = np.array([0 if status == UNANSWERED else 1 for status in statuses])
    requests = [LoggedRequest(at_s, "m", rows=2) for at_s in scheduled.tolist()]
    arrays = scheduled, sent, np.array(latencies_s), np.array(statuses), reason
    return PlayedLog(RequestTraffic(requests), *arrays, ["not answered in time", "full"])


def test_figures() -> None:
    seen = played([0.001 * (at + 1) for at in range(98)] + [0.5, math.nan], [0] * 98 + [503, UNANSWERED])
    summary = seen.summary(objective_s=0.05)
    assert (summary.requests, summary.answered, summary.refused, summary.unanswered) == (100, 98, 1, 1)
    assert summary.seconds == pytest.approx(0.98 + 0.5)
    assert summary.throughput == pytest.approx(98 / 1.48)
    assert summary.goodput == pytest.approx(50 / 1.48)
    assert (summary.p50_s, summary.most_s) == (pytest.approx(0.0495), pytest.approx(0.098))
    assert (summary.late, dict(summary.reasons)) == (2, {"full": 1, "not answered in time": 1})
    assert json.loads(json.dumps(summary.document()))["answered"] == 98
    assert list(seen.since_sent_s[[0, 1, 50]]) == pytest.approx([-0.001, 0.002, 0.049])


def test_what_was_due_in_the_warm_up_does_not_count() -> None:
    summary = played([0.001] * 100, [0] * 100).summary(warm_up_s=0.505)
    assert (summary.requests, summary.seconds) == (49, pytest.approx(0.481))


def test_nothing_was_answered() -> None:
    summary = played([math.nan] * 2, [UNANSWERED] * 2).summary()
    assert (summary.answered, summary.throughput) == (0, 0.0)
    assert math.isnan(summary.p99_s)
    assert summary.document()["p99_s"] is None


def test_a_line_a_request() -> None:
    first, second = map(json.loads, played([0.25, math.nan], [0, UNANSWERED]).lines())
    assert first == {"scheduled_s": 0.0, "sent_s": 0.002, "latency_s": 0.25, "model": "m", "rows": 2, "status": 0}
    assert (second["latency_s"], second["reason"]) == (None, "not answered in time")
