"""Rules of models in memory that take a few models to break (`engine.repository.residency`)."""

from __future__ import annotations

from trireme.engine.errors import InternalError
from trireme.engine.repository.residency import Residency
from trireme.engine.repository.residents import Drains, Leaves, Loads, Residence


def residency(limit: int, *names: str, most_loads: int = 4) -> Residency:
    made = Residency(limit, most_loads=most_loads)
    for name in names:
        made.know(name, 10)
    return made


def load(core: Residency, name: str, now_s: float = 0.0, *, stays_busy: bool = False) -> None:
    """One request has it loaded, with what it needs, and is answered."""
    assert not core.arrive(name, now_s)
    (action,) = core.actions(now_s)
    assert isinstance(action, Loads)
    for each in (*action.needs, name):
        core.loaded(each, core[each].nbytes, 0.0, now_s)
    if not stays_busy:
        core.depart(name, now_s)


def test_busy_models_of_a_higher_priority_leave_in_the_end() -> None:
    core = residency(10, "a")
    core.know("important", 10, priority=1)
    load(core, "important", stays_busy=True)
    core.arrive("a", 1.0)
    assert core.actions(1.0) == []
    assert core.actions(2.0) == [Drains("important")]


def test_what_a_model_in_memory_needs_does_not_leave_before_it() -> None:
    core = residency(20, "member", "a")
    core.know("ensemble", 1, needs=("member",))
    load(core, "ensemble")
    core.arrive("a", 1.0)
    assert core.actions(1.0) == [Leaves("ensemble")]


def test_what_a_used_model_needs_is_used() -> None:
    core = residency(21, "member", "x", "y")
    core.know("ensemble", 1, needs=("member",))
    load(core, "ensemble")
    load(core, "x", 1.0)
    assert core.arrive("ensemble", 2.0)
    core.depart("ensemble", 2.0)
    assert core.unload("ensemble")
    assert core.actions(3.0) == [Leaves("ensemble")]
    core.unloaded("ensemble")
    core.arrive("y", 4.0)
    assert core.actions(4.0) == [Leaves("x")]


def test_a_model_that_is_gone_while_it_is_drained_leaves_no_second_time() -> None:
    core = residency(10, "a")
    load(core, "a", stays_busy=True)
    assert core.unload("a")
    assert core.actions(1.0) == []
    core.unloaded("a")
    core.depart("a", 2.0)
    assert core.actions(2.0) == []
    assert core["a"].state is Residence.COLD


def test_a_load_is_tried_again_after_five_minutes_at_the_latest() -> None:
    core = residency(10, "a")
    for number in range(12):
        now_s = 1000.0 * number
        assert not core.arrive("a", now_s)
        assert core.actions(now_s) == [Loads("a")]
        core.failed("a", InternalError("x"), now_s)
        assert core["a"].retry_s - now_s == min(2.0**number, 300.0)


def test_a_model_that_no_request_inside_waits_for_any_more_goes_behind_others() -> None:
    core = residency(20, "caller", "busy", "first", "second")
    load(core, "caller", stays_busy=True)
    load(core, "busy", stays_busy=True)
    core.arrive("first", 1.0)
    core.arrive("second", 1.1)
    core.arrive("second", 1.2, callers=("caller",))
    core.give_up("second", ("caller",))
    core.depart("busy", 1.3)
    assert core.actions(1.3) == [Leaves("busy")]
    core.unloaded("busy")
    assert core.actions(1.4) == [Loads("first")]


def test_a_model_is_not_unloaded_by_hand_while_what_needs_it_is_loaded() -> None:
    core = residency(20, "member")
    core.know("ensemble", 1, needs=("member",))
    load(core, "member")
    core.arrive("ensemble", 1.0)
    assert core.actions(1.0) == [Loads("ensemble")]
    assert not core.unload("member")
    core.loaded("ensemble", 1, 0.0, 2.0)
    assert core.unload("member")
    assert core["ensemble"].state is Residence.DRAINING


def test_room_is_made_for_no_more_models_than_are_loaded_at_a_time() -> None:
    old, new = ["a", "b", "c", "d"], ["e", "f", "g", "h"]
    core = residency(40, *old, *new, most_loads=2)
    for name in old:
        load(core, name)
    for name in new:
        core.arrive(name, 1.0)
    assert core.actions(1.0) == [Leaves("a"), Leaves("b")]


def test_a_model_that_is_unloaded_by_hand_waits_for_no_sequences() -> None:
    core = residency(10, "a")
    load(core, "a")
    assert core.unload("a")
    assert core.actions(1.0, lambda _: True) == [Leaves("a")]
