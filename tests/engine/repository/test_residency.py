"""Which models are in memory (`engine.repository.residency`)."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from trireme.engine.errors import InternalError, NotFoundError, UnavailableError
from trireme.engine.repository.residency import Residency
from trireme.engine.repository.residents import Drains, Leaves, Loads, Refuses, Residence


def residency(limit: int, *names: str, size: int = 10) -> Residency:
    made = Residency(limit)
    for name in names:
        made.know(name, size)
    return made


def load(core: Residency, name: str, now_s: float = 0.0, took_s: float = 0.0) -> None:
    """One request has it loaded, and is answered."""
    assert not core.arrive(name, now_s)
    assert core.actions(now_s) == [Loads(name)]
    assert core.loaded(name, 10, took_s, now_s) == 1
    core.depart(name, now_s)


def test_first_requests_wait_for_one_load() -> None:
    core = residency(100, "a")
    assert [core.arrive("a", 0.0) for _ in range(3)] == [False] * 3
    assert core.actions(0.0) == [Loads("a")]
    assert core.actions(0.0) == []
    assert core.loaded("a", 10, 1.0, 1.0) == 3
    assert core.arrive("a", 1.0)
    assert (core.hits, core.misses, core["a"].in_flight) == (1, 3, 4)


def test_the_idle_model_used_least_recently_leaves() -> None:
    core = residency(20, "a", "b", "c")
    load(core, "a", 0.0)
    load(core, "b", 1.0)
    core.arrive("a", 2.0)
    core.depart("a", 2.0)
    core.arrive("c", 3.0)
    assert core.actions(3.0) == [Leaves("b")]
    assert core.actions(3.0) == []
    core.unloaded("b")
    assert core.actions(3.5) == [Loads("c")]


def test_what_is_busy_pinned_or_more_important_stays() -> None:
    core = residency(30, "busy", "d")
    core.know("pinned", 10, pinned=True)
    core.know("important", 10, priority=1)
    for name in ("busy", "pinned", "important"):
        load(core, name)
    core.arrive("busy", 1.0)
    core.arrive("d", 1.0)
    assert core.actions(1.0) == []
    core.depart("busy", 2.0)
    assert core.actions(2.0) == [Leaves("busy")]


def test_what_is_more_important_is_loaded_first() -> None:
    core = residency(10, "a", "b")
    core.know("c", 10, priority=1)
    core.arrive("a", 0.0)
    core.arrive("c", 1.0)
    assert core.actions(1.0) == [Loads("c")]


def test_nothing_is_unloaded_in_vain() -> None:
    core = residency(20, "a", "b")
    core.know("large", 20)
    load(core, "a")
    load(core, "b")
    core.arrive("b", 1.0)
    core.arrive("large", 1.0)
    assert core.actions(1.0) == []
    core.depart("b", 2.0)
    assert core.actions(2.0) == [Leaves("a"), Leaves("b")]


def test_a_model_stays_as_long_as_its_load_took() -> None:
    core = residency(10, "a", "b")
    load(core, "a", 0.0, took_s=5.0)
    core.arrive("b", 1.0)
    assert core.actions(1.0) == core.actions(2.0) == []
    assert core.next_s(2.0) == 5.0
    assert core.actions(5.0) == [Leaves("a")]


def test_a_model_that_is_wanted_while_it_leaves_comes_back() -> None:
    core = residency(10, "a", "b")
    load(core, "a")
    core.arrive("b", 1.0)
    assert core.actions(1.0) == [Leaves("a")]
    assert not core.arrive("a", 2.0)
    core.unloaded("a")
    assert core.actions(3.0) == [Loads("b")]
    core.loaded("b", 10, 0.0, 4.0)
    core.depart("b", 4.0)
    assert core.actions(4.0) == []
    assert core.actions(4.1) == [Leaves("b")]


def test_what_is_not_waited_for_any_more_is_not_loaded() -> None:
    core = residency(10, "a", "b")
    load(core, "a", 0.0, took_s=5.0)
    core.arrive("b", 1.0)
    core.give_up("b")
    assert (core["b"].state, core.actions(1.0), core.next_s(1.0)) == (Residence.COLD, [], None)
    assert core.actions(9.0) == []


def test_what_cannot_be_loaded_is_refused() -> None:
    core = residency(10, "a", size=11)
    with pytest.raises(UnavailableError, match="'a' needs 11 bytes of memory, the limit for models is 10"):
        core.arrive("a", 0.0)
    with pytest.raises(NotFoundError, match="there is no model 'b'"):
        core.arrive("b", 0.0)


def test_a_load_that_failed_is_tried_again_later_and_later() -> None:
    core = residency(10, "a")
    now_s = 0.0
    for wait_s in (1.0, 2.0, 4.0):
        core.arrive("a", now_s)
        assert core.actions(now_s) == [Loads("a")]
        assert core.failed("a", InternalError("no file"), now_s) == 1
        with pytest.raises(UnavailableError, match=rf"'a' was not loaded: no file; next try in {wait_s:.1f} s"):
            core.arrive("a", now_s)
        now_s += wait_s
    assert core.used_bytes == 0


def test_only_so_many_requests_wait() -> None:
    core = Residency(10, most_waiting=2)
    core.know("a", 10)
    core.arrive("a", 0.0)
    core.arrive("a", 0.0)
    with pytest.raises(UnavailableError, match="2 requests wait for models already"):
        core.arrive("a", 0.0)


def test_a_model_that_is_larger_than_estimated_makes_others_leave() -> None:
    core = residency(30, "a", "b")
    load(core, "a")
    core.arrive("b", 1.0)
    core.actions(1.0)
    core.loaded("b", 25, 0.0, 1.0)
    assert core.actions(1.0) == [Leaves("a")]


def test_two_models_in_the_room_of_one_are_not_loaded_without_end() -> None:
    """A request for each in turn, at once after the answer to the one before: half of the time goes into service."""
    core, now_s, loads = residency(10, "a", "b"), 0.0, 0
    for name in ("a", "b") * 10:
        core.arrive(name, now_s)
        while not core[name].in_flight:
            for action in core.actions(now_s):
                if isinstance(action, Leaves):
                    core.unloaded(action.name)
                else:
                    now_s, loads = now_s + 4.0, loads + 1
                    core.loaded(action.name, 10, 4.0, now_s)
            now_s = core.next_s(now_s) or now_s
        core.depart(name, now_s)
    assert loads * 4.0 <= now_s / 2 + 4.0


def test_the_hit_rate_is_that_of_lru() -> None:
    """1,000 models, room for 50, by Zipf; loads take no time, so that this is LRU itself."""
    draw = random.Random(7)
    names = [f"m{number}" for number in range(1_000)]
    core = residency(500, *names)
    lru: OrderedDict[str, None] = OrderedDict()
    best = 0
    weights = [1 / (rank + 1) for rank in range(1_000)]
    for number, name in enumerate(draw.choices(names, weights, k=10_000)):
        now_s = float(number)
        if name in lru:
            best += 1
            lru.move_to_end(name)
        else:
            lru[name] = None
            if len(lru) > 50:
                lru.popitem(last=False)
        if not core.arrive(name, now_s):
            while core[name].state is not Residence.RESIDENT:
                for action in core.actions(now_s):
                    if isinstance(action, Leaves):
                        core.unloaded(action.name)
                    else:
                        core.loaded(action.name, 10, 0.0, now_s)
        core.depart(name, now_s)
    assert core.hits == best


def test_models_that_are_always_busy_are_drained_after_a_while() -> None:
    core = residency(20, "a", "b", "c")
    for name in ("a", "b"):
        core.arrive(name, 0.0)
        core.actions(0.0)
        core.loaded(name, 10, 0.0, 0.0)
    core.arrive("c", 1.0)
    assert (core.actions(1.0), core.next_s(1.0)) == ([], 2.0)
    assert core.actions(2.0) == [Drains("a")]
    assert not core.arrive("a", 2.0), "no new request goes in"
    core.give_up("a")
    assert core.arrive("a", 2.0, continues=True)
    core.depart("a", 2.5)
    assert core.actions(2.5) == []
    core.depart("a", 3.0)
    assert core.actions(3.0) == [Leaves("a")]
    core.unloaded("a")
    assert core.actions(3.0) == [Loads("c")]


def test_only_what_is_needed_leaves() -> None:
    core = residency(30, "a", "b")
    core.know("large", 20)
    core.know("wanted", 20)
    for number, name in enumerate(("a", "large")):
        core.arrive(name, float(number))
        core.actions(float(number))
        core.loaded(name, core[name].nbytes, 0.0, float(number))
        core.depart(name, float(number))
    core.arrive("wanted", 5.0)
    assert core.actions(5.0) == [Leaves("large")]


def test_a_request_that_finds_no_room_beside_pinned_models_is_refused() -> None:
    core = residency(30, "a", "b", "c")
    core.know("a", 10, pinned=True)
    load(core, "a")
    core.know("large", 25)
    with pytest.raises(UnavailableError, match="'large' needs 25 bytes of memory, but of the 30 for"):
        core.arrive("large", 1.0)
    load(core, "b", 1.0)
    core.arrive("c", 2.0)
    core.actions(2.0)
    core.loaded("c", 10, 0.0, 2.0)
    core.know("more", 20)
    core.arrive("more", 3.0)
    core.know("c", 10, pinned=True)
    (refused,) = core.actions(3.0)
    assert isinstance(refused, Refuses)
    assert (refused.name, core["more"].state, core.waiting) == ("more", Residence.COLD, 0)


def test_an_ensemble_is_loaded_with_what_it_needs_and_leaves_before_it() -> None:
    core = residency(25, "member", "other", "third")
    core.know("ensemble", 1, needs=("member",))
    core.arrive("ensemble", 0.0)
    assert core.actions(0.0) == [Loads("ensemble", ("member",))]
    assert core.loaded("member", 10, 0.0, 0.0) == 0
    assert core.loaded("ensemble", 1, 0.0, 0.0) == 1
    core.depart("ensemble", 0.0)
    load(core, "other", 1.0)
    core.arrive("third", 2.0)
    assert core.actions(2.0) == [Leaves("ensemble"), Drains("member")]
    assert core.actions(2.0) == []
    core.unloaded("ensemble")
    assert core.actions(2.0) == [Leaves("member")]


def test_models_that_wait_for_each_others_room_are_refused() -> None:
    core = residency(20, "a", "b", "c")
    for name in ("a", "b"):
        core.arrive(name, 0.0)
        core.actions(0.0)
        core.loaded(name, 10, 0.0, 0.0)
    assert not core.arrive("c", 1.0, callers=("a",)), "when b is idle there is room"
    with pytest.raises(UnavailableError, match="'c' is asked for by models that wait for it"):
        core.arrive("c", 1.0, callers=("b",))
    core.depart("b", 2.0)
    assert core.actions(2.0) == [Leaves("b")]


def test_a_model_with_live_sequences_stays() -> None:
    core, live = residency(10, "a", "b"), ["a"]
    load(core, "a")
    core.arrive("b", 1.0)
    assert core.actions(1.0, live.__contains__) == []
    live.clear()
    assert core.next_s(1.0) == 1.5
    assert core.actions(1.5, live.__contains__) == [Leaves("a")]


def test_a_model_that_is_unloaded_by_hand_is_drained_and_comes_back() -> None:
    core = residency(10, "a")
    core.arrive("a", 0.0)
    core.actions(0.0)
    core.loaded("a", 10, 0.0, 0.0)
    assert core.unload("a")
    assert not core.arrive("a", 0.0)
    assert core.actions(0.0) == []
    core.depart("a", 1.0)
    assert core.actions(1.0) == [Leaves("a")]
    core.unloaded("a")
    assert core.actions(1.0) == [Loads("a")]


def test_a_load_by_hand_does_not_wait_for_the_next_try() -> None:
    core = residency(10, "a")
    core.arrive("a", 0.0)
    core.actions(0.0)
    core.failed("a", InternalError("x"), 0.0)
    assert not core.arrive("a", 0.0, by_hand=True)
    assert core.actions(0.0) == [Loads("a")]
