"""The deadlines of all calls of a service, and of messages that arrive: one heap and one task.

Rule 1: A call that ends takes its deadline back. The entry stays in the heap, empty; when most entries are empty, the
        heap is made anew, so it is never much larger than the number of calls that have deadlines.
Rule 2: Calls whose deadline has passed are told in the order of their deadlines, those of equal ones in the order in
        which they came.
Rule 3: What holds room in the server-wide budget must not stand still, nor too much of it for long (`Patience`). In
        every period of `Limits.body_grace_s` as much of a message must come as `Limits.body_rate` says.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from ...engine.admission.shares import HURRY_S
from ..sockets.limits import Limits
from .framing import MessageReader

DEADLINE_EXCEEDED = "Deadline Exceeded"
TOO_SLOW = "the request message arrives too slowly"
"""What the client of a message that does not come on is told, with the status DEADLINE_EXCEEDED."""

_TIDY_FROM = 64


class Expiring(Protocol):
    def expire(self) -> None:
        """The deadline has passed."""


@dataclass(slots=True, eq=False)
class Entry:
    """A deadline in the heap; empty once its call has ended."""

    call: Expiring | None


class Deadlines:
    """Whose deadline is next."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []  # the number makes each different
        self._empty = 0
        self._count = 0
        self._sooner = trio.Event()

    def __len__(self) -> int:
        """Calls that have a deadline ahead."""
        return len(self._heap) - self._empty

    @property
    def next_s(self) -> float:
        heap = self._heap
        while heap and heap[0][2].call is None:
            heapq.heappop(heap)
            self._empty -= 1
        return heap[0][0] if heap else math.inf

    def add(self, deadline_s: float, call: Expiring) -> Entry:
        """`call` is to be told when `deadline_s`, on trio's clock, has passed. The entry is for `remove`."""
        self._count += 1
        entry = Entry(call)
        heapq.heappush(self._heap, (deadline_s, self._count, entry))
        if self._heap[0][2] is entry:
            self._sooner.set()
        return entry

    def remove(self, entry: Entry) -> None:
        """The call has ended. Removing twice, or after the deadline, is fine."""
        if entry.call is None:
            return
        entry.call = None
        self._empty += 1
        if self._empty > _TIDY_FROM and self._empty * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[2].call is not None]
            heapq.heapify(self._heap)
            self._empty = 0

    def expire(self, now_s: float) -> None:
        while self.next_s <= now_s:
            entry = heapq.heappop(self._heap)[2]
            call, entry.call = entry.call, None  # so that the call's own `remove` counts nothing as empty
            assert call is not None
            call.expire()

    async def keep_watching(self) -> None:
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self.next_s):
                await self._sooner.wait()
            self.expire(trio.current_time())


@dataclass(slots=True, eq=False)
class Patience:
    """With one message, which `reader` collects, until `stop`. `give_up` is called, once, if it does not come on."""

    _deadlines: Deadlines
    _limits: Limits
    _reader: MessageReader
    _give_up: Callable[[], None] | None
    _entry: Entry | None = None
    _hurries: bool = False
    _seen_bytes: int = 0

    def __post_init__(self) -> None:
        self._begin_period()

    def _begin_period(self) -> None:
        self._seen_bytes = self._reader.collected_bytes
        self._entry = self._deadlines.add(trio.current_time() + self._limits.body_grace_s, self)

    def hurry(self) -> None:
        """The message holds more than it may while others wait: it must be there soon. May be called again."""
        if self._entry is not None and not self._hurries:
            self._hurries = True
            self._deadlines.remove(self._entry)
            self._entry = self._deadlines.add(trio.current_time() + HURRY_S, self)

    def expire(self) -> None:
        came = self._reader.collected_bytes - self._seen_bytes
        if came >= self._limits.body_rate * self._limits.body_grace_s and not self._hurries:
            self._begin_period()
        elif self._give_up is not None:
            self._entry = None
            self._give_up()

    def stop(self) -> None:
        """The message is there, or not needed any more."""
        self._give_up = None
        if self._entry is not None:
            self._deadlines.remove(self._entry)
            self._entry = None
