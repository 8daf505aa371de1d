"""Routes as files and as JSON (`engine.routing.documents`)."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.request import LATEST
from trireme.engine.routing.documents import read_route, read_routes, read_target, route_document
from trireme.engine.routing.route import Canary, CanaryLimits, ModelRoute, Shadow, StickyBy, Target

FULL = """
[routes.digits]
targets = { "digits:1" = 90, "digits:2" = 10 }
sticky = "header:X-User"

[routes.digits.canary]
target = "digits:2"
steps = [10, 100]
step-secs = 5
errors = 0.02
p99-times = 1.5
queue-times = 2
slack-ms = 0.5

[routes.digits.shadow]
target = "digits:3"
percent = 50
tolerance = 0.001

[routes."a.b"]
targets.other = 100
"""
OF_DIGITS = ((Target("digits", 1), 90), (Target("digits", 2), 10))
SMALL = '[routes.r]\ntargets = { "a" = 90, "b:2" = 10 }\n'


def test_a_file_with_everything() -> None:
    digits, other = read_routes(FULL, "routes.toml")
    canary = Canary(Target("digits", 2), (10, 100), 5, CanaryLimits(0.02, 1.5, 2, 0.0005))
    shadow = Shadow(Target("digits", 3), 50, 0.001)
    assert digits == ModelRoute("digits", OF_DIGITS, StickyBy.HEADER, "x-user", canary, shadow)
    assert other == ModelRoute("a.b", ((Target("other"), 100),))


def test_what_a_file_may_leave_out() -> None:
    text = '[routes.r]\ntargets = { a = 90, b = 10 }\ncanary.target = "b"\nshadow.target = "c"\n'
    (route,) = read_routes(text, "f")
    assert route.sticky is StickyBy.NOTHING
    assert route.canary == Canary(Target("b"))
    assert route.shadow == Shadow(Target("c"))
    assert read_routes("", "f") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[route.a]", "f:1: route: found an unknown key, expected one of routes; did you mean routes?"),
        ("routes = 1", "f:1: routes: found 1, expected a table for each route"),
        ("[routes.r]", "f:1: routes.r: found no targets, expected targets = weights by target"),
        ("[routes.r]\ntarget = {a = 100}", "f:2: routes.r.target: found an unknown key, expected one of canary, "),
        ("[routes.r]\ntargets = {}", "f:2: routes.r.targets: it has no targets"),
        (
            "[routes.r]\ntargets = {a = 9}",
            "f:2: routes.r.targets: the weights of its targets add up to 9, expected 100",
        ),
        ("[routes.r]\ntargets = {a = 1.5}", "f:2: routes.r.targets.a: found 1.5, expected a whole percent"),
        ("[routes.r]\ntargets = {a = true}", "f:2: routes.r.targets.a: found True, expected a whole percent"),
        ("[routes.r.targets]\na = -1\nb = 101", "f:2: routes.r.targets.a: the weight of target 'a' is -1, expected 0 "),
        ('[routes.r]\ntargets = {"" = 100}', "f:2: routes.r.targets: found an empty name, expected a model or "),
        ('[routes.r]\ntargets = {"a:1" = 50, "a:01" = 50}', "target 'a:1' is named 2 times, expected once"),
        (f'{SMALL}sticky = "user"', "f:3: routes.r.sticky: found 'user', expected sequence, header:NAME, "),
        (f'{SMALL}sticky = "nothing"', "f:3: routes.r.sticky: found 'nothing', expected sequence, header:NAME, "),
        (f'{SMALL}sticky = "header"', "f:3: routes.r.sticky: found 'header', expected sequence, header:NAME, "),
        (f'{SMALL}sticky = "sequence:x"', "f:3: routes.r.sticky: found 'sequence:x', expected sequence, "),
        (f'{SMALL}sticky = "header:a b"', "found 'header:a b', expected the name of a header after the colon"),
        (f'{SMALL}sticky = "parameter:"', "found 'parameter:', expected the name of a parameter after the colon"),
        (f"{SMALL}[routes.r.canary]\nsteps = [1]", "f:3: routes.r.canary: found no target, expected target = a model"),
        (f'{SMALL}[routes.r.canary]\ntarget = "b:1"', "f:4: routes.r.canary.target: the canary 'b:1' is none of its "),
        (f'{SMALL}[routes.r.canary]\ntarget = "b:1"', "none of its targets, expected one of 'a', 'b:2'"),
        (f'{SMALL}canary = {{target = "a", steps = [5, 1]}}', "f:3: routes.r.canary.steps: the canary's steps are [5,"),
        (f'{SMALL}canary = {{target = "a", steps = [0.5]}}', "f:3: routes.r.canary.steps[0]: found 0.5, expected a "),
        (f'{SMALL}canary = {{target = "a", step = 1}}', "canary.step: found an unknown key, expected one of errors, "),
        (f'{SMALL}[routes.r.canary]\ntarget = "a"\nerrors = 1', "f:5: routes.r.canary.errors: found 1, expected a "),
        (f'{SMALL}[routes.r.canary]\ntarget = "a"\nerrors = nan', "f:5: routes.r.canary.errors: found nan, expected "),
        (f'{SMALL}[routes.r.canary]\ntarget = "a"\np99-times = 1', "p99-times: found 1, expected more than 1"),
        (f'{SMALL}[routes.r.canary]\ntarget = "a"\nqueue-times = inf', "queue-times: found inf, expected more than 1"),
        (f'{SMALL}[routes.r.canary]\ntarget = "a"\nslack-ms = -1', "slack-ms: found -1, expected 0 or more"),
        (f'{SMALL}[routes.r.canary]\ntarget = "a"\nstep-secs = -1', "the canary's steps take -1 s, expected 0 to "),
        (f'{SMALL}[routes.r.canary]\ntarget = "a"\nstep-secs = 1e300', "take 1e+300 s, expected 0 to 1,000,000,000"),
        (f'{SMALL}canary = "a"', "f:3: routes.r.canary: found 'a', expected a table with a target"),
        (f'{SMALL}[routes.r.canary]\ntarget = "a"\nslack-ms = {10**400}', "expected a smaller number"),
        ('[routes.r]\ntargets.a = 100\ncanary.target = "a"', "a canary needs another target to be compared with"),
        (f'{SMALL}shadow.target = "a"', "f:3: routes.r.shadow.target: the shadow 'a' is a target, too"),
        (f'{SMALL}[routes.r.shadow]\ntarget = "c"\npercent = 0', "f:5: routes.r.shadow.percent: the shadow's share is"),
        (f'{SMALL}[routes.r.shadow]\ntarget = "c"\ntolerance = -1', "shadow.tolerance: found -1, expected 0 or more"),
        (
            '[routes."a/b"]\ntargets.a = 100',
            "f:1: routes.a/b: its name is 'a/b', expected that of a model: not empty, ",
        ),
        ("[routes.r]\ntargets.r = 100", "f:2: routes.r.targets.r: routes lead in a circle: from 'r' to 'r'"),
        (f"[routes.a]\ntargets.z = 100\n{SMALL}", "f:4: routes.r.targets.a: target 'a' is a route, expected a model"),
        (f'{SMALL}shadow.target = "z"\n[routes.z]\ntargets.q = 100', "f:3: routes.r.shadow.target: target 'z' is a "),
        (
            "[routes.a]\ntargets.b = 100\n[routes.b]\ntargets.a = 100",
            "circle: from 'a' to 'b' to 'a', expected a model",
        ),
        ("[routes.a]\n[routes.a]", "f: not valid TOML: "),
    ],
)
def test_faulty_files(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_routes(text, "f")
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], "route 'r': found [], expected an object"),
        ({}, "route 'r': found no targets, expected targets = weights by target"),
        ({"targets": {"a": 90}}, "route 'r': targets: the weights of its targets add up to 90, expected 100"),
        ({"targets": {"a": 100}, "canry": {}}, "route 'r': canry: found an unknown key, expected one of "),
        ({"targets": {"a": None}}, "route 'r': targets.a: found None, expected a whole percent"),
    ],
)
def test_faulty_tables(document: object, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_route("r", document)
    assert expected in caught.value.message


def test_null_is_as_if_left_out() -> None:
    assert read_route("r", {"targets": {"a": 100}, "canary": None, "sticky": None}) == read_route(
        "r", {"targets": {"a": 100}}
    )


def test_a_route_may_have_the_name_of_what_another_route_names_with_a_version() -> None:
    text = '[routes.digits]\ntargets = { "digits:1" = 90, "digits:2" = 10 }\n[routes.r]\ntargets."digits:1" = 100\n'
    digits, other = read_routes(text, "f")
    assert digits.targets == (Target("digits", 1), Target("digits", 2))
    assert other.targets == (Target("digits", 1),)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a", Target("a")),
        ("a:2", Target("a", 2)),
        ("a:b:3", Target("a:b", 3)),
        ("a:b", Target("a:b")),
        ("a:", Target("a:")),
        (":2", Target(":2")),
        ("a:\u00b2", Target("a:\u00b2")),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert read_target(text) == target
    assert read_target(str(target)) == target


NAMES = st.from_regex(r"\A[a-z.:_ -]{1,8}\Z")
TARGETS = st.builds(Target, NAMES, st.just(LATEST) | st.integers(0, 10**18 - 1))
AMOUNTS = st.integers(0, 10**6).map(lambda number: number / 1e6)


@st.composite
def routes(draw: st.DrawFn) -> ModelRoute:
    targets = draw(st.lists(TARGETS, min_size=2, max_size=5, unique=True))
    shadow = draw(TARGETS.filter(lambda target: target not in targets))
    cuts = sorted(draw(st.lists(st.integers(0, 100), min_size=len(targets) - 1, max_size=len(targets) - 1)))
    weights = [high - low for low, high in zip([0, *cuts], [*cuts, 100], strict=True)]
    sticky = draw(st.sampled_from(StickyBy))
    errors, p99_times, queue_times = (draw(AMOUNTS) * 0.9 + add for add in (0.01, 1.01, 1.01))
    limits = CanaryLimits(errors, p99_times, queue_times, draw(AMOUNTS))
    steps = tuple(sorted(draw(st.sets(st.integers(1, 100), min_size=1, max_size=6))))
    canary = Canary(draw(st.sampled_from(targets)), steps, draw(AMOUNTS), limits)
    return ModelRoute(
        draw(NAMES),
        tuple(zip(targets, weights, strict=True)),
        sticky,
        "x-user" if sticky in (StickyBy.HEADER, StickyBy.PARAMETER) else "",
        draw(st.none() | st.just(canary)),
        draw(st.none() | st.builds(Shadow, st.just(shadow), st.integers(1, 100), AMOUNTS)),
    )


@given(routes())
def test_a_route_survives_its_document(route: ModelRoute) -> None:
    document = json.loads(json.dumps(route_document(route)))
    assert read_route(route.name, document) == route
    assert route_document(read_route(route.name, document)) == document


@given(routes())
def test_a_document_as_a_file_is_the_same_route(route: ModelRoute) -> None:
    """JSON's texts, numbers and lists are TOML's, too."""
    assume(Target(route.name) not in route.targets)
    assume(route.shadow is None or route.shadow.target != Target(route.name))
    lines = [f"[routes.{json.dumps(route.name)}]"]
    for key, value in route_document(route).items():
        if isinstance(value, dict):
            lines += [f"{key}.{json.dumps(inner)} = {json.dumps(found)}" for inner, found in value.items()]
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    assert read_routes("\n".join(lines), "f") == [route]
