"""Costs of closed loops, settled by what a load at random times has cost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from predicted_models import foreseen_model, poisson

from trireme.engine.options import ServerOptions
from trireme.engine.profiles import ExecutorKind, HostPoint, RestedLoop, ServicePoint, TimeDistribution, Way
from trireme.foresight.busy_server import BusyServer, MeasuredWay, scaled, settled
from trireme.foresight.host_costs import random_logs
from trireme.foresight.models import ForeseenModel
from trireme.foresight.planned_models import ProfiledCosts, planned_model
from trireme.foresight.service_times import MeasuredModel
from trireme.simulations.planning import PlayedRun, play

OPTIONS = ServerOptions()
LOG = poisson(200.0, 600)
NEVER = RestedLoop(0.0, 0.0, 0.0)
SMALL = HostPoint(Way.HTTP, 16, 0, 0.0002, 0.0004, TimeDistribution.constant(0.0001))
LARGE = replace(SMALL, nbytes=128, request_s=0.0005)
LONGER = RestedLoop(0.05, 0.0002, 0.001)
"""What 50 ms of rest cost more than those of a client alone."""


def busy(loop_s: float, *, rest_s: float, front_s: float = 0.0) -> BusyServer:
    return BusyServer(LOG, loop_s, front_s, alone_s=0.0006, rest_s=rest_s, rested=[LONGER])


def model(seconds: float, kind: ExecutorKind = ExecutorKind.THREAD) -> ForeseenModel:
    times = [ServicePoint(rows, 1, 1.0, TimeDistribution.constant(seconds)) for rows in (1, 8)]
    return foreseen_model("m", *times, executor=kind)


def played(known: ForeseenModel, points: list[HostPoint]) -> PlayedRun:
    assert known.profile is not None
    profile = replace(known.profile, host=tuple(points))
    costs = ProfiledCosts({"m": profile}, 1e9, Way.HTTP, Random(1), front_ends=points[0].front_ends)
    return play([planned_model(replace(known, profile=profile))], LOG, OPTIONS, 1, costs=costs)


@pytest.mark.parametrize("by", [0.25, 1.0, 1.5])
def test_a_request_alone_costs_what_it_did_where_batches_are_executed_elsewhere(by: float) -> None:
    way = MeasuredWay([SMALL, LARGE], busy(1.0, rest_s=0.006))
    small, large = scaled(way, by)
    assert (small.request_s, small.batch_s) == (by * 0.0002, by * 0.0004)
    assert (large.request_s, large.batch_s) == (by * 0.0005, by * 0.0004)
    assert small.rested == large.rested
    never, alone, longer = small.rested
    assert (never, alone.rest_s, longer.rest_s, longer.outside_s) == (NEVER, 0.006, 0.05, 0.001)
    own_s = small.request_s + small.batch_s
    assert own_s + alone.loop_s == pytest.approx(max(own_s, 0.0006))
    assert longer.loop_s == pytest.approx(max(0.0, 0.0006 + 0.0002 - own_s))


def test_where_they_are_executed_on_the_loop_rests_are_scaled() -> None:
    (point,) = scaled(MeasuredWay([SMALL], busy(1.0, rest_s=0.0)), 1.5)
    assert (point.request_s, point.batch_s) == (0.0002, 0.0004)
    never, longer = point.rested
    assert (never, longer.rest_s, longer.outside_s) == (NEVER, 0.05, 0.001)
    assert longer.loop_s == pytest.approx(0.0003)


@pytest.mark.parametrize(
    ("known", "rest_s", "by"),
    [(model(0.006), 0.006, 0.4), (model(0.006), 0.006, 0.9), (model(0.0001, ExecutorKind.PROVING), 0.0, 1.7)],
)
def test_the_scale_is_found_by_which_a_play_takes_as_much(known: ForeseenModel, rest_s: float, by: float) -> None:
    """Of a server that is known to be so."""
    wanted = scaled(MeasuredWay([SMALL, LARGE], busy(0.0, rest_s=rest_s)), by)
    way = MeasuredWay([SMALL, LARGE], busy(played(known, wanted).loop_busy_s, rest_s=rest_s))
    assert known.profile is not None
    found = settled(known.profile, known.config, way, OPTIONS)
    for one, other in zip(found, wanted, strict=True):
        assert one.request_s == pytest.approx(other.request_s, rel=0.05)
        assert one.batch_s == pytest.approx(other.batch_s, rel=0.05)
        assert [each.loop_s for each in one.rested] == pytest.approx([each.loop_s for each in other.rested], rel=0.1)


def test_front_ends_do_what_was_measured() -> None:
    point = replace(SMALL, front_ends=1, front_request_s=0.0001, front_turn_s=0.0001)
    known = model(0.006)
    assert known.profile is not None
    front_s = played(known, [point]).front_ends_busy_s
    way = MeasuredWay([point], busy(0.1, rest_s=0.006, front_s=0.5 * front_s))
    (found,) = settled(known.profile, known.config, way, OPTIONS)
    assert (found.front_request_s, found.front_turn_s) == (pytest.approx(0.00005, rel=0.05),) * 2


def test_without_a_load_closed_loops_are_what_is_known() -> None:
    known = model(0.006)
    assert known.profile is not None
    way = MeasuredWay([SMALL], replace(busy(5.0, rest_s=0.006), log=()))
    assert settled(known.profile, known.config, way, OPTIONS) == scaled(way, 1.0)


def test_the_load_is_half_of_what_largest_batches_can_do() -> None:
    known = model(0.08)
    assert known.profile is not None
    measured = MeasuredModel(known.config, 1, ExecutorKind.THREAD, list(known.profile.service))
    logs = random_logs(measured, 100.0)
    assert len(logs) == 5
    assert sum(map(len, logs)) / sum(log[-1].offset_s for log in logs) == pytest.approx(50, rel=0.3)
    fast = random_logs(replace(measured, service=[ServicePoint(1, 1, 1.0, TimeDistribution.constant(1e-5))]), 100.0)
    assert sum(map(len, fast)) == pytest.approx(500 * 3, rel=0.1)


def test_sequences_come_at_random_times_and_are_short() -> None:
    known = model(0.01)
    assert known.profile is not None
    config = replace(known.config, has_sequence_batching=True)
    logs = random_logs(MeasuredModel(config, 1, ExecutorKind.THREAD, list(known.profile.service)), 3.0)
    requests = [each for log in logs for each in log]
    assert all(each.sequence for each in requests)
    assert 200 < len(requests) < 3_000
    assert 4 < len(requests) / sum(each.start for each in requests) < 16
    assert max(log[-1].offset_s for log in logs) < 3.0


@pytest.mark.parametrize(("instances", "found"), [(2, 1.2), (1, 1.5)])
def test_batches_on_shared_cores_take_what_they_took(instances: int, found: float) -> None:
    """The play has two instances share two cores with the event loop, which what they are slower on a server has as
    well; a single one has a core of its own."""
    times = [ServicePoint(rows, 1, 1.0, TimeDistribution.constant(0.006)) for rows in (1, 8)]
    known = foreseen_model("m", *times, instances=instances)
    assert known.profile is not None
    real = [replace(SMALL, slowed=1.2)]
    profile = replace(known.profile, host=tuple(real))
    costs = ProfiledCosts({"m": profile}, 2.0 - len(LOG) / LOG[-1].offset_s * 0.00008, Way.HTTP, Random(1))
    run = play([planned_model(replace(known, profile=profile), 1.2)], LOG, OPTIONS, 1, costs=costs)
    sizes = {int(rows): int((run.batch_rows == rows).sum()) for rows in set(run.batch_rows)}
    executed_s = float((run.batch_ended_s - run.batch_started_s).sum())
    server = replace(busy(run.loop_busy_s, rest_s=0.006), sizes=sizes, executed_s=executed_s)
    (point,) = settled(known.profile, known.config, MeasuredWay([replace(SMALL, slowed=1.5)], server), OPTIONS)
    assert point.slowed == pytest.approx(found, rel=0.02)
