"""Loads that depend on answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...engine.logs.request_log import LoggedRequest

Then = Callable[[int, float, bool], LoggedRequest | None]
"""What comes when a client has an answer: told which request (by its number, from 0) was answered, when its client has
that, and whether it was answered well. Not before that time."""


class ClosedLoop:
    """Clients who send a request, wait for its answer, think, and send the next.

    Args:
        clients: how many. They begin at once.
        total: requests of all together.
        make: what request `number` is; its `offset_s` is of no meaning.
        think: for how many seconds the client thinks before request `number`.
    """

    def __init__(
        self,
        clients: int,
        total: int,
        make: Callable[[int], LoggedRequest],
        think: Callable[[int], float] = lambda _number: 0.0,
    ) -> None:
        self._sent = min(clients, total)
        self._total = total
        self._make = make
        self._think = think

    @property
    def first(self) -> Sequence[LoggedRequest]:
        """The clients' first requests."""
        begun = [replace(self._make(number), offset_s=self._think(number)) for number in range(self._sent)]
        return sorted(begun, key=lambda each: each.offset_s)

    def then(self, _answered: int, now: float, _well: bool) -> LoggedRequest | None:
        """See `Then`."""
        number = self._sent
        if number >= self._total:
            return None
        self._sent += 1
        return replace(self._make(number), offset_s=now + self._think(number))
