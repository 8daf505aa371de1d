"""The rate limiter: its rules, and its refusals in their words (docs/reference/scheduling.md#rate-limiter)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from trireme.engine.config.instance_groups import RateLimit, ResourceDemand
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.scheduling.rate_limiter import GLOBAL, ExplicitResource, GrantState, Pool, RateLimiterCore


def limit(priority: int = 0, *, shared: bool = False, **resources: int) -> RateLimit:
    """A limit that demands so many units of each of these."""
    return RateLimit(tuple(ResourceDemand(name, count, shared) for name, count in resources.items()), priority)


def make(
    limits: dict[str, RateLimit], explicit: Iterable[ExplicitResource] = (), device: int = 0
) -> RateLimiterCore[str]:
    limiter: RateLimiterCore[str] = RateLimiterCore(explicit)
    for name, each in limits.items():
        limiter.register(name, each, device)
    return limiter


def grants(limiter: RateLimiterCore[str]) -> list[str]:
    """Everyone who is granted now."""
    granted: list[str] = []
    while (instance := limiter.next_grant()) is not None:
        granted.append(instance)
    return granted


def ask(limiter: RateLimiterCore[str], names: str) -> list[str]:
    for name in names:
        limiter.request(name)
    return grants(limiter)


# How much there is


def test_without_counts_every_instance_can_run_alone() -> None:
    limiter = make({"a": limit(R=4), "b": limit(R=10), "c": limit(R=6)})
    assert limiter.pools.sizes == {Pool(0, "R"): 10}
    assert ask(limiter, "abc") == ["a"], "b is next, and c waits behind it"
    limiter.release("a")
    assert grants(limiter) == ["b"]
    limiter.release("b")
    assert grants(limiter) == ["c"]


def test_two_fit_when_the_pool_is_large_enough() -> None:
    limiter = make({"a": limit(R=4), "b": limit(R=10), "c": limit(R=6)}, [ExplicitResource("R", 14)])
    assert ask(limiter, "abc") == ["a", "b"]


def test_each_device_has_its_own_pool_and_a_global_resource_has_one() -> None:
    limiter: RateLimiterCore[str] = RateLimiterCore()
    limiter.register("a", limit(R=1), device=0)
    limiter.register("b", limit(R=1), device=1)
    limiter.register("c", limit(R=1), device=1)
    assert ask(limiter, "abc") == ["a", "b"]
    limiter = RateLimiterCore()
    limiter.register("a", limit(shared=True, G=1), device=0)
    limiter.register("b", limit(shared=True, G=1), device=1)
    assert ask(limiter, "ab") == ["a"]


def test_explicit_counts_are_for_one_device_or_for_each() -> None:
    limiter: RateLimiterCore[str] = RateLimiterCore([ExplicitResource("R", 2), ExplicitResource("R", 3, device=1)])
    limiter.register("a", limit(R=1), device=0)
    limiter.register("b", limit(R=1), device=1)
    assert limiter.pools.sizes == {Pool(0, "R"): 2, Pool(1, "R"): 3}


def test_a_global_resource_takes_the_largest_count_of_any_device() -> None:
    explicit = [ExplicitResource("G", 2), ExplicitResource("G", 5, device=3)]
    assert make({"a": limit(shared=True, G=1)}, explicit).pools.sizes == {Pool(GLOBAL, "G"): 5}


TOO_LITTLE = (
    'Resource count for "{}" is limited to {} which will prevent scheduling of one or more model instances, the '
    "minimum required count is {}"
)


@pytest.mark.parametrize(
    ("explicit", "text"),
    [
        ([ExplicitResource("R", 3)], TOO_LITTLE.format("R", 3, 4)),
        ([ExplicitResource("OTHER", 9)], TOO_LITTLE.format("R", 0, 4)),
        ([ExplicitResource("R", 9, device=1)], TOO_LITTLE.format("R", 0, 4)),
        ([ExplicitResource("R", 2), ExplicitResource("R", 3, device=0)], TOO_LITTLE.format("R", 3, 4)),
    ],
)
def test_an_instance_that_could_never_run_is_refused(explicit: list[ExplicitResource], text: str) -> None:
    limiter: RateLimiterCore[str] = RateLimiterCore(explicit)
    with pytest.raises(InvalidArgumentError) as caught:
        limiter.register("a", limit(R=4), device=0)
    assert str(caught.value) == text
    assert limiter.state("a") is None
    assert limiter.pools.sizes == {}


def test_a_resource_is_global_or_of_a_device_and_not_both() -> None:
    limiter = make({"a": limit(R=1)})
    with pytest.raises(InvalidArgumentError) as caught:
        limiter.register("b", limit(shared=True, R=1), device=0)
    assert str(caught.value) == (
        'Resource "R" is present as both global and device-specific resource in the model configuration.'
    )
    assert limiter.pools.sizes == {Pool(0, "R"): 1}
    assert ask(limiter, "ab") == ["a"], "the one that was refused is not there"


def test_pools_shrink_when_the_most_demanding_instance_is_gone() -> None:
    limiter = make({"a": limit(R=1), "b": limit(R=1), "big": limit(R=2)})
    assert ask(limiter, "ab") == ["a", "b"]
    limiter.unregister("big")
    limiter.release("a")
    limiter.request("a")
    assert grants(limiter) == [], "b alone takes all that there is now"
    limiter.release("b")
    assert grants(limiter) == ["a"]


# Who is first


def count(limiter: RateLimiterCore[str], names: str, rounds: int) -> dict[str, int]:
    """Executions of instances that always have work and share one unit."""
    executed = dict.fromkeys(names, 0)
    ask_all = list(names)
    for _ in range(rounds):
        for name in ask_all:
            limiter.request(name)
        (granted,) = grants(limiter)
        executed[granted] += 1
        limiter.release(granted)
        ask_all = [granted]
    return executed


def test_priority_2_gets_half_as_many_executions_as_priority_1() -> None:
    limiter = make({"a": limit(1, R=1), "b": limit(2, R=1)})
    assert count(limiter, "ab", 30) == {"a": 20, "b": 10}


def test_priority_0_is_priority_1() -> None:
    limiter = make({"a": limit(0, R=1), "b": limit(1, R=1), "c": limit(3, R=1)})
    executed = count(limiter, "abc", 700)
    assert abs(executed["a"] - executed["b"]) <= 1
    assert abs(executed["a"] - 3 * executed["c"]) <= 4


def test_starting_and_warming_up_count_as_an_execution_each() -> None:
    """As in Triton 2.51: the first four of a model of priority 2 that has executed once go behind."""
    limiter = make({"a": limit(1, R=1), "b": limit(2, R=1)})
    assert ask(limiter, "b") == ["b"]
    limiter.request("a")
    limiter.renew("b")
    order = ""
    for _ in range(11):
        (granted,) = grants(limiter)
        order += granted
        limiter.renew(granted)
    assert order == "aaaabaabaab"


def test_who_is_done_asks_again_before_what_it_gave_back_is_granted() -> None:
    limiter = make({"a": limit(1, R=1), "b": limit(2, R=1)})
    assert ask(limiter, "ab") == ["a"]
    limiter.renew("a")
    assert limiter.state("a") is GrantState.WAITING
    assert grants(limiter) == ["a"], "it has executed less, by weight"


def test_of_equals_who_asked_first_is_first() -> None:
    limiter = make({name: limit(R=1) for name in "abcd"})
    assert ask(limiter, "dbca") == ["d"]
    order = ["d"]
    for _ in range(3):
        limiter.release(order[-1])
        order += grants(limiter)
    assert order == ["d", "b", "c", "a"]


def test_a_new_instance_does_not_make_up_for_all_the_time_before_it() -> None:
    limiter = make({"a": limit(R=1)})
    assert count(limiter, "a", 1000) == {"a": 1000}
    limiter.register("b", limit(R=1), 0)
    assert count(limiter, "ab", 40)["a"] == 10, "in Triton b would have all of them"


def test_an_instance_without_work_for_long_does_not_make_up_for_all_of_it() -> None:
    limiter = make({"a": limit(R=1), "b": limit(R=1)})
    assert count(limiter, "a", 1000) == {"a": 1000}
    assert count(limiter, "ab", 40)["a"] == 10


def test_a_grant_without_use_costs_nothing() -> None:
    limiter = make({"a": limit(R=1), "b": limit(R=1)})
    assert ask(limiter, "a") == ["a"]
    limiter.release("a", executed=False)
    limiter.request("b")
    assert grants(limiter) == ["b"]
    limiter.release("b")
    assert ask(limiter, "ba") == ["a"], "b has executed, and a has not"


# Who waits for whom


def test_the_head_of_the_line_holds_up_none_that_need_something_else() -> None:
    limiter = make({"a": limit(R=2), "b": limit(R=2), "c": limit(S=1), "free": limit()})
    assert ask(limiter, "abc") == ["a", "c"], "b waits for a; c does not wait for b"
    assert ask(limiter, ["free"]) == ["free"]  # type: ignore[arg-type]


def test_a_large_demand_is_not_overtaken_for_ever_by_small_ones() -> None:
    limiter = make({"big": limit(R=3), "a": limit(R=1), "b": limit(R=1), "c": limit(R=1)})
    assert ask(limiter, "ab") == ["a", "b"]
    limiter.request("big")
    limiter.request("c")
    assert grants(limiter) == [], "c would fit, but big is before it"
    limiter.release("a")
    limiter.request("a")
    assert grants(limiter) == []
    limiter.release("b")
    assert grants(limiter) == ["big"]
    limiter.release("big")
    assert grants(limiter) == ["c", "a"]


def test_none_overtakes_by_taking_a_part_of_what_the_head_needs() -> None:
    """Or two instances in turn could keep one waiting that needs both resources at once."""
    limiter = make({"both": limit(R=1, S=1), "r": limit(R=1), "s": limit(S=1)})
    assert ask(limiter, "r") == ["r"]
    limiter.request("both")
    limiter.request("s")
    assert grants(limiter) == []
    limiter.release("r")
    limiter.request("r")
    assert grants(limiter) == ["both"]


# Coming and going


def test_an_instance_that_goes_while_it_waits_lets_the_others_pass() -> None:
    limiter = make({"a": limit(R=1), "b": limit(R=1), "c": limit(R=1)})
    assert ask(limiter, "abc") == ["a"]
    limiter.unregister("b")
    limiter.release("a")
    assert grants(limiter) == ["c"]


def test_an_instance_that_dies_holding_resources_gives_them_back() -> None:
    limiter = make({"a": limit(R=1), "b": limit(R=1)})
    assert ask(limiter, "ab") == ["a"]
    limiter.unregister("a")
    assert grants(limiter) == ["b"]
    limiter.release("a")
    limiter.unregister("a")
    limiter.request("a")
    assert limiter.waiting() == []
    assert limiter.pools.taken == {Pool(0, "R"): 1}


def test_nothing_is_left_of_instances_that_are_gone() -> None:
    limiter = make(
        {"a": limit(R=1), "b": limit(shared=True, G=1)}, [ExplicitResource("R", 1), ExplicitResource("G", 1)]
    )
    ask(limiter, "ab")
    for name in "ab":
        limiter.unregister(name)
    assert (limiter.pools.sizes, limiter.pools.taken, limiter.waiting()) == ({}, {}, [])
    assert repr(limiter) == "<RateLimiter: 0 instances, 0 granted, 0 waiting>"


def test_asking_twice_is_asking_once_and_withdrawing_undoes_it() -> None:
    limiter = make({"a": limit(R=1), "b": limit(R=1)})
    for name in "aab":
        limiter.request(name)
    limiter.withdraw("a")
    assert grants(limiter) == ["b"]
    limiter.withdraw("b")
    assert limiter.state("b") is GrantState.GRANTED, "what is granted is given back, not withdrawn"
    limiter.release("b")
    assert grants(limiter) == []
