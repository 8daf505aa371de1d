"""The slots without a sequence; the one with the lowest number goes first (scheduling.md §6.2)."""

from __future__ import annotations

import heapq

from ..core import InstanceId
from .slot import UNOWNED, Slot


class Vacancies:
    """A heap of slots. Of equal numbers the older instance goes first."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, InstanceId, Slot]] = []

    def add(self, slot: Slot) -> None:
        """A slot has no sequence any more."""
        assert slot.state in UNOWNED, f"{slot} is taken"
        heapq.heappush(self._heap, (slot.number, slot.instance, slot))

    def pop(self) -> Slot:
        """Remove and return the first slot; there must be one."""
        return heapq.heappop(self._heap)[2]

    def forget(self, instance: InstanceId) -> None:
        """Remove an instance's slots."""
        self._heap = [entry for entry in self._heap if entry[1] != instance]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)
