"""What a scheduler counts."""

from __future__ import annotations

import math

from trireme.engine.clock import SystemClock
from trireme.engine.metrics.statistics import Histogram, ModelStatistics
from trireme.engine.request import InferenceResponse
from trireme.engine.scheduling.dispatcher import Accounts


def test_a_request_with_several_responses_has_one_first_response(make_job) -> None:
    statistics = ModelStatistics(first_responses=Histogram((10,)))
    accounts = Accounts(statistics, SystemClock())
    job = make_job(1)
    for _ in range(3):
        accounts.answered(job, InferenceResponse("m", 1, "", []), False)
    assert statistics.first_responses is not None
    assert sum(count for bound, count in statistics.first_responses.buckets() if bound == math.inf) == 1
