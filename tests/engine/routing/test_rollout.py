"""Canaries in virtual time: bad ones go back in their first step, good ones get all (`engine.routing.rollout`)."""

from __future__ import annotations

import random

import pytest

from trireme.engine.routing.comparison import TargetOutcome
from trireme.engine.routing.rollout import Rollout, RolloutEvent, RolloutState
from trireme.engine.routing.route import Canary, CanaryLimits, ModelRoute, Target
from trireme.engine.routing.router import ModelRouter, RouteChoice

OLD, NEW = Target("digits", 1), Target("digits", 2)
EVERY = 37


def canary_route(step_s: float = 10.0, steps: tuple[int, ...] = (5, 25, 100)) -> ModelRoute:
    return ModelRoute("classifier", ((OLD, 100), (NEW, 0)), canary=Canary(NEW, steps, step_s, CanaryLimits()))


def play(
    seed: int, *, errors: float = 0.0, slower: float = 1.0, most: int = 60_000
) -> tuple[Rollout, int, list[RolloutEvent]]:
    """Requests at 500 a second, all answered at once; the rollout, the step in which it ended, and what it said."""
    draw = random.Random(seed)
    router = ModelRouter(lambda _name, target: True)
    said = router.replace([canary_route()], 0.0)
    rollout = router.rollout("classifier")
    assert rollout is not None
    now_s = 0.0
    for number in range(most):
        now_s += 0.002
        choice = router.choose("classifier", now_s)
        assert choice is not None
        new = choice.target == NEW
        latency_s = draw.lognormvariate(-4.5, 0.5) * (slower if new else 1.0)
        failed = draw.random() < (errors if new else 0.001)
        router.observe("classifier", choice.target, TargetOutcome(failed, latency_s, latency_s / 3), now_s)
        if number % EVERY == 0:
            said += router.advance(now_s)
            if rollout.state in (RolloutState.DONE, RolloutState.BACK):
                break
    return rollout, rollout.step, said


@pytest.mark.parametrize("seed", range(4))
def test_a_canary_with_errors_goes_back_in_its_first_step(seed: int) -> None:
    rollout, step, said = play(seed, errors=0.05)
    assert (rollout.state, step, rollout.percent) == (RolloutState.BACK, 0, 0)
    assert "requests failed" in said[-1].reason


@pytest.mark.parametrize("seed", range(4))
def test_a_canary_with_a_higher_p99_goes_back_in_its_first_step(seed: int) -> None:
    rollout, step, said = play(seed, slower=1.5)
    assert (rollout.state, step, rollout.percent) == (RolloutState.BACK, 0, 0)
    assert "99th percentile" in said[-1].reason


@pytest.mark.parametrize("seed", range(2))
def test_a_good_canary_gets_all(seed: int) -> None:
    rollout, _, said = play(seed)
    assert (rollout.state, rollout.percent) == (RolloutState.DONE, 100)
    assert [event.percent for event in said if event.step_began] == [5, 25, 100]


def stepping(*ready: Target) -> tuple[ModelRouter, Rollout]:
    router = ModelRouter(lambda _name, target: target == OLD or NEW in ready)
    router.replace([canary_route()], 0.0)
    rollout = router.rollout("classifier")
    assert rollout is not None
    return router, rollout


def test_a_rollout_waits_until_its_target_can_serve() -> None:
    router, rollout = stepping()
    assert (rollout.state, dict(router.weights("classifier"))) == (RolloutState.WAITING, {OLD: 100})
    assert router.next_s() is None
    (event,) = router.tell_ready("classifier", NEW, True, 3.0)
    assert (event.state, event.percent, event.reason) == (RolloutState.STEP, 5, "it can serve")
    assert dict(router.weights("classifier")) == {OLD: 95, NEW: 5}
    assert router.next_s() == 13.0


def test_a_canary_that_cannot_serve_any_more_goes_back() -> None:
    router, rollout = stepping()
    router.tell_ready("classifier", NEW, True, 3.0)
    (event,) = router.tell_ready("classifier", NEW, False, 4.0)
    assert (event.state, event.reason) == (RolloutState.BACK, "'digits:2' is not ready any more")
    assert not router.tell_ready("classifier", NEW, True, 5.0)
    assert (rollout.state, dict(router.weights("classifier"))) == (RolloutState.BACK, {OLD: 100})


def test_a_step_does_not_end_without_requests_nor_without_others() -> None:
    router, rollout = stepping()
    router.tell_ready("classifier", NEW, True, 0.0)
    (event,) = router.advance(1_000.0)
    missing = "failures and the latency and the time in queues"
    assert (event.state, event.percent, event.step_began) == (RolloutState.STEP, 5, False)
    assert event.reason == f"its time is over, but 0 requests do not tell enough of {missing} yet" == rollout.reason
    assert not router.advance(1_000.5), "it is said once"
    assert router.next_s() is None, "time alone changes nothing"
    router.tell_ready("classifier", OLD, False, 1_001.0)
    assert router.choose("classifier", 1_001.0) == RouteChoice(NEW)
    for _ in range(5_000):
        router.observe("classifier", NEW, TargetOutcome(False, 0.01), 1_001.0)
    assert not router.advance(1_500.0)
    assert (rollout.state, rollout.next_s()) == (RolloutState.STEP, 1_510.0)


def test_how_much_time_of_a_step_is_left_is_known() -> None:
    router, rollout = stepping()
    assert rollout.left_s(1.0) == 0
    router.tell_ready("classifier", NEW, True, 3.0)
    assert [rollout.left_s(now_s) for now_s in (3.0, 7.0, 13.0, 14.0)] == [10, 6, 0, 0]
    router.tell_ready("classifier", OLD, False, 20.0)
    assert rollout.left_s(25.0) == 10, "the step's time does not go on without the others"
    router.tell_ready("classifier", NEW, False, 30.0)
    assert rollout.left_s(31.0) == 0


def test_what_is_answered_while_the_others_cannot_serve_does_not_count() -> None:
    router, rollout = stepping()
    router.tell_ready("classifier", NEW, True, 0.0)
    router.tell_ready("classifier", OLD, False, 0.0)
    for number in range(1_000):
        router.observe("classifier", NEW, TargetOutcome(True), number / 10)
    assert not router.advance(100.0)
    assert rollout.state is RolloutState.STEP


def test_what_is_no_target_of_the_route_does_not_count_as_one_of_the_others() -> None:
    router, _ = stepping()
    router.tell_ready("classifier", NEW, True, 0.0)
    for number in range(1_000):
        router.observe("classifier", Target("gone"), TargetOutcome(True), number / 10)
        router.observe("classifier", OLD, TargetOutcome(False), number / 10)
        router.observe("classifier", NEW, TargetOutcome(number % 10 == 0), number / 10)
    (event,) = router.advance(100.0)
    assert event.reason.endswith("requests failed, of the others 0 of 1000")


def test_an_operator_stops_a_rollout() -> None:
    router, _ = stepping()
    router.tell_ready("classifier", NEW, True, 0.0)
    event = router.stop_rollout("classifier", 1.0)
    assert event is not None
    assert (event.percent, event.reason) == (0, "an operator stopped it")
    assert router.stop_rollout("classifier", 2.0) is None
    assert dict(router.weights("classifier")) == {OLD: 100}


def test_a_rollout_goes_on_when_other_routes_change_and_begins_anew_when_its_own_does() -> None:
    router, rollout = stepping(NEW)
    same = ModelRoute("classifier", ((NEW, 0), (OLD, 100)), canary=canary_route().canary)
    router.replace([same, ModelRoute("other", ((OLD, 100),))], 1.0)
    assert router.rollout("classifier") is rollout
    assert dict(router.weights("classifier")) == {OLD: 95, NEW: 5}
    router.replace([canary_route(step_s=20.0)], 2.0)
    assert router.rollout("classifier") is not rollout
