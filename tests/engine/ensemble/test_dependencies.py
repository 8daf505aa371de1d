"""In which order models are loaded because of ensembles, and why some are not."""

from __future__ import annotations

import pytest
from ensembles import ensemble, member, step

from trireme.engine.config import ModelConfig
from trireme.engine.ensemble import Dependencies, check_members
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.repository.known import members


def using(name: str, *members: str) -> ModelConfig:
    """An ensemble with a step for each of these."""
    return ensemble([step(each, {"IN": "I"}, {"OUT": f"O{index}"}) for index, each in enumerate(members)], name=name)


def dependencies(*configs: ModelConfig) -> Dependencies:
    return Dependencies({config.name: members(config) for config in configs})


def test_members_are_loaded_before_the_ensembles_that_use_them() -> None:
    found = dependencies(using("outer", "inner", "c"), using("inner", "a", "b"), *map(member, "abc"), using("x", "a"))
    assert found.problems == {}
    assert found.waves() == [["a", "b", "c"], ["inner", "x"], ["outer"]]


def test_who_needs_a_model_is_found_through_other_ensembles() -> None:
    found = dependencies(using("outer", "inner", "a"), using("inner", "a"), member("a"), member("b"))
    assert found.dependents("a") == ["inner", "outer"]
    assert found.dependents("inner") == ["outer"]
    assert found.dependents("b") == []


def test_an_ensemble_without_its_members_is_not_loaded_and_nor_is_who_uses_it() -> None:
    found = dependencies(using("m", "a", "nope", "nope2"), using("on", "m"), using("onon", "on"), member("a"))
    assert {name: str(problem) for name, problem in found.problems.items()} == {
        "m": "ensemble m contains models that are not available or ambiguous: nope",
        "on": "ensemble 'on' depends on 'm' which is not valid. Model 'm' failed with error: ensemble m contains "
        "models that are not available or ambiguous: nope",
        "onon": "ensemble 'onon' depends on 'on' which is not valid. Model 'on' failed with error: ensemble 'on' "
        "depends on 'm' which is not valid. Model 'm' failed with error: ensemble m contains models that are not "
        "available or ambiguous: nope",
    }
    assert found.waves() == [["a"]]


def test_circles_are_refused() -> None:
    circle = [using("c1", "c2"), using("c2", "a", "c3"), using("c3", "c1")]
    found = dependencies(*circle, using("self", "self"), using("on", "c2"), member("a"))
    assert {name: str(problem) for name, problem in found.problems.items()} == {
        "c1": "circular dependency between ensembles: c1 -> ... -> c3 -> c1",
        "c2": "circular dependency between ensembles: c2 -> ... -> c1 -> c2",
        "c3": "circular dependency between ensembles: c3 -> ... -> c2 -> c3",
        "self": "circular dependency between ensembles: self -> ... -> self -> self",
        "on": "ensemble 'on' depends on 'c2' which is not valid. Model 'c2' failed with error: circular dependency "
        "between ensembles: c2 -> ... -> c1 -> c2",
    }
    assert found.waves() == [["a"]]


VERSIONS = ensemble([step("a", {"IN": "I"}, {"OUT": "t"}), step("b", {"IN": "t"}, {"OUT": "O"}, version=0)])


@pytest.mark.parametrize(
    ("loaded", "errors", "text"),
    [
        ({"b": [0]}, {}, "ensemble 'e' depends on 'a' which has no loaded version."),
        (
            {"a": [], "b": [0]},
            {"a": "version 1 is at UNAVAILABLE state: Internal: boom;"},
            (
                "ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed with error: version "
                "1 is at UNAVAILABLE state: Internal: boom;"
            ),
        ),
        ({"a": [7], "b": [1, 2]}, {}, "ensemble 'e' depends on 'b' whose required version 0 is not loaded."),
    ],
)
def test_members_that_are_not_loaded_are_named(loaded: dict[str, list[int]], errors: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_members(VERSIONS, loaded, errors)
    assert str(caught.value) == text


def test_any_version_is_the_latest_and_a_named_one_itself() -> None:
    check_members(VERSIONS, {"a": [7], "b": [0]}, {})
