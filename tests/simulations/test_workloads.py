"""Workloads: arrivals as their names say, from chance alone."""

from __future__ import annotations

from itertools import groupby, pairwise
from random import Random

import pytest

from trireme.engine.logs.request_log import LoggedRequest
from trireme.simulations.workloads import Arrival, bursty, closed_loop, poisson, replayed, sequences

S = 1_000_000_000


def test_poisson_arrivals_have_their_rate_and_ascend() -> None:
    arrivals = poisson(Random(1), 4000, 100.0)
    times = [arrival.at_ns for arrival in arrivals]
    assert times == sorted(times)
    assert len(arrivals) / (times[-1] / S) == pytest.approx(100.0, rel=0.05)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.1), "of exponential gaps, deviation and mean are equal"


def test_bursts_come_at_one_instant_and_have_the_rate_on_average() -> None:
    arrivals = bursty(Random(1), 6000, 100.0, 9)
    sizes = [len(list(group)) for _, group in groupby(arrivals, key=lambda arrival: arrival.at_ns)]
    assert set(sizes[:-1]) == set(range(1, 10))
    assert len(arrivals) / (arrivals[-1].at_ns / S) == pytest.approx(100.0, rel=0.1)


def test_in_a_closed_loop_each_client_waits_for_its_own_answer() -> None:
    arrivals = closed_loop(Random(1), 10, 3, 0.5)
    assert [arrival.after for arrival in arrivals] == [-1, -1, -1, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("pipelined", [False, True])
def test_sequences_begin_and_end_and_think(pipelined: bool) -> None:
    arrivals = sequences(Random(1), 500, 10.0, 6, 0.2, pipelined=pipelined)
    assert len(arrivals) == 500
    by_sequence = {number: list(group) for number, group in groupby(arrivals, key=lambda arrival: arrival.sequence)}
    assert {len(group) for group in by_sequence.values()} == set(range(1, 7))
    for group in by_sequence.values():
        assert [arrival.start for arrival in group] == [True] + [False] * (len(group) - 1)
        assert [arrival.end for arrival in group] == [False] * (len(group) - 1) + [True]
        for arrival in group[1:]:
            before = arrivals[arrival.after]
            assert (arrival.after == -1) if pipelined else (before in group and before is not arrival)
        if pipelined:
            assert [arrival.at_ns for arrival in group] == sorted(arrival.at_ns for arrival in group)


def test_a_log_is_replayed_at_its_own_times() -> None:
    log = [LoggedRequest(0.5, "m"), LoggedRequest(1.25, "m", sequence="a", start=True)]
    assert replayed(log) == [Arrival(S // 2), Arrival(5 * S // 4, -1, "a", True)]


def test_one_seed_gives_one_workload() -> None:
    assert sequences(Random(7), 50, 1.0, 4, 1.0) == sequences(Random(7), 50, 1.0, 4, 1.0)
    assert poisson(Random(7), 50, 1.0) != poisson(Random(8), 50, 1.0)
