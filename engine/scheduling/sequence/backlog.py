"""The backlog: sequences that wait for a slot; and the slots that wait for a sequence.

Rules (docs/reference/sequences.md#slots-and-the-backlog, docs/reference/sequences.md#time-limits):
 1. The sequence that came first gets the next free slot, with all of its requests.
 2. A request may limit its time in here. The closest deadline of its requests is the sequence's: then all of them
    leave together.
 3. Of the slots without a sequence, the one with the lowest number goes first. Of equal numbers the one that came first
    does: its last request has had more time.

Deadlines are in a heap whose entries outlive what they are about; it is swept when it holds more ghosts than sequences.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from ..core import InstanceId
from .slot import VACANT, Sequence, Slot, SlotState

_MIN_SWEEP = 64
"""A heap of deadlines with fewer entries than this is not worth sweeping."""

BacklogDeadline = tuple[float, int, Sequence]
"""When, and whose: (deadline_s, number, sequence)."""


class Backlog:
    """Sequences in order of arrival."""

    __slots__ = ("_deadlines", "_sequences")

    def __init__(self) -> None:
        self._sequences: OrderedDict[Sequence, None] = OrderedDict()
        self._deadlines: list[BacklogDeadline] = []

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence] = None

    def limit(self, sequence: Sequence, deadline_s: float) -> None:
        """A request of this sequence, which must be in here, will not wait longer than this."""
        if sequence.deadline_s is not None and sequence.deadline_s <= deadline_s:
            return
        sequence.deadline_s = deadline_s
        heap = self._deadlines
        if len(heap) >= max(_MIN_SWEEP, 2 * len(self._sequences)):
            self._deadlines = heap = [entry for entry in heap if self._is_live(entry)]
            heapq.heapify(heap)
        heapq.heappush(heap, (deadline_s, sequence.number, sequence))

    def pop(self) -> Sequence:
        """Remove and return the sequence that came first; there must be one."""
        sequence, _ = self._sequences.popitem(last=False)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence]

    def expire(self, now: float) -> list[Sequence]:
        """Remove and return the sequences whose deadline has come, in the order of their deadlines."""
        expired: list[Sequence] = []
        while (deadline_s := self.closest_deadline_s) is not None and deadline_s <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            self.remove(sequence)
            expired.append(sequence)
        return expired

    @property
    def closest_deadline_s(self) -> float | None:
        """The next deadline; None if there is none."""
        heap = self._deadlines
        while heap and not self._is_live(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    @property
    def requests(self) -> int:
        """Of all sequences in here."""
        return sum(len(sequence.jobs) for sequence in self._sequences)

    def clear(self) -> None:
        self._sequences.clear()
        self._deadlines.clear()

    def _is_live(self, entry: BacklogDeadline) -> bool:
        deadline_s, _, sequence = entry
        return sequence.deadline_s == deadline_s and sequence in self._sequences

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._sequences

    def __len__(self) -> int:
        return len(self._sequences)


class Vacancies:
    """The slots without a sequence (rule 3).

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
