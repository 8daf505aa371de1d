"""Bytes that are in memory for clients and that no request in flight has paid for: an account of one kind of them.

There are two: of requests that are not complete, or wait behind others on their connection (*unfinished*); and of
answers that their clients do not read (*unread*). Each *holder*, which is a connection, says how much it holds whenever
that is not nothing.

Rules:
 1. All holders together hold at most `limit_bytes`, those of one address at most the part `address_share` of that.
 2. If they hold more, one is told to give up: the one whose client has gone longest without going on, which shows by
    its holding less than before, or is said (`progressed`). It is one of the address that has too much; or any, if all
    together have.
 3. A holder may decline. Then the next one is told; after `_ASKED` that have declined it is left at that. The only
    holder is let alone, so that what is larger than the limit can be held when nothing else is.

So a client that goes on comes last, and one address cannot displace the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

_ASKED = 64
_TIGHT_PART = 0.75
_LEAST_UNFINISHED_BYTES = 16 << 20
_LEAST_UNREAD_BYTES = 64 << 20


class Holder(Protocol):
    """Who holds bytes."""

    def make_way(self, account: ClientBytes) -> bool:
        """Let go what it holds in the account, soon; it has been taken off the account. False: it declines."""
        ...


@dataclass(slots=True, eq=False)
class _Held:
    """What one holder holds, and whose it is."""

    address: str
    nbytes: int = 0


class ClientBytes:
    """One account, of all connections of a server.

    Args:
        limit_bytes: most of all together.
        address_share: the part of it that one address may have.
        on_given_up: called whenever a holder has been told to give up, and did.

    Attributes:
        held_bytes: by all holders.
        given_up: how many holders have been told to give up, and did.
        tight: so much is held that no more should be taken than must be.
    """

    def __init__(
        self, limit_bytes: int, address_share: float = 1.0, on_given_up: Callable[[], object] = lambda: None
    ) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.given_up = 0
        self.tight = False
        self._on_given_up = on_given_up
        self._tight_bytes = limit_bytes * _TIGHT_PART
        self._share_bytes = int(limit_bytes * address_share)
        self._holders: dict[Holder, _Held] = {}  # the one that has gone longest first, as in each address
        self._addresses: dict[str, dict[Holder, None]] = {}
        self._address_bytes: dict[str, int] = {}

    def hold(self, holder: Holder, address: str, nbytes: int) -> None:
        """A holder holds so many bytes now; not nothing.

        Args:
            address: whose they are; always the same for one holder.
        """
        held = self._holders.get(holder)
        if held is None:
            held = self._holders[holder] = _Held(address)
            self._addresses.setdefault(address, {})[holder] = None
        more = nbytes - held.nbytes
        self._add(held, more)
        if more < 0:
            self._put_last(holder, held)
        if more > 0:
            while self._address_bytes.get(address, 0) > self._share_bytes and self._relieve(self._addresses[address]):
                pass
            while self.held_bytes > self.limit_bytes and self._relieve(self._holders):
                pass

    def progressed(self, holder: Holder) -> None:
        """A holder's client has gone on, though no less is held for it yet."""
        held = self._holders.get(holder)
        if held is not None:
            self._put_last(holder, held)

    def drop(self, holder: Holder) -> None:
        """A holder holds nothing any more, or is gone."""
        held = self._holders.pop(holder, None)
        if held is None:
            return
        self._add(held, -held.nbytes)
        address = held.address
        holders = self._addresses[address]
        del holders[holder]
        if not holders:
            del self._addresses[address]
            del self._address_bytes[address]

    def _add(self, held: _Held, more: int) -> None:
        held.nbytes += more
        self.held_bytes += more
        self.tight = self.held_bytes > self._tight_bytes
        self._address_bytes[held.address] = self._address_bytes.get(held.address, 0) + more

    def _put_last(self, holder: Holder, held: _Held) -> None:
        del self._holders[holder]
        self._holders[holder] = held
        holders = self._addresses[held.address]
        del holders[holder]
        holders[holder] = None

    def _relieve(self, holders: dict[Holder, _Held] | dict[Holder, None]) -> bool:
        """Have one of the holders give up. False: there is none that would."""
        if len(holders) < 2:
            return False
        for holder in list(islice(holders, _ASKED)):
            if holder not in self._holders:
                continue  # it has gone with one that was told before
            if holder.make_way(self):
                self.given_up += 1
                self._on_given_up()
                self.drop(holder)
                return True
            self.progressed(holder)
        return False


@dataclass(frozen=True, slots=True)
class ClientAccounts:
    """Both accounts of a server.

    Attributes:
        unfinished: of requests that are not complete, or wait behind others of their connection.
        unread: of answers.
    """

    unfinished: ClientBytes
    unread: ClientBytes

    @classmethod
    def of(
        cls,
        inflight_bytes: int,
        address_share: float,
        on_given_up: Callable[[], object] = lambda: None,
        *,
        processes: int = 1,
    ) -> ClientAccounts:
        """For a server that has room for so many bytes in flight: a sixteenth of that beside them for what is
        unfinished, and as much again for what is unread.

        Args:
            address_share: of each account, for one address.
            on_given_up: see `ClientBytes`; of both.
            processes: that share the server's accounts evenly; these are the ones of one of them.
        """
        unfinished_bytes = max(_LEAST_UNFINISHED_BYTES, inflight_bytes // 16) // processes
        unread_bytes = max(_LEAST_UNREAD_BYTES, inflight_bytes) // processes
        return cls(
            ClientBytes(unfinished_bytes, address_share, on_given_up),
            ClientBytes(unread_bytes, address_share, on_given_up),
        )
