"""Rights: which include which, for which models, and that more patterns never allow less."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.access.callers import Caller, Right
from trireme.engine.access.patterns import LONGEST_NAME, NamePatterns, pattern_fault
from trireme.engine.errors import PermissionDeniedError

NAMES = st.text("ab*", max_size=4)
PATTERNS = st.dictionaries(st.sampled_from(Right), st.lists(st.text("ab*?", min_size=1, max_size=4)).map(tuple))


def caller(**patterns: list[str]) -> Caller:
    return Caller("a", 1, {Right(right): tuple(each) for right, each in patterns.items()}, 1)


@pytest.mark.parametrize(
    ("right", "includes"),
    [
        (Right.INFER, {Right.INFER}),
        (Right.READ, {Right.READ}),
        (Right.MANAGE, {Right.MANAGE, Right.READ}),
        (Right.ADMIN, {Right.ADMIN, Right.MANAGE, Right.READ}),
    ],
)
def test_a_right_includes_those_below_it(right: Right, includes: set[Right]) -> None:
    one = caller(**{right.value: ["m*"]})
    assert {each for each in Right if one.may(each, "model")} == includes
    assert not any(one.may(each, "other") for each in Right)
    assert not any(one.may(each) for each in Right), "not on all models"
    everything = caller(**{right.value: ["*"]})
    assert {each for each in Right if everything.may(each)} == includes


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "", True),
        ("*", "a b", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[ab]c", "bc", True),
        ("[!ab]c", "bc", False),
        ("A", "a", False),
        ("a.c", "abc", False),
        ("a", "a\n", False),
        ("*", "x" * LONGEST_NAME, True),
        ("*", "x" * (LONGEST_NAME + 1), False),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    assert (name in NamePatterns([pattern])) is matches


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [("", "empty"), ("a[b", "no ]"), ("a\n", "printed"), ("a" * 257, "257"), ("[]]", None), ("[!]a]b", None)],
)
def test_patterns_that_nothing_could_match_are_faulty(pattern: str, fault: str | None) -> None:
    found = pattern_fault(pattern)
    assert found is None if fault is None else found is not None and fault in found


@given(PATTERNS, PATTERNS, NAMES)
def test_more_patterns_never_allow_less(
    some: dict[Right, tuple[str, ...]], more: dict[Right, tuple[str, ...]], model: str
) -> None:
    both = {right: (*some.get(right, ()), *more.get(right, ())) for right in Right}
    for right in Right:
        if Caller("a", 1, some, 1).may(right, model):
            assert Caller("a", 1, both, 1).may(right, model)


@given(PATTERNS, NAMES)
def test_who_may_something_on_all_models_may_it_on_each(patterns: dict[Right, tuple[str, ...]], model: str) -> None:
    one = Caller("a", 1, patterns, 1)
    for right in Right:
        assert not one.may(right) or one.may(right, model)


def test_what_is_remembered_of_names_is_bounded_and_stays_right() -> None:
    one = caller(read=["1*"])
    for _ in range(2):
        assert sum(one.may(Right.READ, str(number)) for number in range(3000)) == 1 + 10 + 100 + 1000
    assert all(len(known) <= 1024 for known in one._known.values())


def test_a_caller_until_some_time() -> None:
    one = caller(read=["*"])
    assert one.until(None) is one
    later = one.until(5.0)
    assert (later.name, later.number, later.generation, later.expires_s) == ("a", 1, 1, 5.0)
    assert later.may(Right.READ, "x")
    assert not later.may(Right.INFER, "x")
    assert not later.expired(4.9)
    assert later.expired(5.0)
    assert not one.expired(1e9)


def test_rights_on_any_model() -> None:
    one = caller(manage=["m"])
    one.check_any(Right.READ)
    one.check(Right.READ, "m")
    with pytest.raises(PermissionDeniedError, match="caller 'a' does not have the right 'admin' on any model"):
        one.check_any(Right.ADMIN)
    with pytest.raises(PermissionDeniedError, match="caller 'a' does not have the right 'read' on all models"):
        one.check(Right.READ)


@given(PATTERNS, st.none() | st.floats(0, 10), NAMES)
def test_a_caller_made_of_its_plain_values_is_the_same(
    patterns: dict[Right, tuple[str, ...]], expires_s: float | None, model: str
) -> None:
    one = Caller("a", 7, patterns, 3).until(expires_s)
    twin = Caller.of_plain(json.loads(json.dumps(one.plain())))
    assert twin.plain() == one.plain()
    assert [twin.may(right, model) for right in Right] == [one.may(right, model) for right in Right]
