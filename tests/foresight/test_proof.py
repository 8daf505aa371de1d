"""The proof: which settings, from what repository, and how what was predicted stands to what was measured."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plan_repositories import write_plan_log, write_planned_model
from predicted_models import poisson
from python_models import write_model
from some_profiles import some_profile

from trireme.api.cli.main import main
from trireme.clients.played import PlayedLog
from trireme.clients.target import LoadTarget
from trireme.engine.errors import UnavailableError
from trireme.engine.logs.request_log import LoggedRequest, RequestTraffic
from trireme.engine.profiles import HostPoint, ServicePoint, TimeDistribution, Way
from trireme.foresight.prediction import ForeseenHost
from trireme.foresight.search import proof
from trireme.foresight.search.objective import Aim, Measure, read_objective
from trireme.foresight.search.players import PlanInputs, read_ground
from trireme.foresight.search.proof import (
    ProvenSetting,
    keep_residuals,
    link_repository,
    part_of_log,
    proof_lines,
    prove,
    real_goodput,
    settings_to_prove,
)
from trireme.foresight.search.settings import ModelSetting, PlanSetting, present_setting
from trireme.foresight.search.trials import Trial
from trireme.foresight.served_models import ServedModels
from trireme.foresight.summary import RunSummary

OBJECTIVE = read_objective("p99<50ms", Aim.INSTANCES)
SUMMARY = RunSummary(1_000, 1_000, 0.01, 0.02, 0.03, 0.012, 100.0)


def trial(instances: int, delay_us: int = 0, summary: RunSummary = SUMMARY) -> Trial:
    return Trial(PlanSetting((("m", ModelSetting(instances, 8, True, delay_us=delay_us)),)), 1_000, (summary,))


def proven(**measured: float) -> ProvenSetting:
    return ProvenSetting("chosen", trial(1).setting, trial(1), replace(SUMMARY, **measured))


def test_the_chosen_the_present_and_the_nearest_two_are_proven() -> None:
    trials = [trial(2, 100), trial(4, 900), trial(3, 100), trial(1, 500), trial(2, 300)]
    present = trials[3].setting
    assert settings_to_prove(trials, present) == [
        ("chosen", trials[0].setting),
        ("present", present),
        ("neighbour", trials[2].setting),
        ("neighbour", trials[4].setting),
    ]
    assert settings_to_prove(trials[:1], trials[0].setting) == [("chosen", trials[0].setting)]


def test_what_is_off_and_what_is_missed_is_marked() -> None:
    fine = list(proof_lines(proven(p50_s=0.0104, p99_s=0.032, throughput=101.0), OBJECTIVE, colours=True))
    assert [line.split()[0] for line in fine] == ["chosen:", "p50", "p99", "throughput"]
    assert not any("!" in line or "\x1b" in line for line in fine)
    off = list(proof_lines(proven(p50_s=0.011, p99_s=0.06), OBJECTIVE, colours=True))
    assert [line.startswith("\x1b[31m") for line in off] == [False, True, True, False, True]
    assert off[-1] == "\x1b[31m  p99<50ms is not kept by the real server !\x1b[0m"
    plain = list(proof_lines(proven(p99_s=0.06), OBJECTIVE, colours=False))
    assert plain[-1] == "  p99<50ms is not kept by the real server !"
    assert proven(p99_s=float("nan")).is_off(Measure.P99)


def test_goodput_is_measured_where_it_is_the_aim() -> None:
    """Answers within the bounds, by each model's own; not those that came late, or never, or were refused."""
    objective = read_objective("p99<50ms,b:p99<10ms", Aim.GOODPUT)
    log = [LoggedRequest(at / 10, "ab"[at == 3]) for at in range(5)]
    latency_s = np.array([0.040, 0.060, np.nan, 0.040, 0.6])
    times = np.array([each.offset_s for each in log])
    none = np.zeros(5, np.int64)
    played = PlayedLog(RequestTraffic(log), times, times, latency_s, np.array([0, 0, 503, 0, 0]), none, [])
    assert real_goodput(played, log, objective) == pytest.approx(1 / 1.0)
    told = ProvenSetting("chosen", trial(1).setting, replace(trial(1), goodput=(90.0,)), SUMMARY, {}, 80.0)
    lines = [line.split() for line in proof_lines(told, objective, colours=False)]
    assert ["goodput", "90.000/s", "predicted", "80.000/s", "measured"] in lines


def test_residuals_are_appended_and_shown(tmp_path: Path) -> None:
    found = [proven(), proven(p99_s=0.06)]
    keep_residuals(tmp_path, found, OBJECTIVE, "2026-01-02")
    data, page = keep_residuals(tmp_path, found, OBJECTIVE, "2026-01-03")
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    assert [row["missed"] for row in rows] == [[], ["p99<50ms"]] * 2
    assert rows[1]["p99"] == {"predicted": 0.03, "measured": 0.06, "residual": -0.5, "off": True}
    text = page.read_text()
    assert text.count("<tr>") == 5
    assert text.count('<td class="off">0.03, 0.06 (-50.0%)</td>') == 2


def test_a_log_is_played_for_some_seconds() -> None:
    log = poisson(10.0, 100)
    part = part_of_log(log, 2.0)
    assert part == log[: len(part)]
    assert part[-1].offset_s - log[0].offset_s <= 2.0 < log[len(part)].offset_s - log[0].offset_s


def inputs_of(repository: Path, log: Path) -> PlanInputs:
    return PlanInputs((repository,), None, log, ForeseenHost(2.0), OBJECTIVE)


def test_the_repository_that_is_served_has_the_setting(tmp_path: Path) -> None:
    config = write_planned_model(tmp_path / "models")
    inputs = inputs_of(tmp_path / "models", write_plan_log(tmp_path / "log.jsonl", count=5))
    ground = read_ground(inputs)
    present = present_setting({"m": ground.models[0].config})
    more = present.with_model("m", replace(present.of("m"), instances=3))
    for name, setting in (("same", present), ("more", more)):
        (tmp_path / name).mkdir()
        link_repository(inputs, ground, setting, tmp_path / name)
    assert (tmp_path / "same" / "m" / "config.pbtxt").read_text() == config.read_text()
    assert "count: 3" in (tmp_path / "more" / "m" / "config.pbtxt").read_text()
    assert (tmp_path / "more" / "m" / "1").resolve() == tmp_path / "models" / "m" / "1"
    assert "count" not in config.read_text()


def test_a_log_that_the_server_does_not_serve_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Served:
        """Has ended as soon as it had started."""

        def __init__(self, *_given: object) -> None:
            pass

        def __enter__(self) -> Served:
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def target(self, _way: Way) -> LoadTarget:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                return LoadTarget("127.0.0.1", closed.getsockname()[1])

    write_planned_model(tmp_path / "models")
    inputs = inputs_of(tmp_path / "models", write_plan_log(tmp_path / "log.jsonl", count=5))
    ground = read_ground(inputs)
    monkeypatch.setattr(proof, "ServedModels", Served)
    with pytest.raises(UnavailableError, match="cannot be played against the server"):
        prove(inputs, ground, "present", present_setting({"m": ground.models[0].config}), seconds=1.0, plays=1)


@pytest.mark.slow
def test_a_plan_is_proven_on_real_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = tmp_path / "models"
    write_model(repository, "m")
    service = (ServicePoint(1, 1, 1.0, TimeDistribution.constant(0.001)),)
    profile = some_profile(model="m", service=service, config={"name": "m", "backend": "python"})
    (repository / "m.profile.json").write_text(profile.to_json())
    log = write_plan_log(tmp_path / "log.jsonl", rate_hz=50.0, count=60)
    words = ["--objective", "p99<10s", "--settings", "2", "--plays", "1", "--processes", "1", "--prove"]
    words += ["--prove-secs", "1", "--output", str(tmp_path / "out")]
    assert main(["plan", str(repository), "--log", str(log), *words]) == 0
    shown = capsys.readouterr().out
    assert "measured" in shown
    rows = [json.loads(line) for line in (tmp_path / "out" / "residuals.jsonl").read_text().splitlines()]
    assert rows[0]["label"] == "chosen"
    assert all(row["p99"]["measured"] > 0 for row in rows)


@pytest.mark.slow
def test_a_setting_with_front_ends_is_proven_on_a_server_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models"
    write_model(repository, "m")
    service = (ServicePoint(1, 1, 1.0, TimeDistribution.constant(0.001)),)
    host = HostPoint(Way.HTTP, 16, 1, 0.0001, 0.0, TimeDistribution.constant(0.0002), front_request_s=0.0002)
    profile = some_profile(model="m", service=service, host=(host,), config={"name": "m", "backend": "python"})
    (repository / "m.profile.json").write_text(profile.to_json())
    inputs = inputs_of(repository, write_plan_log(tmp_path / "log.jsonl", rate_hz=50.0, count=50))
    ground = read_ground(inputs)
    used: list[tuple[int, float]] = []

    class Watched(ServedModels):
        def __exit__(self, *error: object) -> None:
            used.append((self.front_ends, self.front_ends_s()))
            super().__exit__(*error)

    monkeypatch.setattr(proof, "ServedModels", Watched)
    setting = present_setting({"m": ground.models[0].config}, front_ends=2)
    found = prove(inputs, ground, "chosen", setting, seconds=1.0, plays=1)
    assert found.overall.answered == found.overall.requests > 0
    assert found.predicted.overall[0].front_ends > 0
    assert used[0][0] == 2
    assert used[0][1] > 0
