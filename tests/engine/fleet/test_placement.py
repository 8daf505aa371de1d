"""Models on the replicas of a fleet (`engine.fleet.placement`)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.fleet.placement import ModelNeed, place_models, replicas_needed

GB = 1 << 30


def test_twenty_models_fit_three_replicas_with_room_for_eight() -> None:
    needs = {f"m{number:02}": ModelNeed(GB) for number in range(20)}
    placement = place_models(needs, {"a": 8 * GB, "b": 8 * GB, "c": 8 * GB})
    assert sorted(len(models) for models in placement.on.values()) == [6, 7, 7]
    assert not placement.unplaced
    assert sorted(model for models in placement.on.values() for model in models) == sorted(needs)


def test_a_new_replica_takes_nothing_from_the_others_but_second_copies() -> None:
    needs = {f"m{number}": ModelNeed(1, copies=2) for number in range(6)}
    before = place_models(needs, {"a": 6, "b": 3})
    assert len(before.short) == 3
    after = place_models(needs, {"a": 6, "b": 3, "c": 10}, before.on)
    assert all(models <= after.on[name] for name, models in before.on.items())
    assert after.on["c"] == before.short
    assert not after.short


def test_what_a_lost_replica_had_goes_to_those_with_most_room() -> None:
    needs = {"large": ModelNeed(6), "small": ModelNeed(1), "other": ModelNeed(2)}
    before = {"a": {"large"}, "b": {"small"}, "c": {"other"}}
    after = place_models(needs, {"b": 8, "c": 8}, before)
    assert after.on == {"b": {"small", "large"}, "c": {"other"}}


def test_models_that_have_grown_move_as_few_as_possible() -> None:
    needs = {"grown": ModelNeed(6), "small": ModelNeed(1), "fits": ModelNeed(3), "large": ModelNeed(4)}
    after = place_models(needs, {"a": 12, "b": 12}, {"a": {"grown", "small", "fits", "large"}})
    assert after.on == {"a": {"grown", "small", "large"}, "b": {"fits"}}


def test_second_copies_leave_for_a_first_one() -> None:
    needs = {"popular": ModelNeed(4, copies=2), "new": ModelNeed(4)}
    after = place_models(needs, {"a": 4, "b": 4}, {"a": {"popular"}, "b": {"popular"}})
    assert after.on == {"a": {"new"}, "b": {"popular"}}
    assert after.short == {"popular"}
    assert after.replicas_of("new") == ["a"]


def test_everything_moves_if_a_model_would_have_no_place_otherwise() -> None:
    needs = {"half": ModelNeed(2), "other half": ModelNeed(2), "whole": ModelNeed(4)}
    after = place_models(needs, {"a": 4, "b": 4}, {"a": {"half"}, "b": {"other half"}})
    assert not after.unplaced
    assert {frozenset(models) for models in after.on.values()} == {
        frozenset({"whole"}),
        frozenset({"half", "other half"}),
    }


def test_room_that_is_left_is_for_models_with_most_to_do() -> None:
    needs = {f"m{number}": ModelNeed(1) for number in range(5)}
    layout = place_models(needs, {"a": 4, "b": 4}, loads={"m0": 7.0, "m1": 9.0, "m4": 1.0})
    assert [len(layout.replicas_of(model)) for model in needs] == [2, 2, 1, 1, 2]
    again = place_models(needs | {"new": ModelNeed(2)}, {"a": 4, "b": 4}, layout.on, loads={"m0": 9.0})
    assert not again.unplaced
    assert len(again.replicas_of("new")) == 1, "further copies have left for it"
    everywhere = place_models(needs, {"a": 9, "b": 9, "c": 9}, loads={})
    assert everywhere.on == dict.fromkeys("abc", frozenset(needs))


def test_what_has_no_place_says_what_it_needs() -> None:
    placement = place_models({"huge": ModelNeed(9), "small": ModelNeed(3)}, {"a": 8})
    assert placement.on == {"a": {"small"}}
    assert placement.unplaced == {"huge": "model 'huge' needs 9 bytes, no replica has more than 5 left"}
    assert place_models({"m": ModelNeed(1)}, {}).unplaced == {"m": "model 'm' needs 1 bytes, there is no replica"}


def test_as_many_replicas_are_needed_as_hold_all_models_that_fit_into_one() -> None:
    needs = {f"m{number:02}": ModelNeed(GB, copies=3) for number in range(20)}
    assert [replicas_needed(needs, room * GB) for room in (20, 19, 10, 8, 7, 1)] == [1, 2, 2, 3, 3, 20]
    thirds = {"a": ModelNeed(4), "b": ModelNeed(4), "c": ModelNeed(4), "huge": ModelNeed(9)}
    assert replicas_needed(thirds, 6) == 3, "two have room enough, but not in one piece"
    assert replicas_needed({"huge": ModelNeed(9)}, 6) == replicas_needed({}, 6) == 0


NEEDS = st.dictionaries(st.sampled_from("abcdefghij"), st.builds(ModelNeed, st.integers(0, 10), st.integers(1, 3)))
ROOMS = st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 25))
BEFORE = st.dictionaries(st.sampled_from("uvwxyz"), st.sets(st.sampled_from("abcdefghijk")))


@given(NEEDS, ROOMS, BEFORE, st.none() | st.dictionaries(st.sampled_from("abcdefghij"), st.floats(0, 9)))
def test_rules(
    needs: dict[str, ModelNeed], rooms: dict[str, int], before: dict[str, set[str]], loads: dict[str, float] | None
) -> None:
    placement = place_models(needs, rooms, before, loads)
    assert set(placement.on) == set(rooms)
    for name, models in placement.on.items():
        assert sum(needs[model].nbytes for model in models) <= rooms[name]
    for model, need in needs.items():
        copies = len(placement.replicas_of(model))
        assert copies <= need.copies or loads is not None
        assert (copies == 0) == (model in placement.unplaced)
        assert (0 < copies < need.copies) == (model in placement.short)
    assert place_models(needs, rooms, placement.on, loads).on == placement.on, "it is at rest"


@given(NEEDS, st.integers(0, 25), st.integers(1, 3))
def test_with_more_replicas_than_are_needed_all_models_have_a_place_as_well(
    needs: dict[str, ModelNeed], room: int, more: int
) -> None:
    count = replicas_needed(needs, room)
    fitting = {model for model, need in needs.items() if need.nbytes <= room}
    layouts = [
        place_models(needs, dict.fromkeys(map(str, range(each)), room)) for each in (count - 1, count, count + more)
    ]
    placed = [{model for models in layout.on.values() for model in models} for layout in layouts]
    assert placed[1] == placed[2] == fitting
    assert not fitting or placed[0] < fitting
