"""Whatever order instances come, ask, execute and go in: what the rate limiter promises after every event."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trireme.engine.config.instance_groups import RateLimit, ResourceDemand
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.scheduling.rate_limiter import GLOBAL, ExplicitResource, GrantState, Pool, RateLimiterCore

DEMANDS = st.lists(
    st.builds(
        ResourceDemand,
        st.sampled_from(["R", "S", "G"]),
        st.integers(0, 4),
        st.just(False),
    ),
    max_size=3,
    unique_by=lambda demand: demand.name,
).map(lambda demands: tuple(ResourceDemand(each.name, each.count, each.name == "G") for each in demands))

PRIORITIES = st.integers(0, 3)


class Limited(RuleBasedStateMachine):
    """Instances 1, 2, 3 … that do things in random order."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[int, tuple[RateLimit, int]] = {}
        self.granted: set[int] = set()
        self.born = 0

    @initialize(counts=st.lists(st.tuples(st.sampled_from("RSG"), st.integers(0, 6)), max_size=3))
    def begin(self, counts: list[tuple[str, int]]) -> None:
        self.limiter: RateLimiterCore[int] = RateLimiterCore([ExplicitResource(name, count) for name, count in counts])

    @rule(demand=DEMANDS, priority=PRIORITIES, device=st.integers(0, 1))
    def come(self, demand: tuple[ResourceDemand, ...], priority: int, device: int) -> None:
        before = dict(self.limiter.pools.sizes)
        self.born += 1
        try:
            self.limiter.register(self.born, RateLimit(demand, priority), device)
            self.limits[self.born] = (RateLimit(demand, priority), device)
        except InvalidArgumentError:
            assert dict(self.limiter.pools.sizes) == before

    @precondition(lambda self: self.limits)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.limits)))
        self.limiter.request(name)

    @precondition(lambda self: self.limits)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.limits)))
        self.limiter.withdraw(name)

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), executed=st.booleans())
    def finish(self, data: st.DataObject, executed: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.granted)))
        self.granted.remove(name)
        self.limiter.release(name, executed)

    @precondition(lambda self: self.limits)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.limits)))
        self.limiter.unregister(name)
        del self.limits[name]
        self.granted.discard(name)

    @rule()
    def grant(self) -> None:
        while (name := self.limiter.next_grant()) is not None:
            assert self.limiter.state(name) is GrantState.GRANTED
            assert name not in self.granted
            for pool in self.pools(name):
                assert self.limiter.pools.taken.get(pool, 0) <= self.limiter.pools.sizes[pool], "oversubscribed"
            self.granted.add(name)
        self.nobody_waits_for_nothing()

    def pools(self, name: int) -> dict[Pool, int]:
        limit, device = self.limits[name]
        demands = [each for each in limit.resources if each.count]
        return {Pool(GLOBAL if each.is_global else device, each.name): each.count for each in demands}

    def nobody_waits_for_nothing(self) -> None:
        """Work-conserving: who waits lacks something, or stands behind someone who wants the same."""
        ahead: set[Pool] = set()
        pools = self.limiter.pools
        for name in self.limiter.waiting():
            mine = self.pools(name)
            lacks = any(pools.taken.get(pool, 0) + count > pools.sizes[pool] for pool, count in mine.items())
            assert lacks or not ahead.isdisjoint(mine)
            ahead.update(mine)

    @invariant()
    def what_is_taken_is_what_is_granted(self) -> None:
        taken: dict[Pool, int] = {}
        for name in self.granted:
            for pool, count in self.pools(name).items():
                taken[pool] = taken.get(pool, 0) + count
        if hasattr(self, "limiter"):
            assert self.limiter.pools.taken == taken

    def teardown(self) -> None:
        """Liveness: when all that are granted finish, all that wait get through."""
        if not hasattr(self, "limiter"):
            return
        for _ in range(2 * len(self.limits) + 1):
            for name in sorted(self.granted):
                self.limiter.release(name)
            self.granted.clear()
            self.grant()
        assert self.limiter.waiting() == []
        for name in sorted(self.limits):
            self.limiter.unregister(name)
        assert (self.limiter.pools.sizes, self.limiter.pools.taken) == ({}, {})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_instance_starves(data: st.DataObject) -> None:
    """However much the others have to make up for, each instance is overtaken at most as often as priorities explain,
    and then by those that have been overtaken as often and asked before it."""
    limiter: RateLimiterCore[int] = RateLimiterCore()
    demands: dict[int, set[str]] = {}
    weights: dict[int, int] = {}
    names = range(data.draw(st.integers(2, 5)))
    for name in names:
        demand = data.draw(st.dictionaries(st.sampled_from("RS"), st.integers(1, 3), min_size=1))
        weights[name] = data.draw(st.integers(1, 3))
        resources = tuple(ResourceDemand(each, count) for each, count in demand.items())
        limiter.register(name, RateLimit(resources, weights[name]), 0)
        demands[name] = set(demand)
        for _ in range(data.draw(st.sampled_from([0, 0, 100]))):
            limiter.request(name)
            assert limiter.next_grant() == name
            limiter.release(name)
    for name in names:
        limiter.request(name)
    granted: list[int] = []
    overtaken = dict.fromkeys(names, 0)
    for _ in range(200):
        while (name := limiter.next_grant()) is not None:
            granted.append(name)
            overtaken[name] = 0
            for other in limiter.waiting():
                overtaken[other] += not demands[other].isdisjoint(demands[name])
        bounds = {name: (weights[name] + 1) * (len(names) - 1) + len(names) for name in names}
        assert all(overtaken[name] <= bounds[name] for name in names), (overtaken, bounds)
        name = granted.pop(data.draw(st.integers(0, len(granted) - 1)))
        limiter.release(name)
        limiter.request(name)


TestRateLimiterHistories = Limited.TestCase
TestRateLimiterHistories.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
