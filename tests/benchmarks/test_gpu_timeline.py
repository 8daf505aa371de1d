"""How much of a GPU's copies is hidden behind computation, from what a profiler saw."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

from gpu_timeline import Timeline, merged, overlap, picture, timeline


def test_events_are_copies_by_their_names_and_all_else_is_computation() -> None:
    events = [
        ("Memcpy DtoH (Device -> Pinned)", 7.0, 9.0),
        ("sm90_xmma_fprop", 2.0, 7.0),
        ("Memcpy HtoD (Pinned -> Device)", 0.0, 2.0),
        ("Memcpy DtoD (Device -> Device)", 9.0, 9.5),
    ]
    assert timeline(events) == Timeline([(0.0, 2.0)], [(2.0, 7.0), (9.0, 9.5)], [(7.0, 9.0)])


@pytest.mark.parametrize(
    ("shown", "hidden", "busy"),
    [
        (Timeline([(0, 2)], [(2, 6)], [(6, 8)]), 0.0, 0.5),
        (Timeline([(0, 2), (3, 5)], [(2, 6)], []), 0.5, 4 / 6),
        (Timeline([(1, 2)], [(0, 4), (4, 8)], [(3, 5)]), 1.0, 1.0),
        (Timeline([], [(0, 1)], []), 0.0, 1.0),
        (Timeline([], [], []), 0.0, 0.0),
    ],
)
def test_what_is_hidden_is_the_share_of_the_copies_during_which_something_is_computed(
    shown: Timeline, hidden: float, busy: float
) -> None:
    assert (shown.hidden(), shown.busy()) == (hidden, pytest.approx(busy))


def test_spans_are_merged_and_cut() -> None:
    assert merged([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]
    assert overlap([(0, 4), (5, 6)], [(1, 2), (3, 7)]) == [(1, 2), (3, 4), (5, 6)]


def test_the_picture_has_a_row_for_each_kind_of_work() -> None:
    drawn = ElementTree.fromstring(picture(Timeline([(0, 100)], [(50, 900)], [(900, 950)]), "a title"))
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in drawn.iter(f"{space}text")][:4] == [
        "a title",
        "copies in",
        "computation",
        "copies out",
    ]
    assert len(list(drawn.iter(f"{space}rect"))) == 4, "the background, and a bar in each row"
    assert picture(Timeline([], [], []), "nothing").endswith("</svg>")
