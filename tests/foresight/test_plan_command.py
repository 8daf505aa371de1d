"""`trireme plan`: from a repository and a log to a configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plan_repositories import TENSORS, write_plan_log, write_planned_model
from predicted_models import poisson

from trireme.api.cli.main import main
from trireme.engine.profiles import HostPoint, TimeDistribution, Way

SMALL = ["--settings", "24", "--plays", "2", "--processes", "1", "--cores", "4"]


def plan(repository: Path, log: Path, *words: str) -> int:
    return main(["plan", str(repository), "--log", str(log), *SMALL, *words])


def test_settings_are_chosen_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_planned_model(tmp_path / "models")
    log = write_plan_log(tmp_path / "log.jsonl", rate_hz=250.0)
    before = config.read_text()
    assert plan(tmp_path / "models", log, "--objective", "p99<30ms") == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].startswith("minimise instances with p99<30ms, refused<1%: 24 of ")
    assert [line.split()[0] for line in lines[2:4]] == ["chosen", "present"]
    assert "--- a/m/config.pbtxt\n" in shown
    assert config.read_text() == before
    assert plan(tmp_path / "models", log, "--objective", "p99<30ms", "--write") == 0
    after = config.read_text()
    assert after != before
    assert after.startswith('# mine\nbackend: "python"\n')
    capsys.readouterr()
    assert plan(tmp_path / "models", log, "--objective", "p99<30ms", "--settings", "1") == 0
    again = capsys.readouterr().out
    assert "chosen = present" in again
    assert "the configurations stay as they are" in again


def test_what_one_machine_cannot_do_needs_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As few as will do, and none where one is enough."""
    write_planned_model(tmp_path / "models")
    log = write_plan_log(tmp_path / "log.jsonl", rate_hz=620.0, count=600)
    words = ("--cores", "1", "--instances", "1", "--replicas", "4", "--settings", "24")
    assert plan(tmp_path / "models", log, "--objective", "p99<60ms", *words) == 0
    shown = capsys.readouterr().out
    assert next(line for line in shown.splitlines() if line.startswith("chosen")).endswith("; 3 replicas")
    assert "start 3 servers so, and `trireme gateway` in front of them" in shown
    few = write_plan_log(tmp_path / "few.jsonl", rate_hz=50.0, count=100)
    assert plan(tmp_path / "models", few, "--objective", "p99<60ms", *words) == 0
    assert "gateway" not in capsys.readouterr().out


OUTSIDE = TimeDistribution.constant(0.0002)
ONE_PROCESS = HostPoint(Way.HTTP, 16, 0, 0.002, 0.0, OUTSIDE)
FRONT_END = replace(ONE_PROCESS, front_ends=1, request_s=0.0002, front_request_s=0.0015, front_turn_s=0.0002)


def test_what_one_loop_cannot_read_needs_front_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests take the loop 2 ms each, and one comes every 1.7 ms. A flag of the server says how many front ends."""
    write_planned_model(tmp_path / "models", cores=0.0, host=(ONE_PROCESS, FRONT_END))
    log = write_plan_log(tmp_path / "log.jsonl", rate_hz=580.0, count=300)
    words = ("--objective", "p99<60ms", "--front-ends", "0", "--settings", "16", "--output", str(tmp_path / "out"))
    assert plan(tmp_path / "models", log, *words) == 0
    shown = capsys.readouterr().out
    chosen, present = shown.splitlines()[2:4]
    assert "front end" in chosen
    assert present.startswith("present")
    assert "front end" not in present
    document = json.loads((tmp_path / "out" / "plan.json").read_text())
    count = document["settings"][0]["front_ends"]
    assert document["server_flags"] == [f"--front-ends={count}"]
    assert count > 0
    assert f"start the server with --front-ends={count}\n" in shown
    assert f"<code>--front-ends={count}</code>" in (tmp_path / "out" / "plan.html").read_text()


def test_where_profiles_do_not_tell_of_front_ends_none_are_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor may there be some."""
    write_planned_model(tmp_path / "models", host=(ONE_PROCESS,))
    words = ("--objective", "p99<100ms", "--settings", "2")
    log = write_plan_log(tmp_path / "log.jsonl", rate_hz=20.0, count=50)
    assert plan(tmp_path / "models", log, *words) == 0
    shown, error = capsys.readouterr()
    assert "front" not in shown
    assert "predicted without front ends, of which a server with 4 cores has some: the profile of 'm'" in error
    assert plan(tmp_path / "models", log, *words, "--front-ends", "1") == 1
    assert "with --front-ends 1: the profile of 'm' does not tell" in capsys.readouterr().err


def test_the_present_settings_are_chosen_where_nothing_better_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_planned_model(tmp_path / "models", more="")
    log = write_plan_log(tmp_path / "log.jsonl", rate_hz=5.0, count=200)
    assert plan(tmp_path / "models", log, "--objective", "p99<1s") == 0
    assert "1 instance" in capsys.readouterr().out.splitlines()[2]


def test_an_objective_that_no_setting_keeps_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_planned_model(tmp_path / "models")
    before = config.read_text()
    log = write_plan_log(tmp_path / "log.jsonl", count=200)
    assert plan(tmp_path / "models", log, "--objective", "p99<1ms", "--write") == 3
    shown, error = capsys.readouterr()
    assert "no setting of 24 keeps the objective" in shown
    assert "p99<1ms: " in shown
    assert "nothing is written" in error
    assert config.read_text() == before


def test_an_ensemble_is_planned_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its slow member is given more instances, its quick one is not."""
    models = tmp_path / "models"
    write_planned_model(models, "slow")
    write_planned_model(models, "quick", row_s=0.0)
    (models / "both" / "1").mkdir(parents=True)
    step = (
        'step {{ model_name: "{}" model_version: -1 input_map {{ key: "input" value: "{}" }} '
        'output_map {{ key: "output" value: "{}" }} }}'
    )
    steps = f"{step.format('slow', 'input', 'between')} {step.format('quick', 'between', 'output')}"
    text = f'platform: "ensemble" max_batch_size: 4 {TENSORS} ensemble_scheduling {{ {steps} }}'
    (models / "both" / "config.pbtxt").write_text(text)
    log = write_plan_log(tmp_path / "log.jsonl", poisson(100.0, 300, model="both"))
    assert plan(models, log, "--objective", "both:p99<60ms", "--maximise", "goodput") == 0
    chosen = capsys.readouterr().out.splitlines()[2]
    assert "slow: " in chosen
    assert "quick: " in chosen


def test_processes_play_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_planned_model(tmp_path / "models")
    log = write_plan_log(tmp_path / "log.jsonl", count=100)
    found: list[str] = []
    for processes in ("1", "2"):
        assert plan(tmp_path / "models", log, "--objective", "p99<1s", "--processes", processes) == 0
        found.append(capsys.readouterr().out.split("\n", 1)[1])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--objective", "p98<1ms"], "'p98' is no measure"),
        (["--objective", ""], "needs a bound"),
        (["--objective", "p99<1s", "--profiles", "nowhere"], "has no profile"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_planned_model(tmp_path / "models")
    log = write_plan_log(tmp_path / "log.jsonl", count=10)
    assert plan(tmp_path / "models", log, *words) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no requests"),
        ('{"log":"trireme-requests","format":2,"clients":2}\n{"offset_s":0,"model":"m"}\n', "of a closed loop"),
        ("nonsense", "line 1"),
        ('{"offset_s":0,"model":"other"}', "there is no model 'other'"),
    ],
)
def test_a_log_that_cannot_be_planned_for_is_refused(
    tmp_path: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_planned_model(tmp_path / "models")
    (tmp_path / "log.jsonl").write_text(text)
    assert plan(tmp_path / "models", tmp_path / "log.jsonl", "--objective", "p99<1s") == 1
    assert told in capsys.readouterr().err
