"""What each model, and each client's address, holds of the server-wide budget (`budget` has its rules).

An address may hold a part of what still arrives, so that slow senders cannot hold all. What counts is what a lease has
taken while its body arrives. A body that is complete waits for the server, and not for its client, so it counts no
more.

Rules:
 1. A lease that begins, of an address of which other bodies arrive, gets its bytes when the address then holds no more
    than `limit_bytes`. Those of one address wait in the order in which they came, before they wait for the budget.
 2. A lease that has begun never waits for others that have: one of an address at a time, its *oversized* one, may go
    beyond the limit. So may one that begins when no other body of the address arrives: a body can be larger than the
    limit.
 3. Nor does one wait that may overdraw the budget (`budget`, rules 4 and 5): all others may be waiting for it.
 4. An oversized lease is told when others wait for the budget (`Lease.watch`): its body has `HURRY_S` from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import RefusalReason, UnavailableError

HURRY_S = 30.0


def part_of_bodies(address_share: float) -> float:
    """Which part of what leases may use is for one address: its share of what one model's leases may hold, which is
    half. So it cannot hold all of a model's either. If the share is all, all.

    Args:
        address_share: see `ServerOptions`.
    """
    return address_share / 2 if address_share < 1 else 1.0


@dataclass(slots=True, eq=False, repr=False)
class ModelShare:
    """What one model has in flight. The budget alone changes it.

    Attributes:
        give_back: takes the share, and the bytes of a plain request that has its final answer.
        lease_bytes: of its leases, those included that still grow.
        overdrawn: the one of its leases that rule 4 lets pass.
    """

    name: str
    give_back: Callable[[ModelShare, int], None]
    requests: int = 0
    plain_bytes: int = 0
    lease_bytes: int = 0
    overdrawn: object = None

    def release(self, nbytes: int, /) -> None:
        """A plain request of `nbytes` has its final answer."""
        self.give_back(self, nbytes)

    def refusal(self) -> UnavailableError:
        """What a request is told that rule 5 refuses."""
        return UnavailableError(
            f"model '{self.name}' has too many requests in flight: {self.requests} requests, "
            f"{self.plain_bytes + self.lease_bytes} bytes; try again later",
            refusal=RefusalReason.MODEL_SHARE,
        )


class Arriving(Protocol):
    """A lease, as the share of its address sees it (`budget.LeaseCore`)."""

    arriving_bytes: int

    @property
    def overdraws(self) -> bool:
        """Whether it is the one that may overdraw the budget, or its model's share."""
        ...

    def want(self) -> None:
        """Others wait."""


_Waiting = tuple[Arriving, int, Callable[[], None]]


@dataclass(slots=True, eq=False)
class AddressShares:
    """The shares of all addresses of which something arrives.

    Attributes:
        limit_bytes: of each; None if there is to be none.
        oversized: leases beyond the limits of their addresses.
    """

    limit_bytes: int | None
    oversized: dict[Arriving, None] = field(default_factory=dict, init=False)
    by_address: dict[str, AddressShare] = field(default_factory=dict, init=False)

    def join(self, address: str) -> AddressShare | None:
        """The share that a new lease belongs to; None if it belongs to none."""
        if self.limit_bytes is None or not address:
            return None
        share = self.by_address.get(address)
        if share is None:
            share = self.by_address[address] = AddressShare(self, address, self.limit_bytes)
        share.leases += 1
        return share

    def want(self) -> None:
        """A request waits for the budget (rule 4)."""
        for lease in list(self.oversized):
            lease.want()


class AddressShare:
    """What arrives from one address: how many leases there are, how many bytes they have taken, and which one is the
    oversized one (rule 2)."""

    __slots__ = ("_address", "_growing", "_limit_bytes", "_shares", "_starting", "leases", "nbytes", "oversized")

    def __init__(self, shares: AddressShares, address: str, limit_bytes: int) -> None:
        self._shares = shares
        self._address = address
        self._limit_bytes = limit_bytes
        self._growing: deque[_Waiting] = deque()
        self._starting: deque[_Waiting] = deque()
        self.leases = 0
        self.nbytes = 0
        self.oversized: Arriving | None = None

    def take_nowait(self, lease: Arriving, nbytes: int) -> bool:
        """Let a lease have so many bytes more of the share, if it may and none waits that comes first."""
        if lease.arriving_bytes:
            first = not self._growing or lease is self.oversized or lease.overdraws
        else:
            first = not (self._growing or self._starting)
        if not (first and self._may(lease, nbytes)):
            return False
        self._grant(lease, nbytes)
        return True

    def wait(self, lease: Arriving, nbytes: int, go_on: Callable[[], None]) -> Callable[[], None]:
        """Wait for what `take_nowait` did not give; then `go_on` is called.

        Returns:
            What gives up waiting; it has taken nothing then.
        """
        queue = self._growing if lease.arriving_bytes else self._starting
        waiting = (lease, nbytes, go_on)
        queue.append(waiting)

        def give_up() -> None:
            queue.remove(waiting)
            self._serve()

        return give_up

    def give(self, lease: Arriving, nbytes: int) -> None:
        """A lease did not get so many bytes of the budget, after all."""
        self.nbytes -= nbytes
        lease.arriving_bytes -= nbytes
        if lease is self.oversized and self.nbytes <= self._limit_bytes:
            self._settle(lease)
        self._serve()

    def leave(self, lease: Arriving) -> None:
        """A lease's body is complete, or the lease is closed."""
        self.leases -= 1
        self.nbytes -= lease.arriving_bytes
        lease.arriving_bytes = 0
        if lease is self.oversized:
            self._settle(lease)
        self._serve()
        if not self.leases:
            self._shares.by_address.pop(self._address, None)  # what goes on may have done so already

    def _may(self, lease: Arriving, nbytes: int) -> bool:
        if self.nbytes + nbytes <= self._limit_bytes or self.nbytes == lease.arriving_bytes:
            return True
        return lease.arriving_bytes > 0 and (self.oversized is None or self.oversized is lease or lease.overdraws)

    def _grant(self, lease: Arriving, nbytes: int) -> None:
        self.nbytes += nbytes
        lease.arriving_bytes += nbytes
        if self.nbytes > self._limit_bytes and self.oversized is None:
            self.oversized = lease
            self._shares.oversized[lease] = None

    def _settle(self, lease: Arriving) -> None:
        self.oversized = None
        self._shares.oversized.pop(lease, None)

    def _serve(self) -> None:
        while queue := self._growing or self._starting:
            lease, nbytes, go_on = queue[0]
            if not self._may(lease, nbytes):
                return
            queue.popleft()
            self._grant(lease, nbytes)
            go_on()
