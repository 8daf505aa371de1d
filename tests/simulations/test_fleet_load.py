"""How even the load of a simulated fleet is, and how soon it recovers from the loss of a replica."""

from __future__ import annotations

import pytest

from trireme.engine.fleet.types import AttemptEnd
from trireme.simulations.fleet.load import BEGIN_S, FleetUnderLoad
from trireme.simulations.fleet.replicas import ClientAsk

REPLICAS = 10
RATE = 600
"""Requests a second."""
NOTICE_S = 0.4
RECOVERED_S = 1.0
"""After the loss of a replica is noticed nothing fails; and so much later nothing takes longer than it should."""


def spread(gateways: int, seed: int, hot: float = 0.0) -> tuple[float, float]:
    """The least and the most requests of a replica, as parts of the mean."""
    fleet, answers = FleetUnderLoad(REPLICAS, gateways, seed, hot=hot), []
    fleet.play(5_000, lambda ask: answers.append(ask.answer))
    assert set(answers) == {"ok"}
    counts = [server.executed for server in fleet.servers]
    assert sum(counts) == 5_000, "each request is executed once"
    return min(counts) / 500, max(counts) / 500


@pytest.mark.parametrize("gateways", [1, 3])
def test_load_is_within_a_fifth_of_even_while_a_tenth_of_the_reports_is_late(gateways: int) -> None:
    """Also with gateways that know of each other's requests by reports only."""
    for seed in range(1, 4):
        least, most = spread(gateways, seed)
        assert least >= 0.8, f"seed {seed}"
        assert most <= 1.2, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("gateways", [1, 2, 3, 5])
def test_so_it_is_for_many_seeds(gateways: int) -> None:
    found = [spread(gateways, seed) for seed in range(11, 61)]
    assert min(least for least, _ in found) >= 0.8
    assert max(most for _, most in found) <= 1.2


def test_a_hot_key_does_not_overload_its_replica() -> None:
    for seed in (1, 2):
        _, most = spread(3, seed, hot=0.5)
        assert most <= 2, f"seed {seed}"


def loss(kind: str, seed: int) -> None:
    """One of ten replicas is lost at 3 s, for 2 s: killed, or cut off without a word."""
    fleet = FleetUnderLoad(REPLICAS, 2, seed, slow_start_s=1.0)
    asks: list[tuple[ClientAsk, float]] = []
    lost_s, back_s = BEGIN_S + 2.0, BEGIN_S + 4.0
    counts: list[list[int]] = []
    gone = fleet.servers[seed % REPLICAS]
    if kind == "killed":
        fleet.calendar.at(lost_s, fleet.lose, gone, back_s - lost_s)
        noticed_s = lost_s + 0.002
    else:
        fleet.calendar.at(lost_s, fleet.cut, gone, back_s - lost_s, NOTICE_S)
        noticed_s = lost_s + NOTICE_S
    for at_s in (back_s + 2.0, back_s + 4.0):
        fleet.calendar.at(at_s, lambda: counts.append([server.executed for server in fleet.servers]))
    fleet.play(8 * RATE + 300, lambda ask: asks.append((ask, fleet.calendar.now_s - ask.submitted_s)))
    for ask, latency_s in asks:
        if ask.answer != "ok":
            assert ask.answer == AttemptEnd.LOST.value, "it may have been executed"
            assert ask.ends[-1][0] == gone.name
            assert ask.submitted_s <= noticed_s
            assert latency_s <= NOTICE_S + 0.2, "its client hears of it when the loss is noticed"
    before = sorted(took_s for ask, took_s in asks if ask.submitted_s < lost_s)
    later = sorted(took_s for ask, took_s in asks if noticed_s + RECOVERED_S < ask.submitted_s < back_s)
    assert later[int(0.99 * len(later))] <= 2 * before[int(0.99 * len(before))]
    late = [after - at_first for at_first, after in zip(*counts, strict=True)]
    assert late[fleet.servers.index(gone)] >= 0.8 * sum(late) / REPLICAS, "it has its share again"


@pytest.mark.parametrize("kind", ["killed", "cut"])
def test_a_fleet_recovers_from_a_lost_replica_within_a_second_of_the_notice(kind: str) -> None:
    for seed in (1, 2):
        loss(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["killed", "cut"])
def test_so_it_does_for_many_seeds(kind: str) -> None:
    for seed in range(11, 61):
        loss(kind, seed)
