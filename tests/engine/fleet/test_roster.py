"""Who belongs to a fleet, and which models each replica holds (`engine.fleet.roster`)."""

from __future__ import annotations

from collections.abc import Mapping

from trireme.engine.fleet.placement import FleetLayout
from trireme.engine.fleet.roster import SETTLE_S, SILENT_S, FleetRoster, GatewayTold, ModelSettings, ReplicaTold

SIZES = {f"m{number:02}": 10 for number in range(20)}


class Fleet:
    """Replicas that do at once what the roster tells them."""

    def __init__(self, roster: FleetRoster, names: str) -> None:
        self.roster = roster
        self.ready = {name: frozenset[str]() for name in names}
        self.draining: set[str] = set()
        self.releases: dict[str, float] = {}
        self.now_s = 0.0

    def tell(self, name: str) -> frozenset[str] | None:
        release = self.releases.get(name, 0.0)
        told = ReplicaTold(f"{name}:8001", SIZES, self.ready[name], {}, name in self.draining, release)
        return self.roster.tell(name, told, self.now_s)

    def go_on(self, rounds: int = 6, always: set[str] | None = None) -> None:
        """All tell, so many times; these models are to be served by some replica all the time."""
        for _ in range(rounds):
            self.now_s += 1
            for name in sorted(self.ready):
                wanted = self.tell(name)
                assert wanted is not None
                self.ready[name] = wanted
                assert self.served() >= (always or set())

    def served(self) -> set[str]:
        return {model for models in self.ready.values() for model in models}


def test_who_is_silent_does_not_belong_to_the_fleet_any_more() -> None:
    roster = FleetRoster()
    assert roster.tell("a", ReplicaTold("a:1"), 0.0) is None, "it holds all models"
    roster.tell("b", ReplicaTold("b:1"), 4.0)
    assert list(roster.members(SILENT_S)) == ["a", "b"]
    assert list(roster.members(SILENT_S + 0.1)) == ["b"]
    roster.leave("b", 7.0)
    assert roster.members(7.0) == {}


def test_twenty_models_over_three_replicas_with_room_for_eight() -> None:
    fleet = Fleet(FleetRoster(room=80), "abc")
    fleet.go_on()
    assert [len(models) for models in fleet.ready.values()] == [8, 8, 8], "four have a second copy"
    assert fleet.served() == set(SIZES)


def test_the_models_of_a_replica_that_is_lost_go_to_the_others() -> None:
    fleet = Fleet(FleetRoster(room=100), "abc")
    fleet.go_on()
    only = {name: fleet.ready[name] - fleet.ready[other] for name, other in ("ab", "ba")}
    del fleet.ready["c"]
    fleet.go_on(rounds=10)
    assert fleet.served() == set(SIZES)
    assert all(only[name] <= fleet.ready[name] for name in "ab"), "only further copies have left"


def test_a_replica_that_drains_keeps_its_models_until_others_have_them() -> None:
    fleet = Fleet(FleetRoster(room=100), "abc")
    fleet.go_on()
    fleet.draining.add("c")
    fleet.go_on(rounds=8, always=set(SIZES))
    assert not fleet.ready["c"], "so it may end"
    assert fleet.ready["a"] | fleet.ready["b"] == set(SIZES)


def test_a_replica_that_drains_keeps_models_that_have_no_place_yet() -> None:
    """Of another release the roster has not heard yet, and the one of this release that stays has other models."""
    fleet = Fleet(FleetRoster(room=100), "ab")
    fleet.go_on()
    fleet.roster.configure(100, 1, {}, 1.0)
    fleet.draining.add("a")
    before = fleet.ready["a"]
    fleet.go_on()
    assert fleet.ready["a"] == before
    fleet.ready["c"], fleet.releases["c"] = frozenset(), 1.0
    fleet.go_on(rounds=7, always=set(SIZES))
    assert fleet.ready["c"] == before
    assert not fleet.ready["a"]


def test_who_drains_alone_does_not_wait() -> None:
    fleet = Fleet(FleetRoster(room=100), "a")
    fleet.go_on()
    assert len(fleet.ready["a"]) == 10
    fleet.draining.add("a")
    assert fleet.tell("a") == frozenset()


def test_one_release_takes_the_place_of_another_with_all_models_served() -> None:
    """Each replica has room for eight of twenty models; one more than three is there meanwhile, as with Ray."""
    fleet = Fleet(FleetRoster(room=80), "abc")
    fleet.go_on()
    fleet.roster.configure(80, 1, {}, 1.0)
    fleet.go_on(rounds=2, always=set(SIZES))
    for new, old in zip("xyz", "bca", strict=True):
        before = {name: fleet.ready[name] for name in "abc" if name in fleet.ready}
        fleet.ready[new], fleet.releases[new] = frozenset(), 1.0
        fleet.go_on(rounds=3, always=set(SIZES))
        assert {name: fleet.ready[name] for name in before} == before, "an earlier release loads and unloads nothing"
        fleet.draining.add(old)
        fleet.go_on(rounds=8, always=set(SIZES))
        assert not fleet.ready.pop(old)
        fleet.roster.leave(old, fleet.now_s)
    fleet.go_on(always=set(SIZES))
    assert [len(models) for models in fleet.ready.values()] == [8, 8, 8]


def test_a_model_leaves_its_old_place_when_it_is_ready_in_the_new_one() -> None:
    roster = FleetRoster(room=20, models={"m": ModelSettings(nbytes=20)}, settle_s=1.0, heard_s=2.0)
    sizes = {"m": 1, "n": 1}
    before = ReplicaTold("a:1", sizes, frozenset({"m", "n"}))
    roster.tell("b", ReplicaTold("b:1", sizes), 0.0)
    roster.tell("a", before, 0.0)
    assert roster.tell("a", before, 1.0) == {"m", "n"}, "n is to move, and is not there yet"
    assert roster.tell("b", ReplicaTold("b:1", sizes), 1.0) == {"n"}
    for now_s in (2.0, 3.0):
        assert roster.tell("a", before, now_s) == {"m", "n"}, "gateways have not all heard that n is ready there"
        roster.tell("b", ReplicaTold("b:1", sizes, frozenset({"n"})), now_s)
    assert roster.tell("a", before, 4.0) == {"m"}


def test_a_roster_that_was_lost_learns_again_where_models_are() -> None:
    fleet = Fleet(FleetRoster(room=80), "abc")
    fleet.go_on()
    before = dict(fleet.ready)
    fleet.roster = FleetRoster(room=80)
    fleet.go_on()
    assert fleet.ready == before


def test_a_roster_that_was_lost_does_not_tell_gateways_that_there_are_no_replicas() -> None:
    roster = FleetRoster()
    assert roster.tell_gateway("g", GatewayTold({}), 50.0) == ({}, False)
    told = ReplicaTold("a:1")
    roster.tell("a", told, 51.0)
    assert roster.tell_gateway("g", GatewayTold({}), 51.0) == ({"a": told}, False)
    assert roster.tell_gateway("g", GatewayTold({}), 50.0 + SETTLE_S) == ({"a": told}, True)


def test_copies() -> None:
    fleet = Fleet(FleetRoster(room=140, copies=2, models={"m00": ModelSettings(copies=3)}), "abc")
    fleet.go_on()
    held = [sum(model in models for models in fleet.ready.values()) for model in SIZES]
    assert held[0] == 3
    assert sorted(held) == [*[2] * 18, 3, 3]


def test_in_its_first_seconds_all_keep_what_they_have() -> None:
    roster = FleetRoster(room=20)
    told = ReplicaTold("a:1", {"m": 10, "n": 10, "o": 10}, frozenset({"m"}))
    assert roster.tell("a", told, 100.0) == {"m"}
    assert len(roster.tell("a", told, 100.0 + SETTLE_S) or ()) == 2


def test_gateways_tell_where_they_listen_and_hear_who_the_members_are() -> None:
    roster = FleetRoster()
    roster.tell("a", ReplicaTold("a:1"), 0.0)
    members, _ = roster.tell_gateway("g", GatewayTold({"HTTPService": "g:8000"}), 1.0)
    assert list(members) == ["a"]
    assert roster.gateways(2.0) == {"g": GatewayTold({"HTTPService": "g:8000"})}
    assert roster.gateways(1.1 + SILENT_S) == {}
    roster.tell_gateway("g", GatewayTold({}), 9.0)
    roster.leave("g", 9.0)
    assert roster.gateways(9.0) == {}


def roster_of(room: int, **nbytes: int) -> FleetRoster:
    """One that is settled at 1 s."""
    models = {name: ModelSettings(nbytes=size) for name, size in nbytes.items()}
    return FleetRoster(room=room, models=models, silent_s=5.0, settle_s=1.0, heard_s=2.0)


def told_of(name: str, sizes: Mapping[str, int], ready: str = "", changing: str = "", failed: str = "") -> ReplicaTold:
    failures = dict.fromkeys(failed, "it is faulty")
    return ReplicaTold(f"{name}:1", sizes, frozenset(ready), failed=failures, changing=frozenset(changing))


def test_a_model_is_loaded_when_there_is_room_for_it_beside_what_is_in_memory() -> None:
    """`z` is new, and takes the room of second copies; also of one that is being unloaded, until it is gone."""
    roster = roster_of(4, x=2, y=2, z=4)
    sizes = dict.fromkeys("xyz", 1)
    for now_s in (0.0, 1.0):
        roster.tell("b", told_of("b", sizes, "xy"), now_s)
        assert roster.tell("a", told_of("a", sizes, "xy"), now_s) == {"x", "y"}
    for now_s in (2.0, 3.0):
        wanted = roster.tell("b", told_of("b", sizes, "xy"), now_s)
        wanted_of_a = roster.tell("a", told_of("a", sizes, "xy"), now_s)
    assert roster.layout.on == {"a": {"z"}, "b": {"x", "y"}}
    assert (wanted, wanted_of_a) == ({"x", "y"}, set()), "copies that are ready elsewhere for long leave first"
    assert roster.tell("a", told_of("a", sizes, "x", changing="y"), 4.0) == set()
    assert roster.tell("a", told_of("a", sizes, changing="y"), 5.0) == set()
    assert roster.tell("a", told_of("a", sizes), 6.0) == {"z"}
    assert roster.tell("a", told_of("a", sizes, changing="z"), 7.0) == {"z"}
    assert roster.tell("a", told_of("a", sizes, "z"), 8.0) == {"z"}


def test_what_is_ready_nowhere_is_loaded_first() -> None:
    roster = roster_of(3, a=1, b=1, c=1, d=1)
    sizes = dict.fromkeys("abcd", 1)
    roster.tell("x", told_of("x", sizes, "abc"), 0.0)
    roster.tell("y", told_of("y", sizes, changing="c"), 0.0)
    roster.tell("x", told_of("x", sizes, "abc"), 1.0)
    wanted = roster.tell("y", told_of("y", sizes, "", "c"), 1.0)
    assert wanted is not None
    assert "d" in wanted
    assert len(wanted | {"c"}) == 3


def test_replicas_that_wait_for_each_others_room_do_so_for_a_while_only() -> None:
    """Two models of a full replica each have grown, and change places with those of the other one."""
    sizes = dict.fromkeys("abcd", 1)
    roster = roster_of(5, a=2, b=3, c=3, d=2)
    now_s, ready = 0.0, {"x": "ab", "y": "cd"}
    for now_s in (0.0, 1.0, 2.0):
        for name, models in ready.items():
            assert roster.tell(name, told_of(name, sizes, models), now_s) == set(models)
    roster.layout = FleetLayout({"x": frozenset("cd"), "y": frozenset("ab")})
    for now_s in (3.0, 6.0, 8.0):
        for name, models in ready.items():
            assert roster.tell(name, told_of(name, sizes, models), now_s) == set(models), "each waits for the other"
    assert roster.tell("x", told_of("x", sizes, "ab"), 8.1) == set("abcd"), "one of them goes beyond its room"
    assert roster.tell("y", told_of("y", sizes, "cd"), 8.2) == set("cd")
    assert roster.tell("x", told_of("x", sizes, "abc", "d"), 10.0) == set("abcd")
    assert roster.tell("x", told_of("x", sizes, "abcd"), 11.0) == set("abcd")
    assert roster.tell("y", told_of("y", sizes, "cd"), 13.0) == set(), "they are ready at the first one for long"
    assert roster.tell("y", told_of("y", sizes), 13.1) == set("ab")


def test_a_model_that_cannot_be_loaded_does_not_hold_up_the_others() -> None:
    sizes = dict.fromkeys("abcd", 1)
    roster = roster_of(3, a=2, b=2)
    for now_s in (0.0, 1.0):
        roster.tell("x", told_of("x", sizes, "a"), now_s)
        roster.tell("y", told_of("y", sizes, "b"), now_s)
    roster.layout = FleetLayout({"x": frozenset("b"), "y": frozenset("ac")})
    for now_s in (2.0, 4.0, 6.0, 8.0):
        assert roster.tell("x", told_of("x", sizes, "a"), now_s) == {"a"}
        assert roster.tell("y", told_of("y", sizes, "b", failed="c"), now_s) == {"b", "c"}
    assert roster.tell("x", told_of("x", sizes, "a"), 8.1) == {"a", "b"}, "though the other one tries again and again"


def test_what_is_planned_stays_so_while_models_move() -> None:
    """`x` has still what moves to `y` when a third replica comes: it is to have what was planned all the same."""
    roster = roster_of(4, a=2, b=3, c=2)
    sizes = dict.fromkeys("abc", 1)
    for now_s in (0.0, 1.0):
        roster.tell("x", told_of("x", sizes, "ac"), now_s)
        roster.tell("y", told_of("y", sizes, "ac"), now_s)
    roster.layout = FleetLayout({"x": frozenset("b"), "y": frozenset("ac")})
    roster.tell("z", told_of("z", sizes), 2.0)
    assert roster.layout.on["x"] == {"b"}
    assert roster.layout.on["y"] == {"a", "c"}
