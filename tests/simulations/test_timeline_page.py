"""Timelines as pages: what is drawn, that nothing comes from outside, and what sets two runs apart."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trireme.engine.job import SealReason
from trireme.engine.timeline import timeline_part
from trireme.simulations.compared import Difference, changed, differences, first_difference
from trireme.simulations.events import BatchSealed, ExecutionEnded, ExecutionStarted, RequestAnswered, RequestSubmitted
from trireme.simulations.history import History
from trireme.simulations.said_once import errors_said_once
from trireme.simulations.scenarios import SCENARIOS
from trireme.simulations.timeline_page import draw_page, timeline_data
from trireme.simulations.world import run_world

MS = 1_000_000
NOT_STARTED = "inference request for sequence {} to model 'm' must specify the START flag"


def asked(number: int, at_ms: int, model: str = "m", sequence: int = 0) -> RequestSubmitted:
    return RequestSubmitted(at_ms * MS, number, model, 1, 0, 0, sequence)


def executed(number: int, begin_ms: int, end_ms: int, *requests: int, reason: str = "full") -> list[Any]:
    return [
        BatchSealed(begin_ms * MS, number, "m", 1, "m_0", reason, requests, len(requests)),
        ExecutionStarted(begin_ms * MS, number),
        ExecutionEnded(end_ms * MS, number, "done"),
        *(RequestAnswered(end_ms * MS, request, "") for request in requests),
    ]


REFUSED = [
    event
    for number, sequence in ((3, 7), (4, 7), (5, 8))
    for event in (asked(number, 5, sequence=sequence), RequestAnswered(6 * MS, number, NOT_STARTED.format(sequence)))
]
FULL = [asked(6, 5), RequestAnswered(7 * MS, 6, "[request id: 6] Exceeds maximum queue size")]
FIRST = History((asked(1, 0), asked(2, 1), *executed(1, 1, 5, 1, 2), *REFUSED, *FULL))
SECOND = History((asked(1, 0), asked(2, 1), *executed(1, 1, 5, 1), *executed(2, 5, 9, 2, reason="delay over"), *FULL))


def test_equal_errors_are_said_once_with_how_many_sequences_heard_them() -> None:
    said = errors_said_once(FIRST)
    assert [(each.model, each.text, each.times) for each in said] == [
        ("m", "Exceeds maximum queue size", "1 times"),
        ("m", "inference request for a sequence to model 'm' must specify the START flag", "3 times, of 2 sequences"),
    ]
    assert said[1].at_ns == [6 * MS] * 3


def test_what_is_drawn_is_grouped_by_model_and_instance_with_reasons() -> None:
    data = timeline_data([("one", FIRST)])
    (run,) = data["runs"]
    (group,) = run["groups"]
    assert (group["name"], [lane["title"] for lane in group["lanes"]]) == ("m", ["queue", "m_0"])
    full = [reason.value for reason in SealReason].index("full")
    assert group["lanes"][1]["bars"] == [[1 * MS, 5 * MS, "1,2", 1, 2, full, 0]]
    assert data["reasons"][full] == "full"
    assert group["lanes"][0]["depths"][:2] == [(0, 1), (1 * MS, 0)]
    assert [(error["times"], len(error["atNs"])) for error in group["errors"]] == [
        ("1 times", 1),
        ("3 times, of 2 sequences", 3),
    ]
    assert "differences" not in data
    assert run["endNs"] == 7 * MS


def test_gpus_and_rows_of_sequences_have_their_places() -> None:
    data = timeline_data([("mixed", run_world(SCENARIOS["mixed"], 1))])
    kinds = {group["name"]: [lane["kind"] for lane in group["lanes"]] for group in data["runs"][0]["groups"]}
    assert kinds == {
        "text": ["queue", "batches", "batches", "batches"],
        "vision": ["queue", "batches", "batches"],
        "gpu0": ["stream", "stream"],
    }


def test_two_runs_are_put_side_by_side_with_their_difference() -> None:
    data = timeline_data([("one", FIRST), ("other", SECOND)])
    first, second = (run["groups"][0]["lanes"][1]["bars"] for run in data["runs"])
    assert [bar[-1] for bar in first] == [1]
    assert [bar[-1] for bar in second] == [1, 1]
    assert ["m", "batches", 1, 2] in data["differences"]
    assert ["m", "batches closed: delay over", None, 1] in data["differences"]
    assert ["m", "p99 in ms", 5.0, 8.0] in data["differences"]
    assert data["runs"][0]["notes"][0].startswith("they part at event 3, at 1 ms: BatchSealed(")
    same = timeline_data([("one", FIRST), ("again", FIRST)])
    assert same["runs"][0]["notes"] == ["both runs are equal, event for event"]
    assert not any(bar[-1] for run in same["runs"] for bar in run["groups"][0]["lanes"][1]["bars"])


def test_what_has_changed_is_told_apart_from_what_has_not() -> None:
    found = differences(FIRST, SECOND)
    assert Difference("m", "error: Exceeds maximum queue size", 1, 1) in found
    assert Difference("m", "answered well", 2, 2) in found
    assert {each.what for each in changed(found)} == {
        "batches",
        "batches closed: delay over",
        "error: inference request for a sequence to model 'm' must specify the START flag",
        "p50 in ms",
        "p99 in ms",
        "requests",
        "rows a batch",
    }
    assert changed(differences(FIRST, FIRST)) == []


def test_a_run_that_goes_on_differs_where_the_other_ends() -> None:
    shorter = History(FIRST.events[:4])
    assert first_difference(FIRST, shorter) == "they are equal up to event 4, where one of them ends"
    assert first_difference(FIRST, FIRST) == ""


class _Page(HTMLParser):
    """Collects what a page refers to, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.scripts: list[str] = []
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "data", "action")]
        self._script = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._script = False


def test_a_page_has_its_data_and_needs_nothing_from_outside() -> None:
    runs = [("one", FIRST), ("other", SECOND)]
    text = draw_page(runs)
    page = _Page(text)
    assert page.outside == []
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|import\s", text)
    assert json.loads(page.scripts[0]) == json.loads(json.dumps(timeline_data(runs)))
    assert "prefers-color-scheme: dark" in text
    assert "TriremeTimeline.mount(" in page.scripts[1]


def test_names_cannot_end_the_script_or_become_markup() -> None:
    evil = "</script><img src=x>"
    text = draw_page([(evil, History((asked(1, 0, model=evil), RequestAnswered(1, 1, evil))))])
    page = _Page(text)
    assert page.outside == []
    assert json.loads(page.scripts[0])["runs"][0]["groups"][0]["name"] == evil


def test_an_empty_history_makes_a_page() -> None:
    assert json.loads(_Page(draw_page([("nothing", History(()))])).scripts[0])["runs"][0]["groups"] == []


def test_each_reason_has_a_colour() -> None:
    script = timeline_part("timeline.js")
    for reason in SealReason:
        assert f'"{reason.value}": "#' in script


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here to read the script")
def test_the_script_can_be_read(tmp_path: Path) -> None:
    script = tmp_path / "timeline.js"
    script.write_text(timeline_part("timeline.js"))
    subprocess.run(["node", "--check", str(script)], check=True, timeout=60)
