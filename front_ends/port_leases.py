"""The leases of a front end (`leases` has its end of them): those of the server's budget."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..actors.budget import Lease
from ..actors.server import InferenceServer
from ..engine.admission.budget import Waiter
from . import kinds
from .link import LinkError, LinkHead
from .values import read_integer, read_list, read_text

_MOST = 65_536
"""Of one front end. An honest one has far fewer."""


class _Held:
    """A lease; `growing` while it waits for the budget."""

    __slots__ = ("growing", "lease")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.growing: Waiter | None = None


class PortLeases:
    """Those that no request has taken along.

    Args:
        say: sends a message, later if there is no room.
    """

    def __init__(self, server: InferenceServer, say: Callable[[LinkHead], None]) -> None:
        self._server = server
        self._say = say
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, number: int) -> Lease:
        """The lease that a request has: it is the request's from now on.

        Raises:
            LinkError: it is none, or waits for room.
        """
        held = self._held.pop(number, None)
        if held is None or held.growing is not None:
            raise LinkError(f"a request has lease {number}, which is none")
        return held.lease

    def close_all(self) -> None:
        """The front end is gone."""
        for held in self._held.values():
            _close(held)
        self._held.clear()

    # Messages (`kinds`); a LinkError if one is none.

    def grow(self, head: list[Any], _payload: memoryview) -> None:
        read_list(head, 3, 6)
        number, nbytes = read_integer(head[1], 1), read_integer(head[2])
        held = self._held.get(number) or self._begin(head, number)
        if held.growing is not None:
            raise LinkError(f"lease {number} grows already")
        if held.lease.grow_nowait(nbytes):
            self._say((kinds.GRANTED, number, nbytes))
            return

        def granted(_waited: bool) -> None:
            held.growing = None
            self._say((kinds.GRANTED, number, nbytes))

        held.growing = held.lease.grow_later(nbytes, granted)

    def _begin(self, head: list[Any], number: int) -> _Held:
        _, _, _, name, version, client = read_list(head, 6, 6)
        if len(self._held) >= _MOST:
            raise LinkError("too many leases")
        lease = self._server.lease(read_text(name), read_integer(version, -(2**63)), read_text(client))
        lease.watch(partial(self._say, (kinds.WANTED, number)))
        held = self._held[number] = _Held(lease)
        return held

    def arrived(self, head: list[Any], _payload: memoryview) -> None:
        read_list(head, 2, 2)
        held = self._held.get(read_integer(head[1]))
        if held is not None:
            held.lease.arrived()

    def close(self, head: list[Any], _payload: memoryview) -> None:
        read_list(head, 2, 2)
        held = self._held.pop(read_integer(head[1]), None)
        if held is not None:
            _close(held)


def _close(held: _Held) -> None:
    if held.growing is not None:
        held.growing.give_up()
    held.lease.close()
