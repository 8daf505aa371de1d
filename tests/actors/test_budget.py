"""The server-wide budget: never over its bounds, first come first served, nothing lost on cancellation, and room for
every model whatever the others do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trireme.actors.budget import InflightBudget, Lease
from trireme.engine.admission.shares import ModelShare
from trireme.engine.errors import UnavailableError


class Waiting:
    """Calls of the budget that may have to wait, each in a task of its own."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.done: list[str] = []
        self.scopes: dict[str, trio.CancelScope] = {}

    async def start(self, name: str, call: Callable[[], Awaitable[object]]) -> bool:
        """Begin a call; whether it is done already."""
        self._nursery.start_soon(self._run, name, call)
        await trio.testing.wait_all_tasks_blocked()
        return name in self.done

    async def _run(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        with trio.CancelScope() as self.scopes[name]:
            await call()
            self.done.append(name)


class TestPlainRequests:
    async def test_those_who_waited_go_on_where_room_is_given_back_and_in_order(self) -> None:
        budget = InflightBudget(100, 10)
        large, other = budget.share("large"), budget.share("other")
        assert budget.take_nowait(large, 10)
        order: list[int] = []
        async with trio.open_nursery() as nursery:

            async def take(number: int) -> None:
                def go_on(waited: bool) -> int:
                    assert waited
                    order.append(number)
                    if number == 2:
                        budget.release(other, 1)
                        raise ValueError("refused after all")
                    return number

                if number == 2:
                    with pytest.raises(ValueError, match="refused after all"):
                        await budget.take(other, 1, go_on)
                else:
                    assert await budget.take(other, 1, go_on) == number

            for number in range(5):
                nursery.start_soon(take, number)
                await trio.testing.wait_all_tasks_blocked()
            assert order == []
            budget.release(large, 10)
            assert order == [0, 1, 2, 3, 4], "in this call"

    async def test_those_beyond_the_limit_wait_in_order(self) -> None:
        budget = InflightBudget(2, 1000)
        shares = [budget.share(str(number)) for number in range(5)]
        order: list[int] = []
        async with trio.open_nursery() as nursery:

            async def take(number: int) -> None:
                await budget.take(shares[number], 1)
                order.append(number)

            for number in range(5):
                nursery.start_soon(take, number)
                await trio.testing.wait_all_tasks_blocked()
            assert order == [0, 1]
            assert budget.statistics().waiting == 3
            for taken in (3, 4, 5):
                budget.release(shares[taken - 3], 1)
                await trio.testing.wait_all_tasks_blocked()
                assert len(order) == taken
        assert order == [0, 1, 2, 3, 4]
        assert budget.statistics().requests == 2

    async def test_bytes_are_bounded_too(self) -> None:
        budget = InflightBudget(100, 10)
        one, two = budget.share("one"), budget.share("two")
        assert budget.take_nowait(one, 8)
        assert not budget.take_nowait(two, 3)
        one.release(8)
        assert budget.take_nowait(two, 3)

    async def test_nobody_slips_in_before_those_who_wait(self) -> None:
        budget = InflightBudget(100, 10)
        one, two, three = budget.share("one"), budget.share("two"), budget.share("three")
        assert budget.take_nowait(one, 8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(budget.take, two, 9)
            await trio.testing.wait_all_tasks_blocked()
            assert not budget.take_nowait(three, 1), "a small request must not starve a large one"
            one.release(8)

    async def test_one_larger_than_the_limit_goes_alone(self) -> None:
        budget = InflightBudget(100, 10)
        one, two = budget.share("one"), budget.share("two")
        assert budget.take_nowait(one, 50)
        assert not budget.take_nowait(two, 2)
        one.release(50)
        assert budget.take_nowait(two, 2)

    async def test_giving_up_lets_the_next_one_in(self) -> None:
        budget = InflightBudget(100, 10)
        one, two, three = budget.share("one"), budget.share("two"), budget.share("three")
        assert budget.take_nowait(one, 6)
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            assert not await waiting.start("large", lambda: budget.take(two, 10))
            assert not await waiting.start("small", lambda: budget.take(three, 4))
            waiting.scopes["large"].cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.done == ["small"]
        assert budget.statistics().bytes == 10
        assert budget.statistics().waiting == 0


class TestSharesOfModels:
    async def test_a_model_may_have_no_more_in_flight_than_is_left_for_others(self) -> None:
        budget = InflightBudget(16, 1 << 20)
        shares = [budget.share(f"hung{number}") for number in range(4)]
        taken: list[int] = []
        for share in shares:
            count = 0
            while not budget.full(share):
                assert budget.take_nowait(share, 0)
                count += 1
            with pytest.raises(UnavailableError, match=f"model '{share.name}' has too many requests in flight: "):
                budget.take_nowait(share, 0)
            taken.append(count)
        assert taken == [8, 4, 2, 1]
        assert budget.take_nowait(budget.share("simple"), 0), "any number of hung models leaves room for the next"

    async def test_its_bytes_are_bounded_in_the_same_way(self) -> None:
        budget = InflightBudget(1000, 64)
        hung, simple = budget.share("hung"), budget.share("simple")
        for _ in range(4):
            assert budget.take_nowait(hung, 8)
        with pytest.raises(UnavailableError, match="4 requests, 32 bytes; try again later"):
            budget.take_nowait(hung, 8)
        assert budget.take_nowait(simple, 8)

    async def test_what_has_nothing_in_flight_may_take_what_fits(self) -> None:
        budget = InflightBudget(1000, 64)
        assert budget.take_nowait(budget.share("m"), 60)

    async def test_who_waits_for_its_models_share_holds_up_nobody_else(self) -> None:
        budget = InflightBudget(4, 1000)
        hung, simple = budget.share("hung"), budget.share("simple")
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            assert await waiting.start("1", lambda: budget.take(hung, 1))
            assert await waiting.start("2", lambda: budget.take(hung, 1))
            assert not await waiting.start("3", lambda: budget.take(hung, 1))
            assert budget.take_nowait(simple, 1)
            simple.release(1)
            hung.release(1)
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.done == ["1", "2", "3"]

    async def test_what_a_model_asks_counts_and_is_never_refused(self) -> None:
        budget = InflightBudget(1, 10)
        share = budget.share("m")
        for _ in range(3):
            budget.take_anyway(share, 10)
        assert budget.statistics().requests == 3
        assert budget.full(share)


class TestLeases:
    """With a budget of 256 bytes, 32 of which are the reserve."""

    async def test_bodies_that_arrive_never_exceed_the_budget(self) -> None:
        budget = InflightBudget(1000, 256)
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            leases = [budget.lease(budget.share(str(number))) for number in range(40)]
            for number, lease in enumerate(leases):
                await waiting.start(str(number), lambda lease=lease: lease.grow(64))
            assert waiting.done == ["0", "1", "2"]
            assert budget.statistics().bytes == 192
            for number, lease in enumerate(leases):
                lease.close()
                await trio.testing.wait_all_tasks_blocked()
                assert waiting.done == [str(each) for each in range(min(40, number + 4))]
        assert budget.statistics().bytes == 0

    async def test_they_leave_the_reserve_to_small_requests(self) -> None:
        budget = InflightBudget(1000, 256)
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            assert await waiting.start("all", lambda: budget.lease().grow(224))
            assert not await waiting.start("more", lambda: budget.lease().grow(1))
            for number in range(4):
                assert budget.take_nowait(budget.share(str(number)), 8)
            assert not budget.take_nowait(budget.share("5"), 8)
            nursery.cancel_scope.cancel()

    async def test_one_that_grows_goes_before_one_that_has_nothing(self) -> None:
        budget = InflightBudget(1000, 256)
        first, second, third, fourth = (budget.lease() for _ in range(4))
        assert first.grow_nowait(100)
        assert second.grow_nowait(60)
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            assert third.grow_nowait(64)
            assert not await waiting.start("fourth", lambda: fourth.grow(32))
            assert await waiting.start("third", lambda: third.grow(40)), "one may overdraw"
            assert not await waiting.start("second", lambda: second.grow(40)), "and no more than one"
            assert third.grow_nowait(10), "until it ends"
            assert budget.statistics().bytes == 274
            third.close()
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.done == ["third", "second"]
            first.close()
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.done == ["third", "second", "fourth"]

    async def test_the_one_that_may_overdraw_does_not_wait_for_its_model(self) -> None:
        """The lease that may overdraw the model's share waits for it."""
        budget = InflightBudget(1000, 256)
        share = budget.share("m")
        of_all, of_model = budget.lease(share), budget.lease(share)
        early, other, late = (budget.lease() for _ in range(3))
        for lease, nbytes in ((of_all, 40), (early, 150), (other, 20), (of_all, 30)):
            assert lease.grow_nowait(nbytes)
        assert budget.statistics().bytes == 240
        early.close()
        for lease, nbytes in ((of_model, 10), (of_model, 40), (late, 80)):
            assert lease.grow_nowait(nbytes)
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            assert not await waiting.start("of_model", lambda: of_model.grow(10))
            assert not await waiting.start("other", lambda: other.grow(10))
            assert await waiting.start("of_all", lambda: of_all.grow(10))
            of_all.close()
            await trio.testing.wait_all_tasks_blocked()
            assert set(waiting.done) == {"of_all", "of_model", "other"}

    async def test_a_lease_larger_than_the_limit_goes_alone(self) -> None:
        budget = InflightBudget(1000, 256)
        small, large = budget.lease(), budget.lease()
        assert small.grow_nowait(1)
        assert not large.grow_nowait(1000)
        small.close()
        assert large.grow_nowait(1000)

    async def test_a_cancelled_grower_has_taken_nothing(self) -> None:
        budget = InflightBudget(1000, 256)
        first, second, third = (budget.lease() for _ in range(3))
        assert first.grow_nowait(200)
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            assert not await waiting.start("second", lambda: second.grow(100))
            assert not await waiting.start("third", lambda: third.grow(20))
            waiting.scopes["second"].cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.done == ["third"]
            second.close()
        assert budget.statistics().bytes == 220
        assert budget.statistics().leases == 2

    async def test_closing_twice_gives_back_once(self) -> None:
        budget = InflightBudget(1000, 256)
        lease = budget.lease()
        assert lease.grow_nowait(10)
        lease.close()
        lease.close()
        assert budget.statistics().bytes == budget.statistics().leases == 0

    async def test_large_bodies_of_a_model_wait_for_its_share_and_hold_nothing(self) -> None:
        budget = InflightBudget(1000, 256)
        hung, simple = budget.share("hung"), budget.share("simple")
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            for number in range(4):
                await waiting.start(f"hung {number}", lambda: budget.lease(hung).grow(50))
            assert waiting.done == ["hung 0", "hung 1"]
            assert await waiting.start("simple", lambda: budget.lease(simple).grow(50))
            nursery.cancel_scope.cancel()

    async def test_of_the_growing_bodies_of_a_model_one_goes_beyond_its_share(self) -> None:
        budget = InflightBudget(1000, 256)
        hung, simple = budget.share("hung"), budget.share("simple")
        leases = [budget.lease(hung) for _ in range(4)]
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            for number, lease in enumerate(leases):
                assert await waiting.start(f"begin {number}", lambda lease=lease: lease.grow(25))
            assert await waiting.start("go on 0", lambda: leases[0].grow(40))
            assert not await waiting.start("go on 1", lambda: leases[1].grow(40))
            assert await waiting.start("simple", lambda: budget.lease(simple).grow(50))
            leases[0].close()
            await trio.testing.wait_all_tasks_blocked()
            assert "go on 1" in waiting.done
            nursery.cancel_scope.cancel()


class TestSubmittedLeases:
    async def test_the_lease_is_the_requests_share(self) -> None:
        budget = InflightBudget(1000, 256)
        share = budget.share("m")
        lease = budget.lease()
        assert lease.grow_nowait(64)
        assert budget.admit_nowait(lease, share, 64)
        assert (budget.statistics().requests, budget.statistics().bytes) == (1, 64)
        assert (share.requests, share.lease_bytes) == (1, 64)
        lease.close()
        assert (budget.statistics().requests, budget.statistics().bytes) == (0, 0)
        assert (share.requests, share.lease_bytes) == (0, 0)

    async def test_it_grows_by_what_the_inputs_hold_beyond_it(self) -> None:
        budget = InflightBudget(1000, 256)
        lease = budget.lease()
        assert lease.grow_nowait(10)
        assert budget.admit_nowait(lease, budget.share("m"), 30)
        assert budget.statistics().bytes == 30

    async def test_one_that_did_not_know_its_model_is_refused_beyond_the_models_share(self) -> None:
        budget = InflightBudget(1000, 256)
        hung, simple = budget.share("hung"), budget.share("simple")
        leases = [budget.lease() for _ in range(3)]
        assert all(lease.grow_nowait(70) for lease in leases)
        assert budget.admit_nowait(leases[0], hung, 70)
        with pytest.raises(
            UnavailableError, match="model 'hung' has too many requests in flight: 1 requests, 70 bytes"
        ):
            budget.admit_nowait(leases[1], hung, 70)
        leases[1].close()
        assert budget.admit_nowait(leases[2], simple, 70)

    async def test_it_waits_for_a_place_before_requests_that_hold_nothing(self) -> None:
        budget = InflightBudget(1, 256)
        one, two, three = budget.share("one"), budget.share("two"), budget.share("three")
        assert budget.take_nowait(one, 1)
        lease = budget.lease()
        assert lease.grow_nowait(10)
        async with trio.open_nursery() as nursery:
            waiting = Waiting(nursery)
            assert not await waiting.start("plain", lambda: budget.take(two, 1))
            assert not await waiting.start("lease", lambda: budget.admit(lease, three, 10))
            one.release(1)
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.done == ["lease"]
            lease.close()
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.done == ["lease", "plain"]

    async def test_it_follows_its_model_to_the_version_that_replaced_it(self) -> None:
        budget = InflightBudget(1000, 256)
        before, after = budget.share("m"), budget.share("m")
        lease = budget.lease(before)
        assert lease.grow_nowait(64)
        assert budget.admit_nowait(lease, after, 64)
        assert (before.lease_bytes, after.lease_bytes) == (0, 64)
        lease.close()
        assert after.requests == after.lease_bytes == 0


class World:
    """A budget, and what is held of it, counted a second time."""

    def __init__(self, nursery: trio.Nursery, limits: tuple[int, int]) -> None:
        self.budget = InflightBudget(*limits)
        self.shares = [self.budget.share(name) for name in "abc"]
        self.nursery = nursery
        self.plain: list[tuple[ModelShare, int]] = []
        self.leases: list[Lease] = []
        self.begun_with: dict[Lease, int] = {}
        self.busy: dict[Lease, trio.CancelScope] = {}
        self.asking: list[trio.CancelScope] = []

    def do(self, what: str, pick: int, nbytes: int) -> None:
        share = self.shares[pick % 3]
        idle = [lease for lease in self.leases if lease not in self.busy]
        open_leases = [lease for lease in idle if not lease.admitted]
        if what == "plain":
            self.nursery.start_soon(self._take, share, nbytes)
        elif what == "now":
            try:
                if self.budget.take_nowait(share, nbytes):
                    self.plain.append((share, nbytes))
            except UnavailableError:
                assert self.budget.full(share, nbytes)
        elif what == "lease":
            self.leases.append(self.budget.lease(share if pick % 4 else None))
        elif what == "grow" and open_leases:
            self.nursery.start_soon(self._use, open_leases[pick % len(open_leases)], None, nbytes)
        elif what == "admit" and open_leases:
            self.nursery.start_soon(self._use, open_leases[pick % len(open_leases)], share, nbytes)
        elif what == "answer" and self.plain:
            held, size = self.plain.pop(pick % len(self.plain))
            held.release(size)
        elif what == "close" and idle:
            self._close(idle[pick % len(idle)])
        elif what == "cancel" and self.busy:
            list(self.busy.values())[pick % len(self.busy)].cancel()
        elif what == "give up" and self.asking:
            self.asking[pick % len(self.asking)].cancel()

    async def _take(self, share: ModelShare, nbytes: int) -> None:
        with trio.CancelScope() as scope:
            self.asking.append(scope)
            await self.budget.take(share, nbytes)
            self.plain.append((share, nbytes))
        self.asking.remove(scope)

    async def _use(self, lease: Lease, share: ModelShare | None, nbytes: int) -> None:
        before = lease.nbytes
        with trio.CancelScope() as self.busy[lease]:
            if share is None:
                await lease.grow(nbytes)
                assert lease.nbytes == before + nbytes
                if not before:
                    self.begun_with[lease] = nbytes
            else:
                try:
                    await self.budget.admit(lease, share, nbytes)
                    assert lease.admitted
                except UnavailableError:
                    assert lease.nbytes == before
        scope = self.busy.pop(lease)
        if scope.cancelled_caught:
            assert not lease.admitted
            assert share is not None or lease.nbytes == before

    def _close(self, lease: Lease) -> None:
        self.leases.remove(lease)
        lease.close()

    def check(self) -> None:
        budget, counted = self.budget, self.budget.statistics()
        assert counted.requests == len(self.plain) + sum(lease.admitted for lease in self.leases)
        assert counted.bytes == sum(size for _, size in self.plain) + sum(lease.nbytes for lease in self.leases)
        assert counted.leases == len(self.leases)
        assert counted.waiting == len(self.busy) + len(self.asking)
        assert counted.requests <= budget.request_limit
        # One lease may overdraw, and one request may be larger than everything.
        leases = sorted(lease.nbytes for lease in self.leases)
        plain = sorted(size for _, size in self.plain)
        assert sum(leases[:-1]) + sum(plain[:-1]) <= budget.byte_limit
        # So what is beyond the limit is what one lease has taken after its body, and one plain request; and beside a
        # body that leaves less than the reserve, plain requests have that.
        bodies = {lease: self.begun_with.get(lease, 0) for lease in self.leases}
        growth = max((lease.nbytes - body for lease, body in bodies.items()), default=0)
        within = max(budget.byte_limit, max(bodies.values(), default=0) + budget.reserve_bytes)
        assert counted.bytes <= within + growth + max(plain, default=0)

    def end_what_can_end(self) -> None:
        for share, size in self.plain:
            share.release(size)
        self.plain = []
        for lease in [lease for lease in self.leases if lease not in self.busy]:
            self._close(lease)


STEPS = st.sampled_from(["plain", "now", "lease", "grow", "grow", "admit", "answer", "close", "cancel", "give up"])
ACTIONS = st.lists(st.tuples(STEPS, st.integers(0, 11), st.integers(0, 60)), max_size=60)


@given(ACTIONS, st.integers(1, 6), st.integers(1, 100))
def test_nothing_is_lost_and_whoever_waits_gets_on(
    actions: list[tuple[str, int, int]], request_limit: int, byte_limit: int
) -> None:
    async def play() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery, (request_limit, byte_limit))
            for action in actions:
                world.do(*action)
                await trio.testing.wait_all_tasks_blocked()
                world.check()
            for _ in range(2 * len(actions)):
                world.end_what_can_end()
                await trio.testing.wait_all_tasks_blocked()
                world.check()
            counted = world.budget.statistics()
            assert (counted.requests, counted.bytes, counted.waiting, counted.leases) == (0, 0, 0, 0)

    trio.run(play)
