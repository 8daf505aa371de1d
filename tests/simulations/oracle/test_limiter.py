"""The rules of the rate limiter: right grants pass, each kind of wrong one does not."""

from __future__ import annotations

import pytest
from oracle_tape import Tape

from trireme.engine.config.instance_groups import RateLimit, ResourceDemand
from trireme.engine.scheduling.rate_limiter import ExplicitResource, RateLimiterCore
from trireme.simulations.history import Recorder
from trireme.simulations.oracle.limiter import (
    LimiterGranted,
    LimiterMade,
    LimiterTold,
    RightGrants,
    observed_core,
)


def new(instance: str, count: int = 1, priority: int = 1, device: int = 0, name: str = "R") -> LimiterTold:
    return LimiterTold("register", instance, RateLimit((ResourceDemand(name, count),), priority), device)


def asks(*instances: str) -> list[LimiterTold]:
    return [LimiterTold("request", instance) for instance in instances]


def granted(instance: str | None) -> LimiterGranted:
    return LimiterGranted(instance)


def done(instance: str, *, executed: bool = True) -> LimiterTold:
    return LimiterTold("release", instance, executed=executed)


ONE = LimiterMade((ExplicitResource("R", 1),))
TWO = LimiterMade((ExplicitResource("R", 2),))
ALL = LimiterMade(())
NONE = granted(None)

GOOD: dict[str, list[object]] = {
    "who asked first": [ONE, new("a"), new("b"), *asks("b", "a"), granted("b"), NONE, done("b"), granted("a"), NONE, 1],
    "who has executed least": [ONE, new("a"), new("b"), *asks("a"), granted("a"), done("a"), *asks("a", "b"),
                               granted("b"), NONE],
    "by priority": [ONE, new("a", priority=2), new("b"), *asks("a", "b"), granted("b"), done("b"), *asks("b"),
                    granted("b"), done("b"), *asks("b"), granted("a")],
    "a grant that was of no use costs nothing": [ONE, new("a"), new("b"), *asks("a"), granted("a"),
                                                 done("a", executed=False), *asks("a", "b"), granted("a")],
    "a large demand is waited for": [TWO, new("a"), new("b", 2), new("c"), *asks("a"), granted("a"), *asks("b", "c"),
                                     NONE, 1, done("a"), granted("b"), NONE],
    "not by those that demand something else": [
        LimiterMade((ExplicitResource("R", 1), ExplicitResource("S", 1))), new("a"), new("b"), new("c", name="S"),
        *asks("a", "b", "c"), granted("a"), granted("c"), NONE],
    "each device has its own": [ONE, new("a"), new("b", device=1), *asks("a", "b"), granted("a"), granted("b"), NONE],
    "as much as the most demanding needs": [ALL, new("a", 2), new("b"), new("c"), *asks("b", "c"), granted("b"),
                                            granted("c"), NONE],
    "what is gone holds and awaits nothing": [ONE, new("a"), new("b"), *asks("a", "b"), granted("a"),
                                              LimiterTold("unregister", "a"), granted("b"), NONE],
    "who has withdrawn waits no more": [TWO, new("a"), new("b", 2), new("c"), *asks("a"), granted("a"), *asks("b", "c"),
                                        NONE, LimiterTold("withdraw", "b"), granted("c"), NONE],
}  # fmt: skip

BAD: dict[str, list[object]] = {
    "who asked last": [ONE, new("a"), new("b"), *asks("b", "a"), granted("a")],
    "more than there is": [ONE, new("a"), new("b"), *asks("a", "b"), granted("a"), granted("b")],
    "who has executed more": [ONE, new("a"), new("b"), *asks("a"), granted("a"), done("a"), *asks("a", "b"),
                              granted("a")],
    "priorities do not count": [ONE, new("a", priority=2), new("b"), *asks("a", "b"), granted("a")],
    "a large demand is passed by": [TWO, new("a"), new("b", 2), new("c"), *asks("a"), granted("a"), *asks("b", "c"),
                                    granted("c")],
    "the others are held up": [LimiterMade((ExplicitResource("R", 1), ExplicitResource("S", 1))), new("a"), new("b"),
                               new("c", name="S"), *asks("a", "b", "c"), granted("a"), NONE],
    "who has not asked": [ONE, new("a"), granted("a")],
    "what is free is not granted": [ONE, new("a"), *asks("a"), 1],
    "what came back is not granted": [ONE, new("a"), new("b"), *asks("a", "b"), granted("a"), NONE, done("a"), 1],
}  # fmt: skip


@pytest.mark.parametrize("records", GOOD.values(), ids=GOOD)
def test_right_grants_pass(records: list[object]) -> None:
    assert Tape(RightGrants).play(*records) == ""


@pytest.mark.parametrize("records", BAD.values(), ids=BAD)
def test_a_wrong_grant_is_complained_of(records: list[object]) -> None:
    tape = Tape(RightGrants)
    assert tape.play(*records[:-1]) == ""
    assert tape.play(records[-1]) != ""


def test_one_that_is_overtaken_too_often_goes_first() -> None:
    """A new instance has executed less than an old one for long, and must not make up for all of it."""
    old = [record for _ in range(20) for record in (*asks("a"), granted("a"), done("a"))]
    new_one = [record for _ in range(3) for record in (*asks("b"), granted("b"), done("b"))]
    story = [ONE, new("a"), *old, new("b"), *asks("b"), granted("b"), *asks("a"), done("b"), *new_one]
    assert Tape(RightGrants).play(*story, *asks("b"), granted("a")) == ""
    assert Tape(RightGrants).play(*story, *asks("b"), granted("b")) != ""


def test_a_limiter_that_is_listened_to() -> None:
    heard: list[object] = []

    class Now:
        def now_ns(self) -> int:
            return 0

    recorder = Recorder(Now())
    recorder.listen(dict.fromkeys((LimiterMade, LimiterTold, LimiterGranted), heard.append))
    limiter: RateLimiterCore[str] = observed_core(recorder)((ExplicitResource("R", 1),))
    limiter.register("a", RateLimit((ResourceDemand("R", 1),)), 0)
    limiter.request("a")
    assert limiter.next_grant() == "a"
    limiter.renew("a")
    kinds = [type(event) for event in heard]
    assert kinds == [LimiterMade, LimiterTold, LimiterTold, LimiterGranted, LimiterTold, LimiterTold]
