"""Refusals by front ends (`kinds.REFUSED`): the engine counts them with its own.

A refusal is told at once, or, if the link has no room, counted until it has. So what waits is bounded, by the models
that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.errors import RefusalReason
from ..engine.metrics.refusals import Counts, RefusalCounts
from .kinds import REFUSED
from .link import LinkHead
from .values import broken, read_integer, read_list, read_text, write_text

MOST_AT_ONCE = 65_536


class RemoteRefusals(RefusalCounts):
    """See `RefusalCounts`.

    Args:
        send: sends a message; False if there is no room for it.
    """

    def __init__(self, send: Callable[[LinkHead], bool]) -> None:
        super().__init__()
        self._send = send
        self._untold: dict[tuple[RefusalReason, str, int], int] = {}

    def count(self, reason: RefusalReason, of_model: Counts | None = None, times: int = 1) -> None:
        self.tell(reason, times=times)

    def tell(self, reason: RefusalReason, name: str = "", version: int = 0, times: int = 1) -> None:
        """Of a refusal, or several; by a model, if it has a name, which must be that of one that there is."""
        key = reason, name, version
        if self._untold or not self._send(_written(*key, times)):
            self._untold[key] = min(self._untold.get(key, 0) + times, MOST_AT_ONCE)

    def room(self) -> None:
        """There may be room again."""
        while self._untold:
            key, count = next(iter(self._untold.items()))
            if not self._send(_written(*key, count)):
                return
            del self._untold[key]


def _written(reason: RefusalReason, name: str, version: int, count: int) -> LinkHead:
    return (REFUSED, reason.value, write_text(name), version, count)


def read_refusals(head: list[Any]) -> tuple[RefusalReason, str, int, int]:
    """Why, by which model and version, and how many.

    Raises:
        LinkError: it says something else.
    """
    _, reason, name, version, count = read_list(head, 5, 5)
    try:
        why = RefusalReason(reason)
    except ValueError:
        raise broken("a reason of a refusal", reason) from None
    return why, read_text(name), read_integer(version, -(2**63)), read_integer(count, 1, MOST_AT_ONCE + 1)
