"""Which models are in memory (`engine.repository.residency`)."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trireme.engine.errors import InternalError, NotFoundError, UnavailableError
from trireme.engine.repository.residency import Leaves, Loads, Residence, Residency


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
    core.unloaded("b", 3.5)
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
    assert (core.actions(1.0), core.next_s(1.0)) == ([], 5.0)
    assert core.actions(5.0) == [Leaves("a")]


def test_a_model_that_is_wanted_while_it_leaves_comes_back() -> None:
    core = residency(10, "a", "b")
    load(core, "a")
    core.arrive("b", 1.0)
    assert core.actions(1.0) == [Leaves("a")]
    assert not core.arrive("a", 2.0)
    core.unloaded("a", 3.0)
    assert core.actions(3.0) == [Loads("b")]
    core.loaded("b", 10, 0.0, 4.0)
    core.depart("b", 4.0)
    assert core.actions(4.0) == [Leaves("b")]


def test_what_is_not_waited_for_any_more_is_not_loaded() -> None:
    core = residency(10, "a", "b")
    load(core, "a", 0.0, took_s=5.0)
    core.arrive("b", 1.0)
    core.give_up("b")
    assert (core["b"].state, core.next_s(1.0), core.actions(9.0)) == (Residence.COLD, None, [])


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
        for _ in range(3):
            for action in core.actions(now_s):
                if isinstance(action, Leaves):
                    core.unloaded(action.name, now_s)
                else:
                    now_s, loads = now_s + 4.0, loads + 1
                    core.loaded(action.name, 10, 4.0, now_s)
            if core[name].in_flight:
                break
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
                        core.unloaded(action.name, now_s)
                    else:
                        core.loaded(action.name, 10, 0.0, now_s)
        core.depart(name, now_s)
    assert core.hits == best


NAMES = ("a", "b", "c", "d", "pinned")


class ResidencyMachine(RuleBasedStateMachine):
    """Whatever happens: the limit holds, who waits is served or refused, and nothing in use leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.core = Residency(30)
        for number, name in enumerate(NAMES):
            self.core.know(name, 5 + 5 * (number % 3), pinned=name == "pinned", priority=number % 2)
        self.loading: list[str] = []
        self.leaving: list[str] = []
        self.waiting: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.in_flight: dict[str, int] = dict.fromkeys(NAMES, 0)

    def act(self) -> None:
        for action in self.core.actions(self.now_s):
            if isinstance(action, Loads):
                self.loading.append(action.name)
            else:
                assert action.name != "pinned"
                assert not self.in_flight[action.name]
                self.leaving.append(action.name)

    @rule(name=st.sampled_from(NAMES), after_s=st.sampled_from([0.0, 0.1, 3.0]))
    def arrive(self, name: str, after_s: float) -> None:
        self.now_s += after_s
        try:
            at_once = self.core.arrive(name, self.now_s)
        except UnavailableError:
            return
        (self.in_flight if at_once else self.waiting)[name] += 1
        self.act()

    @precondition(lambda self: self.loading)
    @rule(fails=st.booleans(), which=st.integers(0, 4))
    def end_load(self, fails: bool, which: int) -> None:
        name = self.loading.pop(which % len(self.loading))
        if fails:
            released = self.core.failed(name, InternalError("x"), self.now_s)
        else:
            released = self.core.loaded(name, self.core[name].nbytes, 1.0, self.now_s)
            self.in_flight[name] += released
        assert released == self.waiting[name]
        self.waiting[name] = 0
        self.act()

    @precondition(lambda self: self.leaving)
    @rule()
    def end_unload(self) -> None:
        self.core.unloaded(self.leaving.pop(0), self.now_s)
        self.act()

    @rule(name=st.sampled_from(NAMES))
    def depart(self, name: str) -> None:
        if self.in_flight[name]:
            self.in_flight[name] -= 1
            self.core.depart(name, self.now_s)
            self.act()

    @rule(name=st.sampled_from(NAMES))
    def give_up(self, name: str) -> None:
        if self.waiting[name]:
            self.waiting[name] -= 1
            self.core.give_up(name)
            self.act()

    @invariant()
    def limit_holds(self) -> None:
        assert self.core.used_bytes <= 30
        assert {model.name: model.waiting for model in self.core} == self.waiting

    def teardown(self) -> None:
        """Everything ends: then no request waits any more, as long as the pinned one leaves room."""
        for _ in range(100):
            if self.loading:
                self.end_load(False, 0)
            elif self.leaving:
                self.end_unload()
            elif any(self.in_flight.values()):
                self.depart(next(name for name, count in self.in_flight.items() if count))
            else:
                self.now_s += 10.0
                self.act()
        if self.core["pinned"].state is not Residence.RESIDENT:
            assert not any(self.waiting.values())


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
