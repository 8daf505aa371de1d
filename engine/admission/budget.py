"""The server-wide budget of requests and bytes in flight, those included that still arrive.

Who holds bytes of it:

- A *plain* request: it came in memory, and its share is taken when it is admitted.
- A *lease*: what one request holds from the first byte of a large body until its final answer. It grows as the body
  arrives and expands. When the request is admitted, the lease is its share.

Rules:
 1. Requests in flight never exceed `request_limit`. Bytes do not exceed `byte_limit`, but for three cases that waiting
    could not make smaller: a plain request larger than that goes when no other is in flight, a lease goes when there is
    no other lease, and rule 4.
 2. Leases do not use the last eighth of the bytes, the *reserve*: bodies that arrive slowly, or never, keep no small
    request waiting. Beyond the reserve, plain requests and leases that wait are served in the order in which they came.
 3. A lease that holds nothing waits for those that have begun: only they can end and make room.
 4. So that leases that have begun never wait for each other, one of them at a time may overdraw: the first for which
    there is no room gets what it asks for all the same, whatever its model and its address have (rules 5 and 6), until
    it ends. The limits of one body bound it.
 5. A model may not have more in flight than is left free for others: ``held + new <= limit - total - new``, for
    requests and for bytes. If it has nothing in flight it may take whatever fits. So any number of models that hang
    leave room for the next. Beyond that, `take_nowait` and `admit_nowait` refuse, so that a front end does not keep
    what it cannot hand on; others wait for the model's own requests to end, and hold up no other. A lease
    waits if it knows its model from the beginning (among those of one model, rule 4 holds, too), and is refused if it
    learns that only when it is admitted.
 6. What arrives from one address counts in its share (`shares`): a lease waits for that first.
 7. What a model asks while it serves a request counts, and is never refused or kept waiting (`actors.model_calls`).
 8. What follows from getting room is done where the room is given back, in the order of those who are served: their
    tasks wake up in any order, and what comes meanwhile would go before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import outcome

from .shares import AddressShare, AddressShares, ModelShare

_RESERVE_DIVISOR = 8


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """`bytes` includes those of leases; `leases` are open, and `waiting` tasks wait, to be admitted or to grow."""

    requests: int
    bytes: int
    request_limit: int
    byte_limit: int
    waiting: int
    leases: int = 0


@dataclass(slots=True, eq=False)
class Waiter:
    """What waits for room.

    Attributes:
        lease: what is to grow; None for what asks for a place as a request.
        then: called when it is served (rule 8).
        wake: gets what `then` returns or raises; for the caller to set.
        give_up: ends waiting; it has taken nothing then.
    """

    share: ModelShare | None
    nbytes: int
    lease: LeaseCore | None
    then: Callable[[bool], Any]
    ticket: int = 0
    wake: Callable[[outcome.Outcome[Any]], object] = lambda _served: None
    give_up: Callable[[], None] = lambda: None


_Queues = dict[ModelShare | None, deque[Waiter]]
"""By share: what waits for a share that is used up holds up no other share. No queue is empty."""


@dataclass(slots=True, eq=False, repr=False)
class LeaseCore:
    """What one request holds from the first byte of its body until its final answer.

    One task at a time may wait for it to grow, and it must not be closed meanwhile.

    Attributes:
        address: the share of its client's address that it counts in while its body arrives; None if it does in none.
        arriving_bytes: what counts in the share of its client's address.
        share: of the request's model, once that is known.
        admitted: it is the share of a request in flight.
    """

    _budget: BudgetCore
    share: ModelShare | None
    address: AddressShare | None = None
    nbytes: int = 0
    arriving_bytes: int = 0
    admitted: bool = False
    _closed: bool = False
    _on_wanted: Callable[[], None] | None = None

    def grow_nowait(self, nbytes: int) -> bool:
        """Take more bytes for this request, if there is room and no request waits that comes first."""
        assert not self._closed, "a closed lease cannot grow"
        return self._budget.grow_nowait(self, nbytes)

    @property
    def overdraws(self) -> bool:
        """Whether it is the one that may overdraw the budget, or its model's share."""
        return self._budget.is_overdrawn(self)

    def watch(self, on_wanted: Callable[[], None]) -> None:
        """Have `on_wanted` called while the body arrives: when it holds more than its client's address may, and others
        wait for the budget. It may be called again."""
        address = self.address
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
        address, self.address = self.address, None
        self._on_wanted = None
        if address is not None:
            address.leave(self)

    def close(self) -> None:
        """Give all back; may be called again."""
        if not self._closed:
            self._closed = True
            self.arrived()
            self._budget.end(self)

    def release(self, _nbytes: int, /) -> None:
        """`close`, under the name that `ModelShare` has for it."""
        self.close()


class BudgetCore:
    """Counts accepted, unanswered requests, and the bytes of what they hold and of what still arrives.

    Args:
        address_share: the part of what leases may use that those of one address may have while they arrive
            (`shares`).
    """

    def __init__(self, request_limit: int, byte_limit: int, address_share: float = 1.0) -> None:
        self.request_limit = request_limit
        self.byte_limit = byte_limit
        self.reserve_bytes = byte_limit // _RESERVE_DIVISOR
        of_address = int((byte_limit - self.reserve_bytes) * address_share) if address_share < 1 else None
        self._addresses = AddressShares(of_address)
        self._requests = 0
        self._plain_bytes = 0
        self._lease_bytes = 0
        self._leases = 0
        self._overdrawn: LeaseCore | None = None
        self._tickets = 0
        self._serving = False
        self._waiting = 0  # in all of the queues below
        self._admitting: _Queues = {}
        self._plain: _Queues = {}
        self._growing: _Queues = {}
        self._starting: _Queues = {}

    def share(self, name: str) -> ModelShare:
        """A share for a model, which refusals call `name`."""
        return ModelShare(name, self.release)

    def begin(self, client: str) -> AddressShare | None:
        """A lease begins, of this address; the share of which it holds something, if there is one."""
        self._leases += 1
        return self._addresses.join(client)

    @property
    def wanted(self) -> bool:
        """Whether there are some who wait for bytes."""
        return bool(self._plain or self._growing or self._starting)

    def statistics(self) -> BudgetStatistics:
        held = self._plain_bytes + self._lease_bytes
        return BudgetStatistics(self._requests, held, self.request_limit, self.byte_limit, self._waiting, self._leases)

    # Plain requests.

    def take_nowait(self, share: ModelShare, nbytes: int) -> bool:
        """Admit a plain request if there is room and no request waits that comes first.

        Raises:
            UnavailableError: rule 5.
        """
        mine, requests, held = share.requests, self._requests, self._plain_bytes + nbytes
        fine = mine + requests + 2 <= self.request_limit and share.plain_bytes + nbytes + held <= self.reserve_bytes
        if fine and not self._waiting:  # the usual case: all that is looked at below would say so, too
            self._requests = requests + 1
            self._plain_bytes = held
            share.requests = mine + 1
            share.plain_bytes += nbytes
            return True
        if mine and self.full(share, nbytes):
            raise share.refusal()
        if self._waiting and (share in self._plain or self._first(self._admitting, self._plain) is not None):
            return False
        if not self._fits_plain(nbytes):
            return False
        self.take_anyway(share, nbytes)
        return True

    def take_later(self, share: ModelShare, nbytes: int, then: Callable[[bool], Any]) -> Waiter:
        """Wait to be admitted as a plain request."""
        return self._wait(self._plain, Waiter(share, nbytes, None, then))

    def take_anyway(self, share: ModelShare, nbytes: int) -> None:
        """Admit a plain request whether there is room or not (rule 7)."""
        self._requests += 1
        self._plain_bytes += nbytes
        share.requests += 1
        share.plain_bytes += nbytes

    def release(self, share: ModelShare, nbytes: int) -> None:
        """Give back what a plain request has taken."""
        self._requests -= 1
        self._plain_bytes -= nbytes
        share.requests -= 1
        share.plain_bytes -= nbytes
        assert share.requests >= 0 <= share.plain_bytes, "more given back than taken"
        if self._waiting:
            self._admit()

    def full(self, share: ModelShare, nbytes: int = 0) -> bool:
        """Whether rule 5 refuses the model a plain request of `nbytes`."""
        if not share.requests:
            return False
        if share.requests + 2 + self._requests > self.request_limit:
            return True
        if not nbytes or not share.plain_bytes:
            return False
        free = max(self.byte_limit - self._lease_bytes, self.reserve_bytes) - self._plain_bytes
        return share.plain_bytes + 2 * nbytes > free

    def _fits_plain(self, nbytes: int, ticket: int | None = None) -> bool:
        """Whether rules 1 and 2 admit a plain request.

        Args:
            ticket: of one that has waited; None for one that has just come.
        """
        if self._requests >= self.request_limit:
            return False
        held = self._plain_bytes + nbytes
        if held <= self.reserve_bytes or not nbytes or not self._requests:
            return True
        if held + self._lease_bytes > self.byte_limit:
            return False
        first = self._first(self._growing, self._starting) if self._waiting else None
        return first is None or (ticket is not None and ticket < first.ticket)

    # LeaseCores.

    def grow_nowait(self, lease: LeaseCore, nbytes: int) -> bool:
        """See `LeaseCore.grow_nowait`."""
        address = lease.address
        if address is None:
            return self._grow(lease, nbytes)
        if not address.take_nowait(lease, nbytes):
            return False
        grown = self._grow(lease, nbytes)
        if not grown:
            address.give(lease, nbytes)
        return grown

    def grow_later(self, lease: LeaseCore, nbytes: int, then: Callable[[bool], Any]) -> Waiter:
        """Wait for what `grow_nowait` did not give: for the share of the address (rule 6), then for the budget."""
        waiter = Waiter(lease.share, nbytes, lease, then)

        def go_on() -> None:
            if self._grow(lease, nbytes):
                waiter.wake(outcome.capture(then, True))
            else:
                self._wait(self._growing if lease.nbytes else self._starting, waiter)

        address = lease.address
        if address is None or address.take_nowait(lease, nbytes):
            self._wait(self._growing if lease.nbytes else self._starting, waiter)
        else:
            waiter.give_up = address.wait(lease, nbytes, go_on)
        return waiter

    def _grow(self, lease: LeaseCore, nbytes: int) -> bool:
        if lease.nbytes:
            first = lease.share not in self._growing and self._first(self._growing) is None
            may = (first or self.is_overdrawn(lease)) and self._may_grow(lease, nbytes)
        elif nbytes:
            first = lease.share not in self._starting and self._first(self._growing, self._starting) is None
            may = first and self._may_start(lease, nbytes)
        else:
            may = True
        if may:
            self._grant(lease, nbytes)
        return may

    def admit_nowait(self, lease: LeaseCore, share: ModelShare, nbytes: int) -> bool:
        """Make a lease the share of a request in flight, if there is room. It may have grown, if there is none.

        Args:
            share: of the request's model.
            nbytes: what the request's inputs hold.

        Raises:
            UnavailableError: rule 5.
        """
        named = lease.share is share
        self.name(lease, share)
        more = nbytes - lease.nbytes
        if more > 0 and not lease.grow_nowait(more):
            return False
        if self.full(share):
            if named:
                return False
            raise share.refusal()
        if self._admitting or self._requests >= self.request_limit:
            return False
        self.take_anyway(share, 0)
        lease.admitted = True
        return True

    def admit_later(self, lease: LeaseCore, share: ModelShare, then: Callable[[bool], Any]) -> Waiter:
        """Wait for a lease, which is large enough, to become the share of a request in flight."""

        def admitted(waited: bool) -> Any:
            lease.admitted = True
            return then(waited)

        return self._wait(self._admitting, Waiter(share, 0, None, admitted))

    def end(self, lease: LeaseCore) -> None:
        """Take everything back from a lease that is closed."""
        share = lease.share
        self._leases -= 1
        self._lease_bytes -= lease.nbytes
        if lease is self._overdrawn:
            self._overdrawn = None
        if share is not None:
            share.lease_bytes -= lease.nbytes
            if lease is share.overdrawn:
                share.overdrawn = None
        lease.nbytes = 0
        if share is not None and lease.admitted:
            self.release(share, 0)
        elif self._waiting:
            self._admit()

    def name(self, lease: LeaseCore, share: ModelShare) -> None:
        """Count a lease as its model's. What has come for a model that was replaced meanwhile goes to the new one."""
        before = lease.share
        if before is share:
            return
        if before is None:
            if self.full(share) or self._leases_full(share, lease.nbytes, taken=lease.nbytes):
                raise share.refusal()
        else:
            before.lease_bytes -= lease.nbytes
            if before.overdrawn is lease:
                before.overdrawn = None
        lease.share = share
        share.lease_bytes += lease.nbytes

    def _leases_full(self, share: ModelShare, nbytes: int, taken: int = 0) -> bool:
        """Whether rule 5 stands against `nbytes` more for the model's leases.

        Args:
            taken: how much of that is counted already.
        """
        if not share.lease_bytes or not nbytes:
            return False
        free = self.byte_limit - self.reserve_bytes - (self._lease_bytes - taken)
        return share.lease_bytes + 2 * nbytes > free

    def _share_holds_back(self, lease: LeaseCore, nbytes: int) -> bool:
        share = lease.share
        if share is None or lease is self._overdrawn or not self._leases_full(share, nbytes):
            return False
        if not lease.nbytes:
            return True
        return share.lease_bytes > lease.nbytes and share.overdrawn is not None and share.overdrawn is not lease

    def _fits_lease(self, lease: LeaseCore, nbytes: int) -> bool:
        """Whether rules 1 and 2 let a lease grow, if it is its turn."""
        held = self._plain_bytes + self._lease_bytes + nbytes
        if self._lease_bytes == lease.nbytes:  # there is no other
            return held <= self.byte_limit or self._plain_bytes <= self.reserve_bytes
        return held <= self.byte_limit and self._lease_bytes + nbytes <= self.byte_limit - self.reserve_bytes

    def is_overdrawn(self, lease: LeaseCore) -> bool:
        """Whether it is the one of rule 4, or that of its model."""
        return lease is self._overdrawn or (lease.share is not None and lease is lease.share.overdrawn)

    def _may_grow(self, lease: LeaseCore, nbytes: int) -> bool:
        """Whether a lease that has begun may take more, if it is its turn."""
        if self._share_holds_back(lease, nbytes):
            return False
        return self._overdrawn is None or self._overdrawn is lease or self._fits_lease(lease, nbytes)

    def _may_start(self, lease: LeaseCore, nbytes: int, ticket: int | None = None) -> bool:
        """Whether a lease that holds nothing may take its first bytes, if no lease waits before it."""
        if self._share_holds_back(lease, nbytes) or not self._fits_lease(lease, nbytes):
            return False
        # A plain request that waits for bytes, and not for the number of requests, may come first.
        first = self._first(self._plain)
        older = first is not None and (ticket is None or first.ticket < ticket)
        return not older or self._requests >= self.request_limit

    def _grant(self, lease: LeaseCore, nbytes: int) -> None:
        share = lease.share
        if not self._fits_lease(lease, nbytes):
            self._overdrawn = lease
        if share is not None:
            if share.lease_bytes > lease.nbytes and self._leases_full(share, nbytes):
                share.overdrawn = lease
            share.lease_bytes += nbytes
        lease.nbytes += nbytes
        self._lease_bytes += nbytes

    # Those who wait.

    def _wait(self, queues: _Queues, waiter: Waiter) -> Waiter:
        self._tickets += 1
        self._waiting += 1
        waiter.ticket = self._tickets
        queues.setdefault(waiter.share, deque()).append(waiter)
        if queues is not self._admitting and self._addresses.oversized:
            self._addresses.want()

        def give_up() -> None:
            self._leave(queues, waiter)
            lease = waiter.lease
            if lease is not None and lease.address is not None:
                lease.address.give(lease, waiter.nbytes)
            self._admit()

        waiter.give_up = give_up
        return waiter

    def _leave(self, queues: _Queues, waiter: Waiter) -> None:
        waiters = queues[waiter.share]
        waiters.remove(waiter)
        if not waiters:
            del queues[waiter.share]
        self._waiting -= 1

    def _held_back(self, waiter: Waiter) -> bool:
        """Whether rule 5 holds it back, however much room there is."""
        if waiter.lease is not None:
            return self._share_holds_back(waiter.lease, waiter.nbytes)
        return waiter.share is not None and self.full(waiter.share, waiter.nbytes)

    def _first(self, *kinds: _Queues) -> Waiter | None:
        """The one that has waited longest, of those that are not held back."""
        heads = (waiters[0] for queues in kinds for waiters in queues.values())
        return min((each for each in heads if not self._held_back(each)), key=lambda each: each.ticket, default=None)

    def _admit(self) -> None:
        """Serve those who wait, as far as there is room. What they asked for is taken here, so that no other can slip
        in between. What is given back meanwhile is served by the call that is at work."""
        if self._serving:
            return
        self._serving = True
        while self._waiting and any(
            self._admit_first(queues) for queues in (self._admitting, self._growing, self._plain, self._starting)
        ):
            pass
        self._serving = False

    def _admit_first(self, queues: _Queues) -> bool:
        first = self._first(queues)
        if first is None:
            return False
        lease, nbytes, ticket = first.lease, first.nbytes, first.ticket
        if lease is None:
            fits = self._fits_plain(nbytes, ticket)
        elif queues is self._growing:
            fits = self._may_grow(lease, nbytes)
        else:
            fits = self._first(self._growing) is None and self._may_start(lease, nbytes, ticket)  # rule 3
        return fits and self._serve(queues, first)

    def _serve(self, queues: _Queues, waiter: Waiter) -> bool:
        self._leave(queues, waiter)
        if waiter.lease is not None:
            self._grant(waiter.lease, waiter.nbytes)
        elif waiter.share is not None:
            self.take_anyway(waiter.share, waiter.nbytes)
        waiter.wake(outcome.capture(waiter.then, True))
        return True
