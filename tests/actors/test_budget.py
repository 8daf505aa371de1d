"""The server-wide budget: never over its bounds, first come first served, nothing lost on cancellation."""

from __future__ import annotations

import trio
import trio.testing

from trireme.actors.budget import InflightBudget


async def test_requests_beyond_the_limit_wait_in_order() -> None:
    budget = InflightBudget(2, 1000)
    order: list[int] = []
    async with trio.open_nursery() as nursery:

        async def take(number: int) -> None:
            await budget.acquire(1)
            order.append(number)

        for number in range(5):
            nursery.start_soon(take, number)
            await trio.testing.wait_all_tasks_blocked()
        assert order == [0, 1]
        assert budget.statistics().waiting == 3
        for taken in (3, 4, 5):
            budget.release(1)
            await trio.testing.wait_all_tasks_blocked()
            assert len(order) == taken
    assert order == [0, 1, 2, 3, 4]
    assert budget.statistics().requests == 2


async def test_bytes_are_bounded_too() -> None:
    budget = InflightBudget(100, 10)
    assert budget.acquire_nowait(8)
    assert not budget.acquire_nowait(3)
    budget.release(8)
    assert budget.acquire_nowait(3)


async def test_nobody_slips_in_before_those_who_wait() -> None:
    budget = InflightBudget(100, 10)
    assert budget.acquire_nowait(8)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.acquire, 9)
        await trio.testing.wait_all_tasks_blocked()
        assert not budget.acquire_nowait(1), "a small request must not starve a large one"
        budget.release(8)


async def test_a_request_larger_than_the_limit_goes_alone() -> None:
    budget = InflightBudget(100, 10)
    assert budget.acquire_nowait(50)
    assert not budget.acquire_nowait(1)
    budget.release(50)
    assert budget.acquire_nowait(1)


async def test_giving_up_lets_the_next_one_in() -> None:
    budget = InflightBudget(100, 10)
    assert budget.acquire_nowait(6)
    admitted = trio.Event()
    async with trio.open_nursery() as nursery:
        large = trio.CancelScope()

        async def take_large() -> None:
            with large:
                await budget.acquire(10)

        async def take_small() -> None:
            await budget.acquire(4)
            admitted.set()

        nursery.start_soon(take_large)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take_small)
        await trio.testing.wait_all_tasks_blocked()
        assert not admitted.is_set()
        large.cancel()
        await admitted.wait()
    assert budget.statistics().bytes == 10
    assert budget.statistics().waiting == 0
