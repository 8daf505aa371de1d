"""A front end's leases (`actors.budget.Lease`). The budget is the engine's, where each has its counterpart: so bodies
that still arrive count there, whichever front end receives them.

Rules:
 1. A lease that grows waits for the engine: nothing is granted at once.
 2. The engine hears of a lease when it grows for the first time, and that it is over unless a request has taken it
    along: the engine ends that one itself, with the request.
 3. What is granted to a lease that is over is given back by its end.
 4. The engine hears of `MOST_TOLD` leases at a time; those that grow for the first time meanwhile wait here, in order.
    The engine takes many more for a sign that the front end is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import outcome

from ..actors.budget import InflightBudget, Lease
from ..engine.admission.budget import LeaseCore, Waiter
from ..engine.admission.shares import ModelShare
from .kinds import ARRIVED, CLOSE, GROW
from .link import LinkHead
from .values import read_integer, write_text

MOST_TOLD = 32_768


class _Counterpart:
    """The engine's end of a lease; for `LeaseCore.address`, too, which it tells that the body has come.

    Attributes:
        oversized: the lease, if others wait for what it holds.
        told: the engine knows of it.
        moved: a request has taken it along.
    """

    __slots__ = ("_tell", "moved", "number", "oversized", "told", "waiter", "whose")

    def __init__(self, number: int, whose: tuple[str, int, str], tell: Callable[[LinkHead], None]) -> None:
        self.number = number
        self.whose = whose
        self.told = False
        self.moved = False
        self.waiter: Waiter | None = None
        self.oversized: LeaseCore | None = None
        self._tell = tell

    def leave(self, _lease: LeaseCore) -> None:
        """See `AddressShare.leave`."""
        if self.told:
            self._tell((ARRIVED, self.number))


class RemoteBudget(InflightBudget):
    """The engine's budget, as far as leases know one.

    Args:
        tell: sends a message, later if there is no room.
    """

    def __init__(self, tell: Callable[[LinkHead], None]) -> None:
        super().__init__(1, 1)
        self._tell = tell
        self._counterparts: dict[LeaseCore, _Counterpart] = {}
        self._by_number: dict[int, Lease] = {}
        self._untold: dict[_Counterpart, int] = {}  # how much they are to grow (rule 4)
        self._told = 0
        self._last = 0

    def lease_for(self, name: str, version: int, client: str) -> Lease:
        """See `InferenceServer.lease`."""
        self._last += 1
        ours = _Counterpart(self._last, (name, version, client), self._tell)
        address: Any = ours
        lease = Lease(self, None, address)
        self._counterparts[lease] = ours
        self._by_number[ours.number] = lease
        return lease

    def number_of(self, lease: Lease | None) -> int:
        """What the engine knows a lease by; 0 if it does not."""
        ours = None if lease is None else self._counterparts.get(lease)
        return 0 if ours is None or not ours.told else ours.number

    def move(self, lease: Lease) -> None:
        """A request has taken the lease along (rule 2)."""
        lease.admitted = True
        ours = self._counterparts.get(lease)
        if ours is not None:
            ours.moved = True

    @property
    def wanted(self) -> bool:
        """That others wait is said of a lease (`_Counterpart.oversized`)."""
        return True

    def is_overdrawn(self, lease: LeaseCore) -> bool:
        """The engine knows."""
        return False

    # See `BudgetCore`.

    def grow_nowait(self, lease: LeaseCore, nbytes: int) -> bool:
        return nbytes <= 0

    def grow_later(self, lease: LeaseCore, nbytes: int, then: Callable[[bool], Any]) -> Waiter:
        ours = self._counterparts[lease]
        share: ModelShare | None = None
        waiter = ours.waiter = Waiter(share, nbytes, lease, then)

        def give_up() -> None:
            ours.waiter = None

        waiter.give_up = give_up
        if ours.told:
            self._tell((GROW, ours.number, nbytes))
        elif self._told < MOST_TOLD:
            self._introduce(ours, nbytes)
        else:
            self._untold[ours] = nbytes
        return waiter

    def _introduce(self, ours: _Counterpart, nbytes: int) -> None:
        name, version, client = ours.whose
        ours.told = True
        self._told += 1
        self._tell((GROW, ours.number, nbytes, write_text(name), version, write_text(client)))

    def end(self, lease: LeaseCore) -> None:
        ours = self._counterparts.pop(lease)
        del self._by_number[ours.number]
        lease.nbytes = 0
        self._untold.pop(ours, None)
        if not ours.told:
            return
        self._told -= 1
        if not ours.moved:
            self._tell((CLOSE, ours.number))
        if self._untold:
            waiting = next(iter(self._untold))
            self._introduce(waiting, self._untold.pop(waiting))

    # What the engine says; of leases that are over, nothing matters.

    def granted(self, number: Any, nbytes: Any) -> None:
        """A lease has grown."""
        lease = self._by_number.get(read_integer(number))
        if lease is None:
            return
        lease.nbytes += read_integer(nbytes)
        ours = self._counterparts[lease]
        waiter, ours.waiter = ours.waiter, None
        if waiter is not None:
            waiter.wake(outcome.capture(waiter.then, True))

    def others_wait(self, number: Any) -> None:
        """Others wait for what a lease holds (`Lease.watch`)."""
        lease = self._by_number.get(read_integer(number))
        if lease is not None:
            self._counterparts[lease].oversized = lease
            lease.want()
