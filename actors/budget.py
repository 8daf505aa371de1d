"""The server-wide budget, for tasks that wait for it (`engine.admission.budget` has the rules)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

from ..engine.admission.budget import BudgetCore, LeaseCore, Waiter
from ..engine.admission.shares import ModelShare

T = TypeVar("T")


class Lease(LeaseCore):
    """What one request holds from the first byte of its body until its final answer."""

    __slots__ = ()

    async def grow(self, nbytes: int, then: Callable[[bool], T] = bool) -> T:
        """Take more bytes, waiting for them if need be. Cancelled, it has taken nothing.

        Args:
            then: called as soon as they are there, with whether it waited; see `InflightBudget.take`.
        """
        if self.grow_nowait(nbytes):
            return then(False)
        return await _served(self.grow_later(nbytes, then))

    def grow_later(self, nbytes: int, then: Callable[[bool], object]) -> Waiter:
        """Wait, without a task, for what `grow_nowait` did not give."""
        return self._budget.grow_later(self, nbytes, then)


class InflightBudget(BudgetCore):
    """See `BudgetCore`.

    Attributes:
        spare_bytes: held beside the budget, for what is dropped as soon as a request waits; for their owner to set.
    """

    spare_bytes = 0

    @property
    def busy(self) -> bool:
        """Whether requests are in flight, or arrive."""
        statistics = self.statistics()
        return bool(statistics.requests or statistics.leases)

    def may_spare(self, nbytes: int) -> bool:
        """Whether so many spare bytes more may be taken: nothing waits, and all bytes are within the reserve."""
        statistics = self.statistics()
        return not statistics.waiting and statistics.bytes + self.spare_bytes + nbytes <= self.reserve_bytes

    def lease(self, share: ModelShare | None = None, client: str = "") -> Lease:
        """For one request that is about to arrive.

        Args:
            share: of the request's model; if it is not known, rule 5 is applied when the lease is admitted.
            client: the address that it arrives from, if that is to have no more than its share.
        """
        return Lease(self, share, self.begin(client))

    async def take(self, share: ModelShare, nbytes: int, then: Callable[[bool], T] = bool) -> T:
        """Admit a plain request, waiting for room if need be. Cancelled, it has taken nothing.

        Args:
            then: called as soon as there is room (rule 8), with whether it waited. What it returns or raises is the
                outcome of this call.
        """
        if not self.full(share, nbytes) and self.take_nowait(share, nbytes):
            return then(False)
        return await _served(self.take_later(share, nbytes, then))

    async def admit(self, lease: Lease, share: ModelShare, nbytes: int, then: Callable[[bool], T] = bool) -> T:
        """`admit_nowait`, waiting for room if need be.

        Args:
            then: as for `take`.

        Raises:
            UnavailableError: rule 5, if the lease learns its model only now.
        """
        self.name(lease, share)
        if not self.full(share) and self.admit_nowait(lease, share, nbytes):
            return then(False)

        def grown(waited: bool) -> T | Waiter:
            """It is large enough. If there is no place for it, it stands in line for one at once: one that is given
            back before this task goes on would otherwise be missed."""
            if self.full(share) or not self.admit_nowait(lease, share, 0):
                return self.admit_later(lease, share, then)
            return then(waited)

        result: Any = await lease.grow(max(0, nbytes - lease.nbytes), grown)
        return await _served(result) if isinstance(result, Waiter) else result


async def _served(waiter: Waiter) -> Any:
    """Wait until a waiter is served; what its `then` has come to. If that is a waiter, this goes on with that one."""
    task = trio.lowlevel.current_task()

    def wake(served: outcome.Outcome[Any]) -> None:
        nonlocal waiter
        if isinstance(served, outcome.Value) and isinstance(served.value, Waiter):
            waiter = served.value
            waiter.wake = wake
        else:
            trio.lowlevel.reschedule(task, served)

    def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
        waiter.give_up()
        return trio.lowlevel.Abort.SUCCEEDED

    waiter.wake = wake
    return await trio.lowlevel.wait_task_rescheduled(give_up)
