"""Which replica gets a request (`engine.fleet.router`), rule by rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from trireme.engine.errors import InvalidArgumentError, NotFoundError, RefusalReason, UnavailableError
from trireme.engine.fleet.router import FleetRouter
from trireme.engine.fleet.types import (
    AttemptEnd,
    FleetDecision,
    FleetRequest,
    FleetSettings,
    ModelLoad,
    Refuse,
    ReplicaReport,
    SendTo,
    WaitForReplica,
)

READY: Mapping[str, Mapping[int, bool]] = {"m": {1: True}}
ANSWERED, LOST, REFUSED = AttemptEnd.ANSWERED, AttemptEnd.LOST, AttemptEnd.REFUSED


def report(
    epoch: str = "e", draining: bool = False, models: object = READY, **loads: tuple[int, float]
) -> ReplicaReport:
    told = {name: ModelLoad(*load) for name, load in loads.items()}
    return ReplicaReport(epoch, draining, models, told)  # type: ignore[arg-type]


def fleet(names: Sequence[str] = "abc", settings: FleetSettings | None = None, seed: int = 1) -> FleetRouter:
    """A router whose replicas have all reported, long ago enough to have their full share, and again just now."""
    router = FleetRouter(settings or FleetSettings(), Random(seed))
    for name in names:
        router.join(name, -100.0)
        router.connected(name, -100.0)
        router.report(name, report(), 0.0)
    router.tick(0.0)
    return router


def sent(decision: FleetDecision | None) -> SendTo:
    assert isinstance(decision, SendTo)
    return decision


def refused(decision: FleetDecision | None) -> str:
    assert isinstance(decision, Refuse)
    return decision.error.message


def asked(sequence: int | str = 0, *, start: bool = False, end: bool = False, **others: Any) -> FleetRequest:
    return FleetRequest("m", sequence=sequence, start=start, end=end, **others)


# ---- who has the model ----


def test_requests_go_to_replicas_that_have_the_version_ready() -> None:
    router = fleet("ab")
    router.report("a", report(models={"m": {1: True, 2: True}}), 0.0)
    router.report("b", report(models={"m": {1: False, 3: True}}), 0.0)
    assert {sent(router.place(FleetRequest("m", 2), 0.0)).replica for _ in range(9)} == {"a"}
    assert {sent(router.place(FleetRequest("m", 3), 0.0)).replica for _ in range(9)} == {"b"}
    assert {sent(router.place(FleetRequest("m"), 0.0)).replica for _ in range(9)} == {"a", "b"}
    router.report("a", report(draining=True, models={"m": {1: True, 2: True}}), 0.0)
    assert {sent(router.place(FleetRequest("m"), 0.0)).replica for _ in range(9)} == {"b"}, "a drains"


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (FleetRequest("x"), "Request for unknown model: 'x' is not found"),
        (FleetRequest("m", 7), "Request for unknown model: 'm' version 7 is not found"),
        (FleetRequest("off"), "Request for unknown model: 'off' has no available versions"),
    ],
)
def test_what_no_replica_has_is_refused_as_a_server_does(request_: FleetRequest, text: str) -> None:
    router = fleet("a")
    router.report("a", report(models={"m": {1: True}, "off": {1: False}}), 0.0)
    decision = router.place(request_, 0.0)
    assert refused(decision) == text
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, NotFoundError)


# ---- waiting ----


def test_a_request_waits_while_nothing_is_known_and_goes_when_a_replica_reports() -> None:
    router = FleetRouter(FleetSettings(wait_s=5.0), Random(1))
    router.join("a", 0.0)
    request = asked()
    decision = router.place(request, 1.0)
    assert isinstance(decision, WaitForReplica)
    assert decision.deadline_s == 6.0
    assert router.due_s == 6.0
    router.connected("a", 2.0)
    router.report("a", report(), 2.0)
    assert router.due_s == -math.inf
    assert [sent(each).replica for each in router.tick(2.0)] == ["a"]
    assert router.tick(6.0) == [], "it does not wait any more"
    assert router.due_s == math.inf


def test_a_request_waits_for_a_model_that_was_ready_and_is_refused_when_its_time_is_over() -> None:
    router = fleet("a", FleetSettings(wait_s=5.0))
    router.report("a", report(models={}), 0.0)
    for request in (asked(), asked(deadline_s=2.0)):
        assert isinstance(router.place(request, 0.0), WaitForReplica)
    router.tick(0.0)
    assert router.due_s == 2.0
    (early,) = router.tick(2.0)
    assert refused(early) == "Request timeout expired"
    (late,) = router.tick(5.0)
    assert refused(late) == "no replica is ready for model 'm'"
    assert isinstance(late, Refuse)
    assert late.error.refusal_reason is RefusalReason.NOT_READY
    assert router.due_s == math.inf


def test_no_more_wait_than_may() -> None:
    router = fleet("a", FleetSettings(most_waiting=2))
    router.lost("a", 0.0)
    decisions = [router.place(asked(), 0.0) for _ in range(3)]
    assert [type(each) for each in decisions] == [WaitForReplica, WaitForReplica, Refuse]
    assert refused(decisions[2]) == "too many requests wait for a replica with model 'm'"


def test_a_request_that_is_given_up_while_it_waits_is_not_decided_any_more() -> None:
    router = fleet("a")
    router.lost("a", 0.0)
    request = asked()
    router.place(request, 0.0)
    router.cancel(request, 0.0)
    router.connected("a", 0.0)
    router.report("a", report(), 0.0)
    assert router.tick(0.0) == []


def test_a_link_without_room_gets_nothing_until_it_has_room() -> None:
    router = fleet("ab")
    router.room("a", False, 0.0)
    assert {sent(router.place(asked(), 0.0)).replica for _ in range(9)} == {"b"}
    router.room("b", False, 0.0)
    assert isinstance(router.place(asked(), 0.0), WaitForReplica)
    router.room("b", True, 0.0)
    assert [sent(each).replica for each in router.tick(0.0)] == ["b"]


# ---- load ----


def test_load_is_even() -> None:
    router = fleet([f"r{number}" for number in range(20)])
    counts = Counter(sent(router.place(asked(), 0.0)).replica for _ in range(2000))
    assert max(counts.values()) - min(counts.values()) <= 6


def test_what_others_have_there_counts_and_less_when_the_report_is_old() -> None:
    def share_of_a(now_s: float) -> int:
        router = fleet("ab", FleetSettings(stale_s=1.0))
        router.report("a", report(m=(50, 0.0)), 0.0)
        return sum(sent(router.place(asked(), now_s)).replica == "a" for _ in range(60))

    assert share_of_a(0.0) == 5
    assert 10 < share_of_a(0.5) < 25
    assert share_of_a(1.0) == 30


def test_where_requests_wait_in_queues_fewer_go() -> None:
    router = fleet("ab")
    router.report("a", report(m=(0, 0.09)), 0.0)
    counts = Counter(sent(router.place(asked(), 0.0)).replica for _ in range(110))
    assert counts == {"a": 10, "b": 100}


def test_weights() -> None:
    router = fleet("ab")
    router.join("b", 0.0, weight=3.0)
    counts = Counter(sent(router.place(asked(), 0.0)).replica for _ in range(400))
    assert counts["b"] == pytest.approx(300, abs=4)


def test_a_silent_replica_gets_nothing_if_others_can_have_it() -> None:
    router = fleet("ab", FleetSettings(silent_s=5.0))
    router.report("b", report(), 6.0)
    assert {sent(router.place(asked(), 6.0)).replica for _ in range(9)} == {"b"}
    router.lost("b", 6.0)
    assert sent(router.place(asked(), 6.0)).replica == "a"


def test_a_new_replica_gets_its_share_by_and_by() -> None:
    router = fleet("ab", FleetSettings(slow_start_s=10.0, silent_s=1e9, stale_s=1e9))
    router.join("c", 0.0)
    router.connected("c", 0.0)
    router.report("c", report(), 0.0)
    shares = []
    for now_s in (0.0, 5.0, 10.0):
        placed = [sent(router.place(asked(), now_s)) for _ in range(300)]
        shares.append(sum(each.replica == "c" for each in placed))
        for each in placed:
            router.settle(each, ANSWERED, now_s)
    assert shares[0] < 30 < shares[1] < 80 < shares[2]


# ---- retries ----


def test_what_was_not_executed_is_sent_to_others_it_has_not_been_at() -> None:
    router = fleet("abc")
    first = sent(router.place(asked(), 0.0))
    second = sent(router.settle(first, REFUSED, 0.0))
    third = sent(router.settle(second, AttemptEnd.UNREACHABLE, 0.0))
    assert {first.replica, second.replica, third.replica} == set("abc")
    assert (first.retry, second.retry) == (False, True)
    assert router.settle(third, REFUSED, 0.0) is None, "it was sent as often as it may be"


@pytest.mark.parametrize("end", [ANSWERED, AttemptEnd.FAILED, LOST, AttemptEnd.CANCELLED])
def test_what_may_have_been_executed_is_not_sent_again(end: AttemptEnd) -> None:
    router = fleet("abc")
    assert router.settle(sent(router.place(asked(), 0.0)), end, 0.0) is None


def test_retries_are_a_part_of_all_requests() -> None:
    router = fleet("abc", FleetSettings(retry_budget=0.1, retry_burst=3, most_attempts=2))
    retried = sum(router.settle(sent(router.place(asked(), 0.0)), REFUSED, 0.0) is not None for _ in range(1000))
    assert retried == pytest.approx(103, abs=1)


def test_who_waits_for_a_model_again_needs_a_retry_again() -> None:
    """A model comes and goes at the only replica: a START waits for it as often as there are retries."""
    router = fleet("a", FleetSettings(retry_budget=0.0, retry_burst=2, most_attempts=9))
    decision: FleetDecision | None = router.place(asked(7, start=True), 0.0)
    for now_s in (1.0, 2.0):
        assert isinstance(router.settle(sent(decision), AttemptEnd.ABSENT, now_s), WaitForReplica)
        router.report("a", report(models={"m": {1: True}}), now_s)
        (decision,) = router.tick(now_s)
    assert router.settle(sent(decision), AttemptEnd.ABSENT, 3.0) is None, "there is none left"


# ---- outliers ----


def test_failures_in_a_row_eject_a_replica_each_time_for_longer() -> None:
    router = fleet("ab", FleetSettings(eject_s=5.0, silent_s=1e9, stale_s=1.0, slow_start_s=0.0))

    def ejected_until(now_s: float) -> float:
        for _ in range(40):
            each = sent(router.place(asked(), now_s))
            router.settle(each, AttemptEnd.FAILED if each.replica == "a" else ANSWERED, now_s)
        while router.statistics(now_s)["a"].ejected:
            assert sent(router.place(asked(), now_s)).replica == "b"
            now_s += 1
        return now_s

    assert ejected_until(10.0) == 15.0
    assert ejected_until(15.0) == 25.0


def test_at_most_a_share_of_the_fleet_is_ejected() -> None:
    router = fleet("abcd", FleetSettings(eject_share=0.5))
    for _ in range(100):
        router.settle(sent(router.place(asked(), 0.0)), AttemptEnd.FAILED, 0.0)
    assert sum(each.ejected for each in router.statistics(0.0).values()) == 2


def test_connections_that_are_lost_again_and_again_eject_a_replica() -> None:
    router = fleet("ab")
    for now_s in (1.0, 2.0, 3.0):
        router.lost("a", now_s)
        router.connected("a", now_s)
        router.report("a", report(), now_s)
    assert router.statistics(3.0)["a"].ejected


# ---- sequences ----


def test_a_sequence_stays_where_it_was_placed() -> None:
    router = fleet("abcdef")
    for sequence in range(1, 60):
        first = sent(router.place(asked(sequence, start=True), 0.0))
        router.settle(first, ANSWERED, 0.0)
        for _ in range(3):
            following = sent(router.place(asked(sequence), 0.0))
            assert following.replica == first.replica
            router.settle(following, ANSWERED, 0.0)
        router.settle(sent(router.place(asked(sequence, end=True), 0.0)), ANSWERED, 0.0)
    assert sum(router.sequences_at(name) for name in "abcdef") == 0


def test_gateways_agree_without_talking() -> None:
    one, other = fleet("abcdef", seed=1), fleet("abcdef", seed=2)
    for sequence in range(1, 60):
        first = sent(one.place(asked(sequence, start=True), 0.0))
        one.settle(first, ANSWERED, 0.0)
        second = sent(other.place(asked(sequence), 0.0))
        for _ in range(3):
            if second.replica != first.replica:  # it was placed elsewhere because of the bound
                second = sent(other.settle(second, AttemptEnd.NOT_STARTED, 0.0))
        assert second.replica == first.replica
        other.settle(second, ANSWERED, 0.0)
        assert sent(other.place(asked(sequence), 0.0)).replica == first.replica, "now it knows"


def test_no_replica_has_many_more_sequences_than_others() -> None:
    names = [f"r{number}" for number in range(10)]
    router = fleet(names)
    for sequence in range(1, 1001):
        router.settle(sent(router.place(asked(sequence, start=True), 0.0)), ANSWERED, 0.0)
    assert max(map(router.sequences_at, names)) <= 125


def test_one_request_of_a_sequence_is_on_its_way_at_a_time_and_the_others_go_in_order() -> None:
    router = fleet("abc")
    first = sent(router.place(asked(5, start=True), 0.0))
    second, third, fourth = asked(5), asked(5), asked(5, end=True)
    for each in (second, third, fourth):
        assert isinstance(router.place(each, 0.0), WaitForReplica)
    router.cancel(third, 0.0)
    assert router.tick(0.0) == []
    router.settle(first, ANSWERED, 0.0)
    (now,) = router.tick(0.0)
    assert now.request is second
    router.settle(sent(now), ANSWERED, 0.0)
    (now,) = router.tick(0.0)
    assert (now.request, sent(now).replica) == (fourth, first.replica)
    router.settle(sent(now), ANSWERED, 0.0)
    assert router.tick(0.0) == []
    assert router.sequences_at(first.replica) == 0


def test_a_sequence_goes_on_while_its_replica_drains_and_new_ones_go_elsewhere() -> None:
    router = fleet("ab")
    first = sent(router.place(asked(5, start=True), 0.0))
    router.settle(first, ANSWERED, 0.0)
    router.report(first.replica, report(draining=True), 0.0)
    assert sent(router.place(asked(5), 0.0)).replica == first.replica
    others = {sent(router.place(asked(sequence, start=True), 0.0)).replica for sequence in range(6, 30)}
    assert others == {"a", "b"} - {first.replica}


@pytest.mark.parametrize("how", ["lost", "another process", "left", "in flight"])
def test_with_its_replica_a_sequence_is_lost_until_it_is_started_anew(how: str) -> None:
    router = fleet("abc")
    first = sent(router.place(asked(5, start=True), 0.0))
    if how == "in flight":
        router.settle(first, LOST, 0.0)
    else:
        router.settle(first, ANSWERED, 0.0)
    if how == "lost":
        router.lost(first.replica, 0.0)
    elif how == "another process":
        router.report(first.replica, report("other"), 0.0)
    elif how == "left":
        router.leave(first.replica, 0.0)
    text = (
        "inference request for sequence 5 to model 'm' must specify the START flag on the first request of the sequence"
    )
    decision = router.place(asked(5), 0.0)
    assert refused(decision) == text
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, InvalidArgumentError)
    again = sent(router.place(asked(5, start=True), 0.0))
    router.settle(again, ANSWERED, 0.0)
    assert sent(router.place(asked(5), 0.0)).replica == again.replica


def test_those_behind_a_lost_request_of_a_sequence_are_refused_up_to_the_next_start() -> None:
    router = fleet("abc")
    first = sent(router.place(asked(5, start=True), 0.0))
    behind = [asked(5), asked(5), asked(5, start=True), asked(5)]
    for each in behind:
        router.place(each, 0.0)
    router.settle(first, LOST, 0.0)
    decisions = router.tick(0.0)
    assert [type(each) for each in decisions] == [Refuse, Refuse, SendTo]
    assert [each.request for each in decisions] == behind[:3]


def test_the_first_request_of_a_sequence_goes_elsewhere_if_its_replica_does_not_take_it() -> None:
    router = fleet("abc")
    first = sent(router.place(asked(5, start=True), 0.0))
    second = sent(router.settle(first, REFUSED, 0.0))
    assert second.replica != first.replica
    router.settle(second, ANSWERED, 0.0)
    following = sent(router.place(asked(5), 0.0))
    assert following.replica == second.replica
    assert router.settle(following, REFUSED, 0.0) is None, "others do not have its state"
    assert sent(router.place(asked(5), 0.0)).replica == second.replica


def test_a_sequence_that_no_replica_knows_gets_the_answer_of_the_last_one_that_was_asked() -> None:
    router = fleet("abcdef", FleetSettings(lookups=4))
    attempt = sent(router.place(asked(5), 0.0))
    asked_of = [attempt.replica]
    while (decision := router.settle(attempt, AttemptEnd.NOT_STARTED, 0.0)) is not None:
        attempt = sent(decision)
        asked_of.append(attempt.replica)
    assert len(set(asked_of)) == len(asked_of) == 4
    assert "0 sequences" in repr(router), "it is not remembered"


def test_sequences_that_are_idle_for_long_are_forgotten() -> None:
    router = fleet("ab", FleetSettings(sequence_idle_s=10.0, silent_s=1e9))
    for sequence in range(1, 11):
        router.settle(sent(router.place(asked(sequence, start=True), 0.0)), ANSWERED, 0.0)
    for sequence in range(11, 31):
        router.settle(sent(router.place(asked(sequence, start=True), 20.0)), ANSWERED, 20.0)
    assert router.sequences_at("a") + router.sequences_at("b") == 20


# ---- sticky keys ----


def test_requests_with_the_same_key_go_to_the_same_replica_as_long_as_it_is_not_much_busier() -> None:
    router = fleet("abcdef")
    placed = [sent(router.place(asked(sticky=b"user"), 0.0)) for _ in range(2)]
    assert placed[0].replica == placed[1].replica
    hot = Counter(sent(router.place(asked(sticky=b"user"), 0.0)).replica for _ in range(60))
    assert len(hot) > 2, "a hot key does not drown its replica"
    for each in placed:
        router.settle(each, ANSWERED, 0.0)
    other = fleet("abcdef", seed=9)
    assert sent(other.place(asked(sticky=b"user"), 0.0)).replica == placed[0].replica
    other.lost(placed[0].replica, 0.0)
    assert sent(other.place(asked(sticky=b"user"), 0.0)).replica != placed[0].replica


def test_a_replica_that_leaves_with_requests_in_flight_is_settled_all_the_same() -> None:
    router = fleet("ab")
    placed = [sent(router.place(asked(), 0.0)) for _ in range(4)]
    router.leave("a", 0.0)
    for each in placed:
        end = AttemptEnd.UNREACHABLE if each.replica == "a" else ANSWERED
        again = router.settle(each, end, 0.0)
        assert again is None if end is ANSWERED else sent(again).replica == "b"
    assert list(router.statistics(0.0)) == ["b"]
    assert isinstance(router.place(asked(), 0.0), SendTo)
    router.leave("b", 0.0)
    decision = router.place(asked(), 0.0)
    assert isinstance(decision, WaitForReplica)
    (late,) = router.tick(decision.deadline_s)
    assert isinstance(late, Refuse)
    assert isinstance(late.error, UnavailableError)


def test_two_that_are_idle_get_half_of_the_requests_each() -> None:
    """Though one of them has come a moment later: many gateways with little to do would all choose the other."""
    router = fleet("ab")
    router.lost("b", 0.0)
    router.connected("b", -99.9)
    router.report("b", report(), 0.0)
    router.tick(0.0)
    counts: Counter[str] = Counter()
    for _ in range(400):
        decision = sent(router.place(asked(), 0.0))
        counts[decision.replica] += 1
        router.settle(decision, ANSWERED, 0.0)
    assert counts["a"] == pytest.approx(200, abs=40)
