"""Profiles as files: read as they were written, and refused with the place of what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_profiles import some_profile

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.profiles import (
    ExecutorKind,
    HostPoint,
    RestedLoop,
    ServicePoint,
    TimeDistribution,
    Way,
    read_profile,
)

durations = st.lists(st.floats(0, 10), min_size=1, max_size=20).map(TimeDistribution.of)
points = st.builds(
    ServicePoint, st.integers(1, 64), st.integers(2, 4), st.floats(0, 8), durations, st.floats(0, 1), st.floats(0, 1)
)
rests = st.lists(st.builds(RestedLoop, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), max_size=3)
hosts = st.builds(
    HostPoint,
    *(st.sampled_from(Way), st.integers(0, 1 << 20), st.integers(0, 4), st.floats(0, 1), st.floats(0, 1), durations),
    rests.map(lambda found: tuple(sorted(found, key=lambda each: each.rest_s))),
    st.floats(1, 2),
    front_request_s=st.floats(0, 1),
    front_turn_s=st.floats(0, 1),
)


@given(st.lists(points, max_size=5), st.lists(hosts, max_size=3), st.sampled_from(ExecutorKind), st.booleans())
def test_a_file_gives_the_profile_back(
    service: list[ServicePoint], host: list[HostPoint], kind: ExecutorKind, recorded: bool
) -> None:
    alone = ServicePoint(1, 1, 1.0, TimeDistribution.constant(0.001))
    ordered = sorted([alone, *service], key=lambda point: (point.rows, point.side_by_side))
    profile = some_profile(service=tuple(ordered), host=tuple(host), executor=kind, recorded=recorded)
    assert read_profile(profile.to_json(), "it") == profile


def test_a_profile_from_before_front_ends_were_measured_is_read() -> None:
    point = HostPoint(Way.GRPC, 64, 0, 0.001, 0.002, TimeDistribution.constant(0.003))
    document = json.loads(some_profile(host=(point,)).to_json())
    for name in ("front_request_s", "front_turn_s"):
        del document["host"][0][name]
    assert read_profile(json.dumps(document), "it").host == (point,)


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.pop(name)


def _with(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update({name: value})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_with("format", 1), "format 1 of profiles is not known; expected 5"),
        (_without("model"), "model is missing"),
        (_with("model", ""), "model: expected a text, not ''"),
        (_with("more", 1), "unknown member 'more'"),
        (_with("version", 0), "version: expected a whole number from 1 on, not 0"),
        (_with("executor", "here"), "executor: expected one of thread, proving, process, device, not 'here'"),
        (_with("service", []), "service: expected a measurement of one instance alone"),
        (_with("service", [3]), "service: expected a list of objects"),
        (_with("service", [{"rows": 1}]), r"service\[0\]: side_by_side is missing"),
        (_with("host", [{"way": "smoke"}]), r"host\[0\].way: expected one of http, json, grpc, stream, not 'smoke'"),
        (_with("start", None), "start: expected an object"),
        (_with("starting", {"load_s": -1, "instance_s": 0}), "starting.load_s: expected a number from 0 on, not -1"),
        (_with("origin", {}), "origin: expected an object with date, machine"),
        (_with("recorded", 1), "recorded: expected true or false, not 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(change: Callable[[dict[str, Any]], object], text: str) -> None:
    document = json.loads(some_profile().to_json())
    change(document)
    with pytest.raises(InvalidArgumentError, match=f"^it[.:].*{text}|^it.{text}"):
        read_profile(json.dumps(document), "it")


@pytest.mark.parametrize("text", ["", "[]", "3", '{"format": '])
def test_what_is_no_profile_at_all_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^it: "):
        read_profile(text, "it")
