"""Which models can be loaded while others are being looked at."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.repository.arrivals import Arrivals

NAMES = "abcdef"


def begun(*models: str) -> Arrivals[str]:
    arrivals: Arrivals[str] = Arrivals()
    arrivals.begin(models)
    return arrivals


def test_a_model_does_not_wait_for_another() -> None:
    arrivals = begun("a", "b")
    arrivals.arrived("b", "found", ())
    assert arrivals.take() == {"b": "found"}
    assert [each for each in NAMES if each in arrivals] == ["a", "b"]
    arrivals.end(["b"])
    assert [each for each in NAMES if each in arrivals] == ["a"]


def test_an_ensemble_waits_for_its_members_and_theirs() -> None:
    arrivals = begun("a", "e", "f")
    arrivals.arrived("e", "e", ("f", "other"))
    arrivals.arrived("f", "f", ("a",))
    assert arrivals.take() == {}
    arrivals.arrived("a", "a", ())
    assert arrivals.take() == {"e": "e", "f": "f", "a": "a"}
    assert arrivals.take() == {}


def test_what_cannot_be_read_holds_nothing_up() -> None:
    arrivals = begun("a", "e")
    arrivals.arrived("e", "e", ("a",))
    arrivals.end(["a"])
    assert arrivals.take() == {"e": "e"}


def test_a_circle_is_left_to_the_load() -> None:
    arrivals = begun("e", "f")
    arrivals.arrived("e", "e", ("f",))
    arrivals.arrived("f", "f", ("e",))
    assert arrivals.take() == {"e": "e", "f": "f"}


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES)), min_size=1),
    st.permutations(NAMES),
)
def test_all_are_taken_once_and_never_before_what_they_need(needs: Mapping[str, set[str]], order: list[str]) -> None:
    arrivals = begun(*needs)
    taken: list[str] = []
    looked_at: set[str] = set()
    for each in order:
        if each in needs:
            arrivals.arrived(each, each, needs[each])
            looked_at.add(each)
            taken += arrivals.take()
            for model in taken:
                assert looked_at.issuperset(_closure(model, needs) & needs.keys())
    assert sorted(taken) == sorted(needs)


def _closure(model: str, needs: Mapping[str, set[str]]) -> set[str]:
    found, before = {model}, set[str]()
    while found != before:
        before = set(found)
        found |= {need for each in before for need in needs.get(each, ())}
    return found
