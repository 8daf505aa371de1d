"""The slots without a sequence; the one with the lowest number goes first
(docs/reference/sequences.md#slots-and-the-backlog)."""

from __future__ import annotations

import heapq

from ..core import InstanceId
from .slot import UNOWNED, Slot


class Vacancies:
    """A heap of slots. Of equal numbers the one that came first goes first: its last request has had more time."""

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Slot]] = []
        self._added = 0

    def add(self, slot: Slot) -> None:
        """A slot has no sequence any more."""
        assert slot.state in UNOWNED, f"{slot} is taken"
        self._added += 1
        heapq.heappush(self._heap, (slot.number, self._added, slot))

    def pop(self) -> Slot:
        """Remove and return the first slot; there must be one."""
        return heapq.heappop(self._heap)[2]

    def forget(self, instance: InstanceId) -> None:
        """Remove an instance's slots."""
        self._heap = [entry for entry in self._heap if entry[2].instance != instance]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)
