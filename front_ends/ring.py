"""A ring: messages from one process to another, in memory that both have mapped.

A ring goes one way; a link has two. It is plain memory and arithmetic: who rings the doorbell, and who waits for it, is
told by the return values.

Layout: two counters, each on a cache line of its own, then `capacity` bytes of records. Counters only grow; a record
lies at its counter modulo the capacity. A record is its length (uint64), its bytes, and padding up to a multiple of
8. It never wraps: one that does not fit before the end of the ring begins at its start, and the rest is skipped.

Rules:
 1. One end writes, the other reads. The writer alone stores the *written* counter, the reader alone the *read* one.
 2. What is put becomes visible with `publish`, all at once: once in a turn. Whenever that has made something visible,
    the doorbell must be rung, after the store. The reader looks only after it has heard the doorbell, which orders the
    stores of the writer before the loads of the reader on any processor. It may look unasked (poll) where stores are
    seen in their order: `POLLABLE`.
 3. A ring that is full takes nothing (`put` returns False). Then `publish` asks to be told of room, by a flag and by
    the doorbell. The reader calls `release` whenever its doorbell has rung; it returns True if the writer has asked,
    and then the writer's doorbell must be rung. The flag alone would not do: each end could miss the other's store.
 4. Messages are copied out before anything looks at them: the other end may still write there.
 5. Neither end trusts the counters of the other, nor lengths that it has written. What cannot be is a `RingError`, and
    the link is over. No value of them makes an end read or write outside of the ring, or take more than its capacity.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from ..python_backend.child.codec import Buffer

POLLABLE = platform.machine() in ("x86_64", "AMD64", "i686")
"""Whether stores of one core are seen by the others in their order, so that the reader may poll (rule 2)."""

SMALLEST_CAPACITY = 4_096

_LINE = 64
_WORD = 8
_WRITTEN, _READ, _WANTS_ROOM = 0, _LINE // _WORD, _LINE // _WORD + 1
_RECORDS = 2 * _LINE
_SKIP = (1 << 64) - 1
"""Instead of a length: the next record is at the start of the ring."""


class RingError(Exception):
    """The other end has written what cannot be."""


def ring_bytes(capacity: int) -> int:
    """How many bytes of memory a ring of this capacity needs."""
    return _RECORDS + capacity


class _Ring:
    """What both ends know.

    Args:
        memory: `ring_bytes` of the capacity, writable; zeros when the ring is new.

    Attributes:
        capacity: bytes of records; a power of two.

    Raises:
        ValueError: the memory is of no such size.
    """

    __slots__ = ("_bytes", "_words", "capacity")

    def __init__(self, memory: memoryview) -> None:
        capacity = len(memory) - _RECORDS
        if capacity < SMALLEST_CAPACITY or capacity & (capacity - 1):
            raise ValueError(f"a ring of {capacity} bytes: it must be a power of two from {SMALLEST_CAPACITY} on")
        self.capacity = capacity
        self._bytes = memory[_RECORDS:]
        self._words = memory.cast("Q")

    def close(self) -> None:
        """Let go of the memory. The ring must not be used any more."""
        self._bytes.release()
        self._words.release()


class RingWriter(_Ring):
    """The end that writes; see the rules of this module.

    Attributes:
        largest: bytes of the largest message that it takes: with what may have to be skipped, half of the ring.
    """

    __slots__ = ("_at", "_published", "_read", "_refused", "largest")

    def __init__(self, memory: memoryview) -> None:
        super().__init__(memory)
        self._at = self._published = self._read = 0
        self._refused = False
        self.largest = self.capacity // 2 - _WORD

    def put(self, parts: Sequence[Buffer]) -> bool:
        """Write a message, made of these parts one behind the other. It is seen after `publish`.

        Returns:
            False: there is no room for it now. `publish` asks for some.

        Raises:
            ValueError: it is larger than `largest`.
            RingError: the reader claims to have read what it cannot have.
        """
        size = 0
        for part in parts:
            size += len(part)
        if size > self.largest:
            raise ValueError(f"a message of {size} bytes in a ring that takes {self.largest}")
        needed = _WORD + size + -size % _WORD
        at = self._at
        start = at & (self.capacity - 1)
        to_end = self.capacity - start
        end = at + needed if needed <= to_end else at + to_end + needed
        if end - self._read > self.capacity:
            self._look()
            if end - self._read > self.capacity:
                self._refused = True
                return False
        if needed > to_end:
            self._words[(_RECORDS + start) // _WORD] = _SKIP
            start = 0
        self._words[(_RECORDS + start) // _WORD] = size
        start += _WORD
        for part in parts:
            stop = start + len(part)
            self._bytes[start:stop] = part
            start = stop
        self._at = end
        return True

    def room(self, least: int, most: int) -> int:
        """Of how many bytes, at most `most`, a message may be that is surely taken now. 0 if that is less than `least`;
        then `publish` asks for room.

        Raises:
            RingError: as of `put`.
        """
        found = self._room()
        if found < most:
            self._look()
            found = self._room()
            if found < least:
                self._refused = True
                return 0
        return min(found, most)

    def _room(self) -> int:
        to_end = self.capacity - (self._at & (self.capacity - 1))
        free = self.capacity - (self._at - self._read)
        return max(min(to_end, free), free - to_end) - 2 * _WORD

    def ask_for_room(self) -> None:
        """Have `publish` ask to be told when the reader has read on, as if something had been refused."""
        self._refused = True

    def publish(self) -> bool:
        """Make visible what was put, and ask for room if there was too little; whether there was any of this, so that
        the doorbell must be rung."""
        refused, self._refused = self._refused, False
        if refused:
            self._words[_WANTS_ROOM] = 1
        if self._at == self._published:
            return refused
        self._words[_WRITTEN] = self._published = self._at
        return True

    def _look(self) -> None:
        """See how far the reader has come."""
        read = self._words[_READ]
        if not self._read <= read <= self._published:
            raise RingError(f"the reader says that it has read {read} bytes, of {self._published} that were written")
        self._read = read


class RingReader(_Ring):
    """The end that reads; see the rules of this module."""

    __slots__ = ("_at", "_visible")

    def __init__(self, memory: memoryview) -> None:
        super().__init__(memory)
        self._at = self._visible = 0

    def take(self) -> bytes | None:
        """The next message; None if none is visible.

        Raises:
            RingError: what is there is no record.
        """
        at = self._at
        if at == self._visible:
            written = self._words[_WRITTEN]
            if written == at:
                return None
            if not at < written <= at + self.capacity or written % _WORD:
                raise RingError(f"the writer says that it has written {written} bytes, of which {at} were read")
            self._visible = written
        start = at & (self.capacity - 1)
        size = self._words[(_RECORDS + start) // _WORD]
        if size == _SKIP:
            at += self.capacity - start
            start = 0
            if at >= self._visible:
                raise RingError("the writer has skipped the rest of the ring and written nothing behind that")
            size = self._words[_RECORDS // _WORD]
        end = at + _WORD + size + -size % _WORD
        if end > self._visible or start + _WORD + size > self.capacity:
            raise RingError(f"a message of {size} bytes is longer than what was written")
        self._at = end
        start += _WORD
        return bytes(self._bytes[start : start + size])

    def release(self) -> bool:
        """Let the writer use again what was taken; whether it waits for that, so that its doorbell must be rung."""
        self._words[_READ] = self._at
        if self._words[_WANTS_ROOM]:
            self._words[_WANTS_ROOM] = 0
            return True
        return False
