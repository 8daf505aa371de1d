"""Predictions for servers with front ends in processes of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from generating_profiles import steps_of
from predicted_models import foreseen_model, poisson

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.request_log import LoggedRequest
from trireme.engine.options import ServerOptions
from trireme.engine.profiles import ExecutorKind, HostPoint, ServicePoint, TimeDistribution, Way
from trireme.foresight.models import ForeseenModel
from trireme.foresight.planned_models import front_ends_unknown
from trireme.foresight.prediction import ForeseenHost, predict

OPTIONS, ROOMY = ServerOptions(), ForeseenHost(cores=64.0, front_ends=1)
OUTSIDE = TimeDistribution.constant(0.0005)
ONE_PROCESS = HostPoint(Way.HTTP, 16, 0, 0.001, 0.0, OUTSIDE)
"""1 ms a request, of the event loop."""
FRONT_END = HostPoint(Way.HTTP, 16, 1, 0.0002, 0.0, OUTSIDE, front_request_s=0.0006, front_turn_s=0.0001)
"""0.2 ms of the event loop and 0.8 of a front end."""


def model(
    seconds: float = 0.0001,
    *points: HostPoint,
    kind: ExecutorKind = ExecutorKind.DEVICE,
    cores: float = 0.0,
    instances: int = 8,
) -> ForeseenModel:
    service = ServicePoint(1, 1, cores, TimeDistribution.constant(seconds))
    host = points or (ONE_PROCESS, FRONT_END)
    return foreseen_model("m", service, instances=instances, executor=kind, host=host)


@pytest.mark.parametrize("kind", [ExecutorKind.PROVING, ExecutorKind.THREAD, ExecutorKind.DEVICE])
def test_a_request_alone_costs_what_was_measured(kind: ExecutorKind) -> None:
    run = predict([model(0.0003, kind=kind)], poisson(5.0, 100), OPTIONS, ROOMY, plays=1)
    assert run.estimate("p50_s").value == pytest.approx(0.0003 + 0.0002 + 0.0008 + 0.0005, rel=0.01)
    assert run.runs[0].front_ends_busy_s == pytest.approx(100 * 0.0008, rel=0.01)
    span_s = run.runs[0].span_s
    assert run.estimate("front_ends").value == pytest.approx(100 * 0.0008 / span_s, rel=0.01)


def test_front_ends_take_work_from_the_loop() -> None:
    """Which alone answers 1,000 a second. One front end takes at most 1 / 0.6 ms when all turns are shared by many, and
    four leave the loop 5,000."""
    log = poisson(20_000.0, 4_000)
    for front_ends, rate in ((0, 1_000), (1, 1_650), (2, 3_300), (8, 5_000)):
        host = replace(ROOMY, front_ends=front_ends)
        found = predict([model()], log, OPTIONS, host, plays=1)
        assert found.estimate("throughput").value == pytest.approx(rate, rel=0.05)


def test_on_few_cores_front_ends_bring_nothing() -> None:
    """A core that both of them want is not there twice: 0.2 ms and 0.6 for each request."""
    log = poisson(20_000.0, 4_000)
    one = predict([model()], log, OPTIONS, replace(ROOMY, cores=1.0, front_ends=1), plays=1)
    four = predict([model()], log, OPTIONS, replace(ROOMY, cores=1.0, front_ends=4), plays=1)
    assert one.estimate("throughput").value == pytest.approx(1 / 0.0008, rel=0.06)
    assert four.estimate("throughput").value == pytest.approx(1 / 0.0008, rel=0.06)


def test_what_computes_gives_way_to_front_ends() -> None:
    """Batches of 10 ms on one core, of which front ends and the loop take 8 % at 100 requests a second."""
    slow = model(0.010, kind=ExecutorKind.THREAD, cores=1.0, instances=1)
    log = poisson(1_000.0, 2_000)
    found = predict([slow], log, OPTIONS, replace(ROOMY, cores=1.0), plays=1)
    assert found.estimate("throughput").value < 0.97 * 100
    roomy = predict([slow], log, OPTIONS, ROOMY, plays=1)
    assert roomy.estimate("throughput").value == pytest.approx(100, rel=0.01)


def test_larger_requests_cost_front_ends_more() -> None:
    """By the byte, as they cost the loop and outside of it."""
    large = replace(FRONT_END, nbytes=16 * 8, front_request_s=0.0013)
    for rows, more_s in ((1, 0.0), (8, 0.0007), (4, 0.0003)):
        log = [LoggedRequest(at, "m", rows=rows) for at in range(20)]
        found = predict([model(0.0001, ONE_PROCESS, FRONT_END, large)], log, OPTIONS, ROOMY, plays=1)
        assert found.runs[0].front_ends_busy_s / 20 == pytest.approx(0.0008 + more_s)
        assert found.estimate("p50_s").value == pytest.approx(0.0016 + more_s)


def test_what_was_measured_with_front_ends_counts_only_there() -> None:
    slowed = replace(FRONT_END, slowed=1.5)
    for front_ends, took_s in ((0, 0.010), (1, 0.015)):
        host = replace(ROOMY, front_ends=front_ends)
        found = predict([model(0.010, ONE_PROCESS, slowed)], poisson(1.0, 5), OPTIONS, host, plays=1)
        run = found.runs[0]
        assert run.batch_ended_s - run.batch_started_s == pytest.approx([took_s] * 5)
    grpc = replace(FRONT_END, way=Way.GRPC, front_request_s=0.0016)
    for way, took_s in ((Way.HTTP, 0.0008), (Way.GRPC, 0.0018), (Way.JSON, 0.0008)):
        found = predict([model(0.010, FRONT_END, grpc)], poisson(1.0, 5), OPTIONS, replace(ROOMY, way=way), plays=1)
        assert found.runs[0].front_ends_busy_s / 5 == pytest.approx(took_s)


def why_unknown(*models: ForeseenModel) -> str:
    return front_ends_unknown(each.profile for each in models if each.profile is not None)


def test_profiles_that_do_not_tell_of_front_ends_are_named() -> None:
    old, new = model(0.001, ONE_PROCESS), model()
    unknown = "the profile of 'm' does not tell what requests cost with front ends. Profile again"
    with pytest.raises(InvalidArgumentError, match=f"nothing can be predicted with --front-ends 1: {unknown}"):
        predict([old], poisson(1.0, 5), OPTIONS, ROOMY)
    recorded = foreseen_model("m", ServicePoint(1, 1, 1.0, OUTSIDE))
    assert why_unknown(new, old) == unknown
    assert why_unknown(new, recorded) == ""
    assert why_unknown(recorded) == "no profile tells what requests cost with front ends"
    assert new.profile is not None
    generating = replace(new, profile=replace(new.profile, generation=steps_of()))
    assert why_unknown(generating) == "'m' generates text, and is not measured with front ends"
