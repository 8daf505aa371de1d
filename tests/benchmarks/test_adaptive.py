"""The comparison of the adaptive batcher with fixed settings: a small part of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

from adaptive import ALLOWED_LOSS, SETTINGS, adaptive, play, workloads

COUNT = 1_500
FEW = SETTINGS[12::13]
NAMES = [workload.name for workload in workloads(1, 0)]


@pytest.mark.parametrize("number", range(5), ids=NAMES)
def test_objective_answers_as_many_in_time_as_fixed_settings(number: int) -> None:
    workload = workloads(COUNT, 0)[number]
    best = max(play(workload, setting.core, 0).in_time for setting in FEW)
    assert play(workload, adaptive, 0).in_time >= (1 - ALLOWED_LOSS) * best


@pytest.mark.parametrize("number", range(5), ids=NAMES)
def test_every_request_is_answered_or_refused_and_nearly_none_is_late(number: int) -> None:
    workload = workloads(COUNT, 1)[number]
    result = play(workload, adaptive, 1)
    assert len(result.latencies_s) + result.refused == COUNT == workload.requests
    assert len(result.latencies_s) - result.in_time <= 0.02 * COUNT


def test_runs_are_the_same_every_time() -> None:
    workload = workloads(COUNT, 2)[1]
    assert play(workload, adaptive, 2) == play(workload, adaptive, 2)


def test_there_are_a_hundred_settings() -> None:
    assert len(set(SETTINGS)) == 100
