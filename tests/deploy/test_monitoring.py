"""The dashboard and the rules are what `deploy/monitoring/make_files.py` makes, of metrics that servers have."""

from __future__ import annotations

import json
from pathlib import Path

import make_files
import panels
import pytest
import yaml


def test_the_files_are_those_that_the_script_makes(capsys: pytest.CaptureFixture[str]) -> None:
    """`python deploy/monitoring/make_files.py` writes them anew."""
    assert make_files.main(["--check"]) == 0, capsys.readouterr().err


def test_a_metric_that_is_gone_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = make_files.families()
    monkeypatch.setattr(make_files, "families", lambda: names - {"trireme_instance_count"})
    monkeypatch.setattr(make_files, "FILES", tmp_path)
    assert make_files.main([]) == 1
    assert capsys.readouterr().err == "no server has these metrics: trireme_instance_count\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_says_something_else_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(make_files, "FILES", tmp_path)
    assert make_files.main([]) == 0
    (tmp_path / "rules.yaml").write_text("groups: []\n")
    assert make_files.main(["--check"]) == 1
    assert "rules.yaml is not what" in capsys.readouterr().err


def test_all_panels_have_a_place_of_their_own() -> None:
    shown = json.loads((make_files.FILES / "dashboard.json").read_text())["panels"]
    places = {(each["gridPos"]["x"], each["gridPos"]["y"]) for each in shown}
    assert len(places) == len(shown) == len({each["id"] for each in shown})
    assert {each["title"] for each in shown} >= {panel.title for _, row in panels.ROWS for panel in row}


def test_the_autoscaler_reads_what_the_rules_record() -> None:
    files = {
        name: yaml.safe_load((make_files.FILES / name).read_text())
        for name in ("rules.yaml", "prometheus-adapter.yaml")
    }
    recorded = [rule.get("record") for group in files["rules.yaml"]["groups"] for rule in group["rules"]]
    (custom,) = files["prometheus-adapter.yaml"]["rules"]["custom"]
    values = yaml.safe_load((make_files.FILES.parent / "values.yaml").read_text())
    base = make_files.FILES.parents[2] / "kustomize" / "base" / "horizontalpodautoscaler.yaml"
    (metric,) = yaml.safe_load(base.read_text())["spec"]["metrics"]
    names = {custom["seriesQuery"], values["autoscaling"]["metric"], metric["pods"]["metric"]["name"]}
    assert names == {panels.QUEUE_SECONDS}
    assert panels.QUEUE_SECONDS in recorded
