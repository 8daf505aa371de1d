"""What one model, and what one request, holds of the server-wide budget (`budget` has the rules)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..engine.errors import UnavailableError

if TYPE_CHECKING:
    from .address_share import AddressShare
    from .budget import InflightBudget

T = TypeVar("T")


class ModelShare:
    """What one model has in flight. The budget alone changes it.

    Attributes:
        name: of the model, for refusals.
        requests: in flight.
        plain_bytes: of its plain requests.
        lease_bytes: of its leases, those included that still grow.
        overdrawn: the one of its leases that rule 4 lets pass.
    """

    __slots__ = ("_budget", "lease_bytes", "name", "overdrawn", "plain_bytes", "requests")

    def __init__(self, budget: InflightBudget, name: str) -> None:
        self._budget = budget
        self.name = name
        self.requests = 0
        self.plain_bytes = 0
        self.lease_bytes = 0
        self.overdrawn: Lease | None = None

    def release(self, nbytes: int) -> None:
        """A plain request of `nbytes` has its final answer."""
        self._budget.release(self, nbytes)

    def refusal(self) -> UnavailableError:
        """What a request is told that rule 5 refuses."""
        return UnavailableError(
            f"model '{self.name}' has too many requests in flight: {self.requests} requests, "
            f"{self.plain_bytes + self.lease_bytes} bytes; try again later"
        )

    def __repr__(self) -> str:
        return f"<ModelShare of {self.name}: {self.requests} requests, {self.plain_bytes + self.lease_bytes} bytes>"


class Lease:
    """What one request holds from the first byte of its body until its final answer.

    One task at a time may wait in `grow`, and the lease must not be closed meanwhile.

    Attributes:
        nbytes: held now.
        arriving_bytes: what counts in the share of its client's address.
        share: of the request's model, once that is known.
        admitted: it is the share of a request in flight.
    """

    __slots__ = ("_address", "_budget", "_closed", "_on_wanted", "admitted", "arriving_bytes", "nbytes", "share")

    def __init__(self, budget: InflightBudget, share: ModelShare | None, address: AddressShare | None = None) -> None:
        self._budget = budget
        self._closed = False
        self._address = address
        self._on_wanted: Callable[[], None] | None = None
        self.arriving_bytes = 0
        self.share = share
        self.nbytes = 0
        self.admitted = False

    def grow_nowait(self, nbytes: int) -> bool:
        """Take more bytes for this request, if there is room and no request waits that comes first."""
        assert not self._closed, "a closed lease cannot grow"
        address = self._address
        if address is None:
            return self._budget.grow_nowait(self, nbytes)
        if not address.take_nowait(self, nbytes):
            return False
        if self._budget.grow_nowait(self, nbytes):
            return True
        address.give(self, nbytes)
        return False

    async def grow(self, nbytes: int, then: Callable[[bool], T] = bool) -> T:
        """Take more bytes, waiting for them if need be. Cancelled, it has taken nothing.

        Args:
            then: called as soon as they are there, with whether it waited; see `InflightBudget.take`.
        """
        if self.grow_nowait(nbytes):
            return then(False)
        address = self._address
        if address is None:
            return await self._budget.grow(self, nbytes, then)
        await address.take(self, nbytes)
        grown = False
        try:
            if not self._budget.grow_nowait(self, nbytes):
                await self._budget.grow(self, nbytes)
            grown = True
        finally:
            if not grown:
                address.give(self, nbytes)
        return then(True)

    @property
    def overdraws(self) -> bool:
        """Whether it is the one that may overdraw the budget, or its model's share."""
        return self._budget.is_overdrawn(self)

    def watch(self, on_wanted: Callable[[], None]) -> None:
        """Have `on_wanted` called while the body arrives: when it holds more than its client's address may, and others
        wait for the budget. It may be called again."""
        address = self._address
        if address is not None:
            self._on_wanted = on_wanted
            if address.oversized is self and self._budget.wanted:
                on_wanted()

    def want(self) -> None:
        """Others wait."""
        if self._on_wanted is not None:
            self._on_wanted()

    def arrived(self) -> None:
        """The body is complete; what it becomes does not count in the share of the address. May be called again."""
        address, self._address = self._address, None
        self._on_wanted = None
        if address is not None:
            address.leave(self)

    def close(self) -> None:
        """Give all back; may be called again."""
        if not self._closed:
            self._closed = True
            self.arrived()
            self._budget.end(self)

    def release(self, _nbytes: int) -> None:
        """`close`, under the name that `ModelShare` has for it."""
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "admitted" if self.admitted else "open"
        return f"<Lease {state}, {self.nbytes} bytes>"
