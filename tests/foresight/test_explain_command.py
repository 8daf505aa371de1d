"""`trireme explain`: where time goes, what limits, and what would help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_repositories import write_plan_log, write_planned_model
from predicted_models import foreseen_model, poisson

from trireme.api.cli.main import main
from trireme.engine.config.model import DynamicBatching
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult
from trireme.engine.options import ServerOptions
from trireme.engine.profiles import HostPoint, ServicePoint, TimeDistribution, Way
from trireme.foresight.explaining import all_busy_until, limits, planned_phases, real_phases, time_shares
from trireme.foresight.prediction import ForeseenHost, predict
from trireme.foresight.summary import RunSummary

POINT = ServicePoint(1, 1, 1.0, TimeDistribution.constant(0.010), copy_in_s=0.001, copy_out_s=0.002)


def phases_of(
    log: list[LoggedRequest], instances: int = 1, batching: DynamicBatching | None = None
) -> dict[str, float]:
    model = foreseen_model("m", POINT, instances=instances, batching=batching)
    assert model.profile is not None
    run = predict([model], log, ServerOptions(), ForeseenHost(64.0), plays=1).runs[0]
    phases = planned_phases(run, "m", 1, model.profile)
    total = np.sum([*phases.values()], axis=0)
    assert total == pytest.approx(run.latencies_s("m"))
    assert all((column >= -1e-12).all() for column in phases.values())
    return dict(time_shares(phases).mean)


def test_a_request_behind_another_waits_for_the_instance() -> None:
    found = phases_of([LoggedRequest(0.0, "m"), LoggedRequest(0.004, "m")])
    assert found["wait for an instance"] == pytest.approx(0.003)  # 6 ms for one of the two
    assert found["delay"] == pytest.approx(0.0)
    assert (found["input"], found["compute"], found["output"]) == pytest.approx((0.001, 0.007, 0.002))


def test_a_batch_that_waits_to_grow_is_delayed() -> None:
    found = phases_of([LoggedRequest(0.0, "m")], batching=DynamicBatching((8,), 5_000))
    assert 0.005 <= found["delay"] <= 0.006  # event loops sleep for whole milliseconds
    assert found["wait for an instance"] == pytest.approx(0.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 3)), max_size=12), st.integers(1, 3))
def test_all_instances_are_busy_while_so_many_execute(batches: list[tuple[float, float]], instances: int) -> None:
    begun = np.array([at for at, _ in batches])
    ended = np.array([at + took for at, took in batches])
    times, passed = all_busy_until(begun, ended, instances)
    middles = np.linspace(0, 14, 1_401)
    busy = sum(
        ((begun_s <= middles) & (middles < ended_s) for begun_s, ended_s in zip(begun, ended, strict=True)), 0 * middles
    )
    expected = float((busy >= instances).sum()) * 0.01
    assert float(np.interp(14.0, times, passed)) == pytest.approx(expected, abs=0.011 * (len(batches) + 1))


def test_a_real_run_is_read_from_its_log() -> None:
    """Two requests of one instance: the second one waits for the first, which has waited although the instance was
    free."""
    first = LoggedResult(20_000.0, 2_000.0, 1_000.0, 10_000.0, 2_000.0, 1, "m_0")
    second = LoggedResult(30_000.0, 14_000.0, 1_000.0, 10_000.0, 2_000.0, 1, "m_0")
    refused = LoggedResult(100.0, outcome="queue_full")
    log = [LoggedRequest(at_s, "m", result=each) for at_s, each in ((0.0, first), (0.001, second), (0.002, refused))]
    phases = real_phases(log, "m")
    assert phases["delay"].tolist() == pytest.approx([0.002, 0.001])
    assert phases["wait for an instance"].tolist() == pytest.approx([0.0, 0.013])
    assert phases["compute"].tolist() == pytest.approx([0.010, 0.010])
    assert phases["loop and ways"].tolist() == pytest.approx([0.005, 0.003])
    assert time_shares(real_phases([], "m")).requests == 0


def test_what_is_busy_limits() -> None:
    summary = RunSummary(1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, loop=0.9, cores=1.0, instances={"m": 0.99, "n": 0.2})
    found = list(limits(summary, 4.0))
    assert found == ["the instances of m: busy 99% of the time", "the event loop: busy 90% of the time"]
    apart = limits(replace(summary, front_ends=0.95), 4.0)
    assert [each.rpartition(":")[0] for each in apart] == ["the instances of m", "the front ends", "the event loop"]
    idle = replace(summary, loop=0.1, instances={"m": 0.3})
    assert list(limits(idle, 4.0)) == ["nothing but the traffic; the busiest, the instances of m, 30% of the time"]
    unknown = replace(summary, loop=float("nan"), cores=float("nan"), instances={})
    assert list(limits(unknown, 4.0)) == ["nothing but the traffic"]


def test_a_log_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_planned_model(tmp_path / "models")
    result = LoggedResult(20_000.0, 2_000.0, 1_000.0, 10_000.0, 2_000.0, 1, "m_0")
    log = write_plan_log(tmp_path / "log.jsonl", [replace(each, result=result) for each in poisson(500.0, 200)])
    words = ["explain", str(tmp_path / "models"), "--log", str(log), "--plays", "1", "--cores", "4"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "m, planned: 200 requests" in shown
    assert "m, real: 200 requests" in shown
    assert "  the instances of m: busy" in shown
    lines = {line[:34].strip(): line[34:].split() for line in shown.splitlines()}
    before, after = (float(lines[each][2].removesuffix("/s")) for each in ("as it is", "one more instance of m"))
    assert after > 1.2 * before
    assert {"twice the delay of m", "one more core"} < lines.keys()
    assert "one more front end" not in lines


def test_what_a_front_end_would_bring_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the profile tells what it costs: of a loop that is full."""
    alone = HostPoint(Way.HTTP, 16, 0, 0.015, 0.0, TimeDistribution.constant(0.0))
    apart = replace(alone, front_ends=1, request_s=0.0001, front_request_s=0.010)
    write_planned_model(tmp_path / "models", host=(alone, apart))
    log = write_plan_log(tmp_path / "log.jsonl", rate_hz=300.0, count=200)
    words = ["explain", str(tmp_path / "models"), "--log", str(log), "--plays", "1", "--cores", "8"]
    for front_ends, limit in (("0", "the event loop"), ("1", "the front ends")):
        assert main([*words, "--front-ends", front_ends]) == 0
        shown = capsys.readouterr().out
        assert f"  {limit}: busy " in shown
        lines = {line[:34].strip(): line[34:].split() for line in shown.splitlines()}
        before, after = (float(lines[each][2].removesuffix("/s")) for each in ("as it is", "one more front end"))
        assert after > 1.2 * before


def test_what_cannot_be_explained_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_planned_model(tmp_path / "models")
    assert main(["explain", str(tmp_path / "models"), "--log", str(tmp_path / "none")]) == 1
    assert "trireme explain: request log" in capsys.readouterr().err
