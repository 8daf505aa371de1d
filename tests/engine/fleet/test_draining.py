"""What a fleet's router does with replicas that drain, and with sequences whose first request was not taken."""

from __future__ import annotations

from random import Random

import pytest

from trireme.engine.fleet.router import FleetRouter
from trireme.engine.fleet.types import (
    AttemptEnd,
    FleetDecision,
    FleetRequest,
    FleetSettings,
    Refuse,
    ReplicaReport,
    SendTo,
)

READY = {"m": {1: True}}


def fleet(names: str, settings: FleetSettings | None = None) -> FleetRouter:
    router = FleetRouter(settings or FleetSettings(), Random(1))
    for name in names:
        router.join(name, -100.0)
        router.connected(name, -100.0)
        router.report(name, ReplicaReport("e", models=READY), 0.0)
    return router


def drain(router: FleetRouter, *names: str) -> None:
    for name in names:
        router.report(name, ReplicaReport("e", True, READY), 0.0)


def sent(decision: FleetDecision | None) -> SendTo:
    assert isinstance(decision, SendTo)
    return decision


def test_a_sequence_that_is_not_known_is_looked_for_at_replicas_that_drain_as_well() -> None:
    router = fleet("abcd")
    drain(router, "a", "b")
    attempt = sent(router.place(FleetRequest("m", sequence=5), 0.0))
    asked = [attempt.replica]
    while (decision := router.settle(attempt, AttemptEnd.NOT_STARTED, 0.0)) is not None:
        attempt = sent(decision)
        asked.append(attempt.replica)
    assert sorted(asked) == list("abcd")


def test_a_replica_that_drains_and_refuses_is_not_the_last_one_that_is_asked_for_a_sequence() -> None:
    router = fleet("ab")
    drain(router, "a", "b")
    first = sent(router.place(FleetRequest("m", sequence=5), 0.0))
    second = sent(router.settle(first, AttemptEnd.REFUSED, 0.0))
    assert {first.replica, second.replica} == {"a", "b"}


def test_if_all_drain_they_get_what_comes() -> None:
    router = fleet("ab")
    drain(router, "a", "b")
    for request in (FleetRequest("m"), FleetRequest("m", sequence=5, start=True), FleetRequest("m", sticky=b"k")):
        assert isinstance(router.place(request, 0.0), SendTo)
    router.report("b", ReplicaReport("e", models=READY), 0.0)
    for sequence in range(6, 30):
        assert sent(router.place(FleetRequest("m", sequence=sequence, start=True), 0.0)).replica == "b"


@pytest.mark.parametrize("end", [AttemptEnd.REFUSED, AttemptEnd.UNREACHABLE])
def test_those_behind_a_first_request_that_was_not_taken_are_refused(end: AttemptEnd) -> None:
    """An older sequence of the same id may be alive somewhere."""
    router = fleet("a")
    first = sent(router.place(FleetRequest("m", sequence=5, start=True), 0.0))
    behind = FleetRequest("m", sequence=5)
    router.place(behind, 0.0)
    assert router.settle(first, end, 0.0) is None
    (decision,) = router.tick(0.0)
    assert isinstance(decision, Refuse)
    assert decision.request is behind


def test_an_ejected_replica_may_have_a_request_if_no_other_can_also_without_slow_start() -> None:
    router = fleet("ab", FleetSettings(slow_start_s=0.0))
    for _ in range(40):
        attempt = sent(router.place(FleetRequest("m"), 0.0))
        router.settle(attempt, AttemptEnd.FAILED if attempt.replica == "a" else AttemptEnd.ANSWERED, 0.0)
    assert router.statistics(0.0)["a"].ejected
    router.lost("b", 0.0)
    assert sent(router.place(FleetRequest("m"), 0.0)).replica == "a"
