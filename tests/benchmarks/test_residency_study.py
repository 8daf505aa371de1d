"""Models on demand in virtual time, beside what ideal caches do: a small part of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

from residency import ALLOWED_LOSS, ROOM, WORKLOADS, Play, Workload, lru_hits, trace_of

COUNT = 2_000
FITTING = [workload for workload in WORKLOADS if workload.fits and workload.name.startswith("Zipf")]


@pytest.mark.parametrize("workload", FITTING, ids=lambda workload: workload.name)
def test_hit_rate_is_nearly_that_of_lru_whose_loads_take_no_time(workload: Workload) -> None:
    trace = trace_of(workload, COUNT, 1)
    played = Play(workload, trace, 1, threads=4, stay=1.0).run()
    assert (played.requests, played.refused) == (COUNT, 0), "nothing is lost"
    assert played.hits >= (1 - ALLOWED_LOSS) * lru_hits(trace, ROOM)


def test_models_in_memory_go_on_serving_when_more_loads_are_wanted_than_can_be_made() -> None:
    workload = next(each for each in WORKLOADS if each.name == "Zipf 1.2, 20 times too many")
    trace = trace_of(workload, 4_000, 1)
    played = Play(workload, trace, 1, threads=4, stay=1.0).run()
    assert played.refused == 0
    assert played.hits > 0.7 * lru_hits(trace, ROOM)


def test_half_of_the_time_at_most_goes_into_loads_however_little_room_there_is() -> None:
    workload = next(each for each in WORKLOADS if each.room == 1)
    trace = trace_of(workload, 4_000, 1)
    played = [Play(workload, trace, 1, threads=4, stay=stay).run() for stay in (0.0, 1.0)]
    without, with_rule = (each.loading_s / each.lasted_s for each in played)
    assert without > 0.85
    assert with_rule < 0.6
    assert played[1].hits > 5 * played[0].hits
