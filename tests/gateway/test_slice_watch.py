"""What is asked of the API server next, and what the log is told."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from kubernetes_api import endpoint, endpoint_slice, with_version

from trireme.gateway import slice_watch
from trireme.gateway.endpoint_slices import EndpointSlices
from trireme.gateway.slice_watch import ApiServerError, SliceStep, SliceWatch

LIST, WATCH = SliceStep.LIST, SliceStep.WATCH
EMPTY: dict[str, Any] = {"metadata": {"resourceVersion": "5"}, "items": []}
BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
AWAY = ApiServerError("refused")


class _Least(Random):
    """Always the longest pause."""

    def random(self) -> float:
        return 0.0


def watch(chance: Random | None = None) -> SliceWatch:
    return SliceWatch(EndpointSlices("grpc"), chance or _Least())


def watching() -> SliceWatch:
    made = watch()
    made.listed(EMPTY)
    made.accepted()
    return made


def fail(made: SliceWatch, event: dict[str, Any]) -> bool:
    with pytest.raises(ApiServerError) as failed:
        made.told(event)
    return made.failed(failed.value)


def test_a_list_and_then_a_watch_from_its_version() -> None:
    made = watch()
    assert (made.step, made.pause_s) == (LIST, 0)
    assert not made.listed(EMPTY)
    assert (made.step, made.pause_s, made.slices.version) == (WATCH, 0, "5")
    assert not made.accepted()
    assert made.told({"type": "ADDED", "object": with_version(endpoint_slice("s", endpoint("a", "h")), 7)})
    assert not made.told(BOOKMARK)
    made.ended(0)
    assert (made.step, made.pause_s, made.slices.version) == (WATCH, 0, "8")


def test_watches_that_end_at_once_do_not_follow_each_other_without_a_pause() -> None:
    made = watching()
    made.ended(300)
    assert made.pause_s == 0
    for pause_s in (0.5, 1, 2):
        made.accepted()
        made.ended(0.1)
        assert (made.step, made.pause_s) == (WATCH, pause_s)
    made.accepted()
    made.ended(300)
    assert made.pause_s == 0


@pytest.mark.parametrize("how", ["event", "answer"])
def test_a_version_that_is_too_old(how: str) -> None:
    """A list again: at once, and without a word; if that does not help, after a pause."""
    made = watching()
    for number, pause_s in enumerate((0, 1, 2)):
        told = fail(made, GONE) if how == "event" else made.failed(ApiServerError("too old", 410))
        assert told is (number > 0)
        assert (made.step, made.pause_s) == (LIST, pause_s)
        assert made.listed(EMPTY) is (number > 0)
        made.accepted()
    made.ended(300)
    made.accepted()
    assert not fail(made, GONE)
    assert made.pause_s == 0


def test_lists_do_not_follow_each_other_without_a_pause_if_watches_tell_something_first() -> None:
    made = watching()
    for pause_s in (0, 0.5, 0.5):
        made.told(BOOKMARK)
        fail(made, GONE)
        assert (made.step, made.pause_s) == (LIST, pause_s)
        made.listed(EMPTY)
        made.accepted()


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": "ADDED"},
        {"type": "ADDED", "object": {}},
        {"type": "?", "object": BOOKMARK["object"]},
        {"type": "ERROR", "object": {}},
        {"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}},
    ],
)
def test_what_cannot_be_read_is_followed_by_a_list(event: dict[str, Any]) -> None:
    made = watching()
    assert fail(made, event)
    assert (made.step, made.pause_s) == (LIST, 0.5)


def test_a_list_that_is_none() -> None:
    made = watch()
    with pytest.raises(ApiServerError, match="no list of EndpointSlices: an object without metadata"):
        made.listed({"items": []})
    assert made.step is LIST


def test_pauses_grow_to_a_limit_and_are_drawn() -> None:
    made = watch()
    pauses: list[float] = []
    for _ in range(9):
        made.failed(AWAY)
        pauses.append(made.pause_s)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert made.step is LIST
    made = watch(Random(5))
    drawn: set[float] = set()
    for _ in range(30):
        made.failed(AWAY)
        drawn.add(made.pause_s)
    assert all(15 <= each <= 30 for each in list(drawn)[10:] if each > 16)
    assert len(drawn) == 30


def test_trouble_is_told_once_and_so_is_its_end() -> None:
    made = watch()
    assert made.failed(AWAY)
    assert not made.failed(AWAY)
    assert made.failed(ApiServerError("forbidden", 403))
    assert not made.failed(ApiServerError("forbidden", 403))
    assert made.listed(EMPTY)
    assert not made.accepted()
    assert not made.listed(EMPTY)


def test_a_watch_that_is_lost_is_worth_a_word_if_the_next_one_fails() -> None:
    made = watching()
    assert not made.failed(AWAY)
    assert (made.step, made.pause_s) == (WATCH, 0.5)
    assert not made.accepted()
    assert not made.failed(AWAY)
    assert made.failed(AWAY)
    assert made.accepted()


def test_a_watch_that_is_refused_is_asked_for_again() -> None:
    """Not the list, which may be allowed."""
    made = watch()
    made.listed(EMPTY)
    assert made.failed(ApiServerError("forbidden", 403))
    assert made.step is WATCH


def happen(made: SliceWatch, event: str) -> None:
    """One event of the table, the first of its kind."""
    if event == "listed":
        made.listed(EMPTY)
    elif event == "ended":
        made.ended(300)
    elif event == "failed":
        made.failed(AWAY)
    elif event == "410":
        fail(made, GONE)
    else:
        assert event == "told what cannot be read"
        fail(made, {})


def test_the_table_of_states_is_what_happens() -> None:
    assert slice_watch.__doc__ is not None
    lines = slice_watch.__doc__.splitlines()
    rows = [re.split(r"\s{2,}", line) for line in lines if line.startswith(("list ", "watch "))]
    assert len(rows) == len({(state, event) for state, event, _ in rows}) == 6
    for state, event, following in rows:
        made = watch() if state == "list" else watching()
        assert made.step.value == state
        happen(made, event)
        assert made.step.value == following.partition(",")[0], (state, event)
        assert (made.pause_s == 0) is ("at once" in following), (state, event)
