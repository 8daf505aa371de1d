"""The deadlines of all calls of a service: one heap and one task.

Rule 1: A call that ends takes its deadline back. The entry stays in the heap, empty; when most entries are empty, the
        heap is made anew, so it is never much larger than the number of calls that have deadlines.
Rule 2: Calls whose deadline has passed are told in the order of their deadlines, those of equal ones in the order in
        which they came.
"""

from __future__ import annotations

import heapq
import math
from typing import Protocol

import trio
from grpclib.metadata import Deadline

_TIDY_FROM = 64


class CallDeadline(Deadline):
    """A call's deadline on trio's clock, for its handler to see."""

    def __init__(self, deadline_s: float) -> None:
        super().__init__(_timestamp=deadline_s)

    def time_remaining(self) -> float:
        """Seconds left; not below 0."""
        return max(0.0, self._timestamp - trio.current_time())


class Expiring(Protocol):
    """What has a deadline."""

    def expire(self) -> None:
        """The deadline has passed."""
        ...


class Entry:
    """A deadline in the heap; empty once its call has ended."""

    __slots__ = ("call", "deadline_s", "sequence_number")

    def __init__(self, deadline_s: float, sequence_number: int, call: Expiring) -> None:
        self.deadline_s = deadline_s
        self.sequence_number = sequence_number
        self.call: Expiring | None = call

    def __lt__(self, other: Entry) -> bool:
        if self.deadline_s != other.deadline_s:
            return self.deadline_s < other.deadline_s
        return self.sequence_number < other.sequence_number


class Deadlines:
    """Whose deadline is next."""

    __slots__ = ("_count", "_empty", "_heap", "_sooner")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._empty = 0
        self._count = 0
        self._sooner = trio.Event()

    def __len__(self) -> int:
        """Calls that have a deadline ahead."""
        return len(self._heap) - self._empty

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self)} calls>"

    @property
    def next_s(self) -> float:
        """The next deadline; infinity if there is none."""
        self._drop_empty_front()
        return self._heap[0].deadline_s if self._heap else math.inf

    def add(self, deadline_s: float, call: Expiring) -> Entry:
        """`call` is to be told when `deadline_s`, on trio's clock, has passed. The entry is for `remove`."""
        self._count += 1
        entry = Entry(deadline_s, self._count, call)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._sooner.set()
        return entry

    def remove(self, entry: Entry) -> None:
        """The call has ended. Removing twice, or after the deadline, is fine."""
        if entry.call is None:
            return
        entry.call = None
        self._empty += 1
        if self._empty > _TIDY_FROM and self._empty * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each.call is not None]
            heapq.heapify(self._heap)
            self._empty = 0

    def expire(self, now_s: float) -> None:
        """Tells every call whose deadline has passed."""
        while self.next_s <= now_s:
            entry = heapq.heappop(self._heap)
            call, entry.call = entry.call, None  # so that the call's own `remove` counts nothing as empty
            assert call is not None
            call.expire()

    def _drop_empty_front(self) -> None:
        heap = self._heap
        while heap and heap[0].call is None:
            heapq.heappop(heap)
            self._empty -= 1

    async def keep_watching(self) -> None:
        """Expires deadlines until cancelled."""
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self.next_s):
                await self._sooner.wait()
            self.expire(trio.current_time())
