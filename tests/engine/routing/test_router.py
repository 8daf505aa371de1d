"""Where requests go (`engine.routing.router`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.errors import InvalidArgumentError, NotFoundError
from trireme.engine.routing.route import ModelRoute, Shadow, Target
from trireme.engine.routing.router import ModelRouter, RouteChoice

OLD, NEW, OTHER = Target("digits", 1), Target("digits", 2), Target("other")


def two(old: int, new: int, shadow: Shadow | None = None) -> ModelRoute:
    return ModelRoute("classifier", ((OLD, old), (NEW, new)), shadow=shadow)


def router_of(*routes: ModelRoute, idle_s: float = 600.0, most_sequences: int = 1_000) -> ModelRouter:
    router = ModelRouter(lambda _name, target: True, idle_s, most_sequences)
    router.replace(routes, 0.0)
    return router


def target_of(choice: RouteChoice | None) -> Target:
    assert choice is not None
    return choice.target


def test_what_is_no_route_is_not_chosen_for() -> None:
    router = router_of(two(50, 50))
    assert router.choose("digits", 0.0) is None
    with pytest.raises(NotFoundError, match="there is no route 'digits'"):
        router.route("digits")


def test_a_sequence_ends_where_it_began_though_its_route_changes_or_goes() -> None:
    router = router_of(two(100, 0))
    assert target_of(router.choose("classifier", 0.0, sequence=7, start=True)) == OLD
    router.replace([two(0, 100)], 1.0)
    assert target_of(router.choose("classifier", 1.0, sequence=7)) == OLD
    assert target_of(router.choose("classifier", 1.0, sequence=8, start=True)) == NEW
    router.replace([], 2.0)
    assert target_of(router.choose("classifier", 2.0, sequence=7, end=True)) == OLD
    assert router.choose("classifier", 2.0, sequence=7) is None
    assert router.choose("classifier", 2.0, sequence="new", start=True) is None


def test_a_sequence_that_starts_again_finds_its_place_anew() -> None:
    router = router_of(two(100, 0))
    router.choose("classifier", 0.0, sequence=7, start=True)
    router.replace([two(0, 100)], 1.0)
    assert target_of(router.choose("classifier", 1.0, sequence=7, start=True)) == NEW


def test_sequences_of_which_nothing_is_heard_are_forgotten() -> None:
    router = router_of(two(100, 0), idle_s=10.0)
    router.choose("classifier", 0.0, sequence=1, start=True)
    router.choose("classifier", 5.0, sequence=2, start=True)
    router.choose("classifier", 9.0, sequence=1)
    assert router.next_s() == 15.0
    router.advance(15.0)
    assert router.sequence_count == 1
    router.advance(19.0)
    assert (router.sequence_count, router.next_s()) == (0, None)
    router.choose("classifier", 20.0, sequence=1, start=True)
    router.replace([two(0, 100)], 21.0)
    assert target_of(router.choose("classifier", 30.0, sequence=1)) == NEW, "though nothing has called `advance`"


def test_the_sequence_heard_of_least_recently_makes_room() -> None:
    router = router_of(two(100, 0), most_sequences=2)
    for number in (1, 2, 1, 3):
        router.choose("classifier", 0.0, sequence=number, start=number == 3)
    router.replace([two(0, 100)], 1.0)
    assert target_of(router.choose("classifier", 1.0, sequence=1)) == OLD
    assert target_of(router.choose("classifier", 1.0, sequence=2)) == NEW


def test_a_target_that_cannot_serve_gets_nothing_until_it_can() -> None:
    router = router_of(two(50, 50))
    router.tell_ready("classifier", OLD, False, 0.0)
    assert {target_of(router.choose("classifier", 0.0)) for _ in range(50)} == {NEW}
    assert dict(router.weights("classifier")) == {NEW: 50}
    router.tell_ready("classifier", OLD, True, 1.0)
    assert {target_of(router.choose("classifier", 1.0)) for _ in range(50)} == {OLD, NEW}


def test_if_none_can_serve_a_request_goes_where_it_would() -> None:
    router = router_of(two(50, 50))
    kept = target_of(router.choose("classifier", 0.0, key=b"me"))
    for target in (OLD, NEW):
        router.tell_ready("classifier", target, False, 0.0)
    assert target_of(router.choose("classifier", 0.0, key=b"me")) == kept


@pytest.mark.parametrize("percent", [0.5, 30, 70, 99])
def test_a_shadow_gets_its_part_whatever_it_is(percent: float) -> None:
    router = router_of(two(100, 0, shadow=Shadow(OTHER, percent)))
    choices = [router.choose("classifier", 0.0) for _ in range(1_000)]
    assert abs(sum(choice is not None and choice.shadow is not None for choice in choices) - 10 * percent) <= 1


def test_a_shadow_gets_its_part_and_none_of_sequences() -> None:
    router = router_of(two(100, 0, shadow=Shadow(OTHER, 25)))
    choices = [router.choose("classifier", 0.0) for _ in range(100)]
    assert Counter(choice.shadow and choice.shadow.target for choice in choices if choice) == {None: 75, OTHER: 25}
    assert router.choose("classifier", 0.0, sequence=1, start=True) == RouteChoice(OLD)


def test_of_copies_that_are_shut_is_known_how_many_are_missed() -> None:
    route = two(100, 0, shadow=Shadow(OTHER, 25))
    router = router_of(route)
    assert router.shut_copies("classifier", True) == 0
    assert {router.choose("classifier", 0.0) for _ in range(50)} == {RouteChoice(OLD)}
    router.replace([route], 0.0)
    assert router.choose("classifier", 0.0) == RouteChoice(OLD)
    assert router.shut_copies("classifier", False) == 12, "51 / 4, and what is left counts for the next one"
    assert router.choose("classifier", 0.0) == RouteChoice(OLD, route.shadow)
    assert router.shut_copies("unknown", True) == 0
    router.shut_copies("classifier", True)
    router.replace([two(100, 0, shadow=Shadow(OTHER, 100))], 0.0)
    assert router.choose("classifier", 0.0) == RouteChoice(OLD, Shadow(OTHER, 100)), "another one"


def test_turns_and_copies_go_on_when_routes_are_set_again() -> None:
    route = two(90, 10, shadow=Shadow(OTHER, 25))
    router, found = router_of(route), list[RouteChoice | None]()
    for _ in range(100):
        router.replace([route], 0.0)
        found += [router.choose("classifier", 0.0) for _ in range(2)]
    assert Counter(choice.shadow for choice in found if choice) == {None: 150, Shadow(OTHER, 25): 50}
    assert 18 <= Counter(map(target_of, found))[NEW] <= 22


def test_routes_that_cannot_be_together_change_nothing() -> None:
    router = router_of(two(50, 50))
    with pytest.raises(InvalidArgumentError, match="route 'classifier' is defined twice"):
        router.replace([two(100, 0), two(0, 100)], 1.0)
    assert dict(router.weights("classifier")) == {OLD: 50, NEW: 50}


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (lambda: [two(50, 40)], "add up to 90, expected 100"),
        (lambda: [two(120, -20)], r"the weight of target 'digits:1' is 120, expected 0 to 100"),
        (lambda: [ModelRoute("r", ())], "it has no targets"),
        (lambda: [ModelRoute("", ((OLD, 100),))], "its name is '', expected that of a model"),
        (lambda: [ModelRoute("r", ((OLD, 50), (OLD, 50)))], "target 'digits:1' is named 2 times"),
        (lambda: [two(50, 50, shadow=Shadow(OLD))], "the shadow 'digits:1' is a target, too"),
        (lambda: [two(50, 50, shadow=Shadow(OTHER, 0))], "the shadow's share is 0 percent"),
        (lambda: [ModelRoute("r", ((Target("r"), 100),))], "in a circle: from 'r' to 'r'"),
        (
            lambda: [ModelRoute("a", ((Target("b"), 100),)), ModelRoute("b", ((Target("a"), 100),))],
            "in a circle: from 'a' to 'b' to 'a'",
        ),
        (
            lambda: [two(50, 50), ModelRoute("b", ((Target("classifier"), 100),))],
            "target 'classifier' is a route, expected a model",
        ),
    ],
)
def test_impossible_routes_are_refused(routes: Callable[[], list[ModelRoute]], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ModelRouter(lambda _name, target: True).replace(routes(), 0.0)


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
STEPS = st.one_of(
    st.tuples(st.just("ready"), st.sampled_from([OLD, NEW]), st.booleans()),
    st.tuples(st.just("ask"), KEYS, st.none()),
    st.tuples(st.just("sequence"), st.integers(1, 4), st.sampled_from(["start", "go on", "end"])),
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=40))
def test_what_is_sticky_moves_only_as_targets_come_and_go(steps: list[tuple]) -> None:
    """Whatever happens: a key whose target can serve stays there; a live sequence stays where it began."""
    router = router_of(two(60, 40))
    ready = {OLD: True, NEW: True}
    kept: dict[bytes, Target] = {}
    begun: dict[int, Target] = {}
    for what, which, how in steps:
        if what == "ready":
            ready[which] = how
            router.tell_ready("classifier", which, how, 0.0)
        elif what == "ask":
            target = target_of(router.choose("classifier", 0.0, key=which))
            assert ready[target] or not any(ready.values())
            if all(ready.values()):
                assert kept.setdefault(which, target) == target
        else:
            target = target_of(router.choose("classifier", 0.0, sequence=which, start=how == "start", end=how == "end"))
            if which in begun and how != "start":
                assert target == begun[which]
            begun[which] = target
            if how == "end":
                del begun[which]
    assert router.sequence_count == len(begun)
