"""A large request that waits twice, for bytes of the budget and then for a place as a request in flight."""

from __future__ import annotations

import trio
import trio.testing

from trireme.actors.budget import InflightBudget


class Crowded:
    """A budget of one request and 256 bytes, of which bodies may have 224. Another request has the place, another body
    the bytes, and one that needs 100 waits for both."""

    def __init__(self) -> None:
        self.budget = InflightBudget(1, 256)
        self.place, share = self.budget.share("place"), self.budget.share("m")
        assert self.budget.take_nowait(self.place, 1)
        self.body, self.lease = self.budget.lease(), self.budget.lease(share)
        assert self.body.grow_nowait(200)
        self.share = share
        self.admitted = False

    async def admit(self) -> None:
        def then(waited: bool) -> bool:
            self.admitted = True
            return waited

        assert await self.budget.admit(self.lease, self.share, 100, then)


async def test_a_place_that_is_given_back_before_its_task_goes_on_is_not_missed() -> None:
    crowded = Crowded()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowded.admit)
        await trio.testing.wait_all_tasks_blocked()
        crowded.body.close()
        assert (crowded.lease.nbytes, crowded.admitted) == (100, False)
        crowded.place.release(1)
        assert crowded.admitted, "in this call"
    assert crowded.lease.admitted
    crowded.lease.close()
    assert crowded.budget.statistics().requests == 0


async def test_who_gives_up_the_second_wait_stands_in_no_line() -> None:
    crowded = Crowded()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowded.admit)
        await trio.testing.wait_all_tasks_blocked()
        crowded.body.close()
        assert crowded.budget.statistics().waiting == 1
        nursery.cancel_scope.cancel()
    assert crowded.budget.statistics().waiting == 0
    crowded.lease.close()
    crowded.place.release(1)
    assert not crowded.admitted
    assert crowded.budget.statistics().bytes == 0
