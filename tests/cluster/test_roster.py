"""Who belongs to a fleet, and which models each replica holds (`cluster.roster`)."""

from __future__ import annotations

from trireme.cluster.roster import SETTLE_S, SILENT_S, FleetRoster, ReplicaTold
from trireme.cluster.settings import ModelSettings

SIZES = {f"m{number:02}": 10 for number in range(20)}


class Fleet:
    """Replicas that do at once what the roster tells them."""

    def __init__(self, roster: FleetRoster, names: str) -> None:
        self.roster = roster
        self.ready = {name: frozenset[str]() for name in names}
        self.draining: set[str] = set()
        self.now_s = 0.0

    def tell(self, name: str) -> frozenset[str] | None:
        told = ReplicaTold(f"{name}:8001", SIZES, self.ready[name], draining=name in self.draining)
        return self.roster.tell(name, told, self.now_s)

    def go_on(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            self.now_s += 1
            for name in sorted(self.ready):
                wanted = self.tell(name)
                assert wanted is not None
                self.ready[name] = wanted

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


def test_a_replica_that_drains_keeps_its_models_while_others_load_them() -> None:
    fleet = Fleet(FleetRoster(room=100), "abc")
    fleet.go_on()
    before = fleet.ready["c"]
    fleet.draining.add("c")
    fleet.go_on()
    assert fleet.ready["c"] == before
    assert fleet.ready["a"] | fleet.ready["b"] == set(SIZES)


def test_a_model_leaves_its_old_place_when_it_is_ready_in_the_new_one() -> None:
    roster = FleetRoster(room=20, models={"m": ModelSettings(nbytes=20)}, settle_s=1.0)
    sizes = {"m": 1, "n": 1}
    before = ReplicaTold("a:1", sizes, frozenset({"m", "n"}))
    roster.tell("b", ReplicaTold("b:1", sizes), 0.0)
    roster.tell("a", before, 0.0)
    assert roster.tell("a", before, 1.0) == {"m", "n"}, "n is to move, and is not there yet"
    assert roster.tell("b", ReplicaTold("b:1", sizes), 1.0) == {"n"}
    roster.tell("b", ReplicaTold("b:1", sizes, frozenset({"n"})), 2.0)
    assert roster.tell("a", before, 2.0) == {"m"}


def test_a_roster_that_was_lost_learns_again_where_models_are() -> None:
    fleet = Fleet(FleetRoster(room=80), "abc")
    fleet.go_on()
    before = dict(fleet.ready)
    fleet.roster = FleetRoster(room=80)
    fleet.go_on()
    assert fleet.ready == before


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
