"""What a plan leaves in a folder, and the front in its picture."""

from __future__ import annotations

import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_repositories import write_plan_log, write_planned_model

from trireme.api.cli.main import main
from trireme.foresight.search.fronts import FrontPoint, front_svg, pareto_front
from trireme.foresight.search.objective import Aim, read_objective
from trireme.foresight.search.settings import ModelSetting, PlanSetting

POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20)


@given(POINTS)
def test_the_front_is_what_no_other_is_better_than(points: list[tuple[int, int]]) -> None:
    front = [points[place] for place in pareto_front(points)]
    assert len(set(front)) == len(front)
    for gain, loss in points:
        better = any(g >= gain and b <= loss and (g, b) != (gain, loss) for g, b in points)
        assert ((gain, loss) in front) is not better
    assert [loss for _, loss in front] == sorted(loss for _, loss in front)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-6, 1e3), st.sampled_from(["front", "other", "chosen"]))))
def test_any_points_make_a_picture(found: list[tuple[float, float, str]]) -> None:
    setting = PlanSetting((("<m>", ModelSetting()), ("n", ModelSetting())))
    points = [FrontPoint(rate, p99_s, label, setting) for rate, p99_s, label in found]
    root = ElementTree.fromstring(front_svg(points, read_objective("p99<50ms", Aim.GOODPUT)))
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert sum(circle.find("{http://www.w3.org/2000/svg}title") is not None for circle in circles) == len(points)
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= 860
        assert 0 <= float(circle.attrib["cy"]) <= 420


def test_a_report_needs_nothing_from_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_planned_model(tmp_path / "models")
    log = write_plan_log(tmp_path / "log.jsonl", rate_hz=250.0, count=300)
    words = ["--settings", "12", "--plays", "2", "--processes", "1", "--cores", "4", "--output", str(tmp_path / "out")]
    assert main(["plan", str(tmp_path / "models"), "--log", str(log), "--objective", "p99<30ms", *words]) == 0
    shown = capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    drawn = {"front.png"} if importlib.util.find_spec("matplotlib") is not None else set()
    assert names == {"plan.html", "front.svg", "config.diff", "plan.json"} | drawn
    page = (tmp_path / "out" / "plan.html").read_text()
    outside = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|src=|href=|@import|url\(", outside)
    assert "<svg" in page
    assert (tmp_path / "out" / "config.diff").read_text() in shown
    document = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert document["kept"] is True
    assert document["settings"][0]["label"] == "chosen"
    assert document["settings"][0]["p99"]["value"] <= 0.03


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_planned_model(tmp_path / "models")
    log = write_plan_log(tmp_path / "log.jsonl", count=20)
    words = ["--settings", "2", "--plays", "1", "--processes", "1", "--output", str(log)]
    assert main(["plan", str(tmp_path / "models"), "--log", str(log), "--objective", "p99<1s", *words]) == 1
    assert "the report cannot be written" in capsys.readouterr().err
