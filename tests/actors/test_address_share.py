"""What arrives from one address: no more than its share, whatever it announces, and without a deadlock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trireme.actors.budget import InflightBudget, Lease
from trireme.engine.admission.shares import part_of_bodies

BYTES = 256
SHARE = 112
"""Half of what leases may use of that."""


def budget_of(share: float = 0.5) -> InflightBudget:
    return InflightBudget(1000, BYTES, share)


class Growing:
    """Leases that may have to wait to grow, each in a task of its own."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.scopes: dict[Lease, trio.CancelScope] = {}
        self.done: list[Lease] = []

    async def grow(self, lease: Lease, nbytes: int) -> bool:
        """Begin to grow; whether it has what it wants already."""
        self._nursery.start_soon(self._run, lease, nbytes)
        await trio.testing.wait_all_tasks_blocked()
        return lease in self.done

    async def _run(self, lease: Lease, nbytes: int) -> None:
        with trio.CancelScope() as self.scopes[lease]:
            await lease.grow(nbytes)
            self.done.append(lease)


def leases_of(budget: InflightBudget, address: str, count: int) -> list[Lease]:
    return [budget.lease(client=address) for _ in range(count)]


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_one_address_waits_and_another_goes_on() -> None:
    budget = budget_of()
    first, second, third = leases_of(budget, "slow", 3)
    (other,) = leases_of(budget, "other", 1)
    async with trio.open_nursery() as nursery:
        growing = Growing(nursery)
        assert await growing.grow(first, 100)
        assert not await growing.grow(second, 20)
        assert not await growing.grow(third, 1), "in the order in which they came"
        assert await growing.grow(other, 100)
        first.arrived()
        await settled()
        assert set(growing.done) == {first, other, second, third}
        assert budget.statistics().bytes == 221


async def test_what_has_arrived_is_the_servers_to_wait_for() -> None:
    """It keeps what it has, and what it expands to does not count in the share."""
    budget = budget_of()
    first, second = leases_of(budget, "a", 2)
    assert first.grow_nowait(100)
    first.arrived()
    first.arrived()
    assert first.grow_nowait(20)
    assert second.grow_nowait(100)
    assert budget.statistics().bytes == 220


async def test_closing_makes_room() -> None:
    budget = budget_of()
    first, second = leases_of(budget, "a", 2)
    async with trio.open_nursery() as nursery:
        growing = Growing(nursery)
        assert await growing.grow(first, 100)
        assert not await growing.grow(second, 100)
        first.close()
        await settled()
        assert growing.done == [first, second]


async def test_a_body_larger_than_the_share_goes_when_no_other_of_its_address_arrives() -> None:
    budget = budget_of()
    large, small = leases_of(budget, "a", 2)
    async with trio.open_nursery() as nursery:
        growing = Growing(nursery)
        assert await growing.grow(small, 1)
        assert not await growing.grow(large, 200)
        small.arrived()
        await settled()
        assert growing.done == [small, large]


@pytest.mark.parametrize("watched", ["before", "after"])
async def test_it_has_to_hurry_when_others_wait(watched: str) -> None:
    budget = budget_of()
    (large,) = leases_of(budget, "a", 1)
    (other,) = leases_of(budget, "b", 1)
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        growing = Growing(nursery)
        assert large.grow_nowait(200)
        if watched == "before":
            large.watch(lambda: told.append("hurry"))
            assert not told
        assert not await growing.grow(other, 100)
        if watched == "after":
            large.watch(lambda: told.append("hurry"))
        assert told == ["hurry"]
        large.close()


async def test_what_is_within_its_share_need_not_hurry() -> None:
    budget = budget_of()
    (first,), (second,), (third,) = (leases_of(budget, address, 1) for address in "abc")
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        growing = Growing(nursery)
        for lease in (first, second):
            assert await growing.grow(lease, SHARE)
            lease.watch(lambda: told.append("hurry"))
        assert not await growing.grow(third, SHARE)
        assert not told
        nursery.cancel_scope.cancel()


async def test_of_those_that_grow_one_at_a_time_may_exceed_the_share() -> None:
    """So that bodies of unknown length never wait for each other."""
    budget = budget_of()
    first, second = leases_of(budget, "a", 2)
    async with trio.open_nursery() as nursery:
        growing = Growing(nursery)
        assert first.grow_nowait(56)
        assert second.grow_nowait(56)
        assert first.grow_nowait(10)
        assert not await growing.grow(second, 10)
        assert first.grow_nowait(10)
        first.close()
        await settled()
        assert growing.done == [second]
        assert budget.statistics().bytes == 66


async def test_who_gives_up_leaves_nothing_behind() -> None:
    """While it waits for its address, and while it waits for the budget."""
    budget = budget_of()
    first, second, third = leases_of(budget, "a", 3)
    (other,) = leases_of(budget, "b", 1)
    (full,) = leases_of(budget, "", 1)
    async with trio.open_nursery() as nursery:
        growing = Growing(nursery)
        assert full.grow_nowait(120)
        assert await growing.grow(first, 100)
        assert not await growing.grow(second, 100)
        assert not await growing.grow(other, 100), "its address has room, the budget has none"
        for lease in (second, other):
            growing.scopes[lease].cancel()
        await settled()
        assert await growing.grow(third, 4)
    for lease in (first, second, third, other, full):
        lease.close()
    assert budget.statistics().bytes == budget.statistics().leases == 0
    assert not budget._addresses.by_address
    assert not budget._addresses.oversized


def test_which_part_an_address_has() -> None:
    """A quarter of what bodies may have by default, as one model's may have half."""
    assert part_of_bodies(0.5) == 0.25
    assert part_of_bodies(1.0) == 1.0


async def test_a_share_of_all_is_none() -> None:
    for budget, address in ((budget_of(1.0), "a"), (budget_of(), "")):
        first, second = leases_of(budget, address, 2)
        assert first.grow_nowait(112)
        assert second.grow_nowait(112)


Step = tuple[int, str, int]


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from("gac"), st.integers(1, 120)), max_size=60))
def test_each_lease_gets_what_it_waits_for_in_the_end(steps: list[Step]) -> None:
    """Whatever grows, arrives and ends: those within their shares never wait for their address, and when each that has
    what it wants ends, no lease is left waiting."""

    async def play() -> None:
        budget = budget_of()
        leases = [budget.lease(client=str(number % 3)) for number in range(9)]
        waiting: set[Lease] = set()
        over: set[Lease] = set()

        async def grow(lease: Lease, nbytes: int) -> None:
            await lease.grow(nbytes)
            waiting.discard(lease)

        act: dict[str, Callable[[Lease], None]] = {"a": Lease.arrived, "c": Lease.close}
        async with trio.open_nursery() as nursery:
            for number, what, nbytes in steps:
                lease = leases[number]
                if lease in waiting or lease in over:
                    continue
                if what == "g":
                    waiting.add(lease)
                    nursery.start_soon(grow, lease, nbytes)
                else:
                    act[what](lease)
                    over |= {lease} if what == "c" else set()
                await settled()
            while len(over) < len(leases):
                ready = [lease for lease in leases if lease not in waiting and lease not in over]
                assert ready, "a deadlock"
                for lease in ready:
                    lease.close()
                    over.add(lease)
                await settled()
        assert budget.statistics().bytes == 0
        assert not budget._addresses.by_address
        assert not budget._addresses.oversized

    trio.run(play)


async def test_the_lease_that_may_exceed_the_budget_does_not_wait_for_its_address() -> None:
    """That is what all others wait for, the one that may exceed the share of the address among them."""
    budget = budget_of()
    overdrawn, oversized = leases_of(budget, "a", 2)
    (other,), (last,), (late,) = (leases_of(budget, address, 1) for address in "bcd")
    for lease, nbytes in ((overdrawn, 40), (oversized, 40), (other, 112), (last, 20), (overdrawn, 30)):
        assert lease.grow_nowait(nbytes)
    assert budget.statistics().bytes > BYTES - budget.reserve_bytes
    other.close()
    assert oversized.grow_nowait(50)
    assert late.grow_nowait(40)
    async with trio.open_nursery() as nursery:
        growing = Growing(nursery)
        assert not await growing.grow(oversized, 20)
        assert not await growing.grow(last, 20)
        assert not await growing.grow(late, 20)
        assert await growing.grow(overdrawn, 10)
        overdrawn.close()
        await settled()
        assert oversized in growing.done
        nursery.cancel_scope.cancel()
