"""The slots without a sequence; the one with the lowest number goes first
(docs/reference/sequences.md#slots-and-the-backlog)."""

from __future__ import annotations

import heapq

from ..core import InstanceId
from .slot import VACANT, Slot, SlotState


class Vacancies:
    """A heap of slots. Of equal numbers the one that came first goes first: its last request has had more time.

    Slots that no sequence has had yet are one entry an instance: the lowest of their numbers, and how many there are.
    """

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, InstanceId, int, Slot | None]] = []
        self._added = 0

    def add_new(self, instance: InstanceId, number: int, end: int) -> None:
        """An instance has slots that are not made yet: from `number` up to, but not including, `end`."""
        self._added += 1
        heapq.heappush(self._heap, (number, self._added, instance, end, None))

    def add(self, slot: Slot) -> None:
        """A slot has no sequence any more."""
        assert slot.state in VACANT, f"{slot} is taken"
        self._added += 1
        heapq.heappush(self._heap, (slot.number, self._added, slot.instance, slot.number + 1, slot))

    def pop(self) -> tuple[InstanceId, int, Slot | None]:
        """Remove and return the first slot; there must be one. Its instance, its number, and the slot itself, unless it
        is to be made."""
        number, added, instance, end, slot = heapq.heappop(self._heap)
        if number + 1 < end:
            heapq.heappush(self._heap, (number + 1, added, instance, end, None))
        return instance, number, None if slot is None or slot.state is SlotState.GONE else slot

    def forget(self, instance: InstanceId) -> None:
        """Remove an instance's slots."""
        self._heap = [entry for entry in self._heap if entry[2] != instance]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        """Zero if there is none."""
        return len(self._heap)
