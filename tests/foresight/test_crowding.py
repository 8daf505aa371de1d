"""How late a thread gets a core that others have, measured on this machine."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import psutil
import pytest
from some_profiles import some_profile

from trireme.engine.profiles import NEVER_LATE, HostPoint, TimeDistribution, Way, read_profile
from trireme.foresight import crowding
from trireme.foresight.crowding import measure_crowding


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it is measured on two cores")
def test_it_is_measured_on_two_cores_and_nothing_is_left() -> None:
    before, children = os.sched_getaffinity(0), psutil.Process().children()
    found = measure_crowding(0.003, 1.0)
    assert os.sched_getaffinity(0) == before
    assert psutil.Process().children() == children
    assert found.count > 40
    assert 0.0 <= found.quantiles_s[0] <= found.mean_s <= found.quantiles_s[-1]


def test_on_a_single_core_it_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding.os, "sched_getaffinity", lambda _process: {0})
    assert measure_crowding(0.003, 1.0) is NEVER_LATE


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere"])
def test_where_its_processes_cannot_run_it_is_not_measured(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """They end at once; or their program is not there."""
    monkeypatch.setattr(crowding.sys, "executable", program)
    assert measure_crowding(0.003, 1.0) is NEVER_LATE


def test_what_counts_is_what_they_are_later_than_with_nobody_else() -> None:
    late = crowding._Late([0.001, 0.002, 0.003, 0.001, 0.007], [0, 0, 0, 1, 2])
    assert late.more() == pytest.approx([0.0, 0.005])
    assert crowding._Late([0.001, 0.003, 0.002], [1, 2, 1]).more() == pytest.approx([0.0, 0.001, 0.0])
    assert crowding._Late().more() == []


def test_a_profile_keeps_it_and_one_from_before_has_none() -> None:
    point = HostPoint(Way.HTTP, 8, 0, 0.0001, 0.0, TimeDistribution.constant(0.0))
    crowded = TimeDistribution.constant(0.002)
    profile = some_profile(host=(replace(point, crowded=crowded),))
    document = json.loads(profile.to_json())
    assert read_profile(json.dumps(document), "profile").host[0].crowded == crowded
    del document["host"][0]["crowded"]
    assert read_profile(json.dumps(document), "profile").host[0].crowded == NEVER_LATE
