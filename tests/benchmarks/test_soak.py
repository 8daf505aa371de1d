"""The soak: its verdict on samples, and that its clients get what they want."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks"

FLAT = {"rss_bytes": 100e6, "tasks": 80.0, "descriptors": 40.0, "threads": 20.0}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import soak_report

    return soak_report


def samples(name: str = "tasks", value: Callable[[float], float] = lambda _at_s: 80.0) -> list[dict[str, float]]:
    """Of 100 s, all flat but one."""
    return [{"at_s": float(at_s), **FLAT, name: value(float(at_s))} for at_s in range(100)]


def verdicts(report: ModuleType, taken: list[dict[str, float]]) -> dict[str, bool]:
    return {growth.series.name: growth.flat for growth in report.growths(taken)}


def test_what_stays_is_flat(report: ModuleType) -> None:
    assert all(verdicts(report, samples()).values())


@pytest.mark.parametrize(
    ("name", "a_second"), [("rss_bytes", 0.5e6), ("tasks", 1.0), ("descriptors", 0.5), ("threads", 0.2)]
)
def test_what_grows_with_time_is_not(report: ModuleType, name: str, a_second: float) -> None:
    """And it alone is blamed."""
    found = verdicts(report, samples(name, lambda at_s: FLAT[name] + a_second * at_s))
    assert [each for each, flat in found.items() if not flat] == [name]


def test_what_grows_at_first_and_in_bursts_is_flat(report: ModuleType) -> None:
    """The first quarter does not count, and of the others the medians."""
    assert all(verdicts(report, samples("tasks", lambda at_s: 80 if at_s > 20 else 10)).values())
    assert all(verdicts(report, samples("tasks", lambda at_s: 500 if at_s % 10 == 9 else 80)).values())


def test_what_is_left_behind_is_said(report: ModuleType) -> None:
    before = {"at_s": 0.0, **FLAT}
    assert report.left_behind(before, {**before, "rss_bytes": 200e6, "tasks": 84.0}) == []
    assert report.left_behind(before, {**before, "tasks": 90.0}) == ["10 more tasks than before the load"]


def test_too_few_samples_are_no_verdict(report: ModuleType) -> None:
    with pytest.raises(ValueError, match="1 samples are too few"):
        report.growths(samples()[:1])


def test_the_picture_shows_every_series(report: ModuleType) -> None:
    picture = ElementTree.fromstring(report.draw(samples("tasks", lambda at_s: at_s)))
    assert len(picture.findall("{*}polyline")) == 4
    texts = [element.text or "" for element in picture.findall("{*}text")]
    assert [text for text in texts if "GROWS" in text] == ["trio tasks: 37.0 -> 87.0, GROWS"]


def test_every_client_gets_what_it_wants(tmp_path: Path) -> None:
    """A few seconds of it: each action is done, no client complains, and the report is there."""
    command = [sys.executable, str(SCRIPTS / "soak.py"), "--minutes", "0.03", "--rest", "0.5"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "soak")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    written = json.loads((tmp_path / "soak.json").read_text())
    assert written["complaints"] == {}, done.stdout
    assert all(written["actions"].values()), done.stdout
    assert len(written["actions"]) == 21
    assert ElementTree.parse(tmp_path / "soak.svg").getroot().tag.endswith("svg")
    assert "trio tasks: " in done.stdout
