"""Shared memory between two processes: memory files whose descriptors are passed, so that nothing has a name.

Each end lends segments to the other. They are made on demand, as large as a message needs, and are gone when both
processes are: there is nothing to clean up after a crash.

Rules:
 1. A segment belongs to the end that made it. It writes a message, lends the segment, and does not touch it until it
    has been given back.
 2. The borrower gives it back when no array refers to it any more, whenever that is. That may be found out by the
    garbage collector, in any thread, so it is only noted, and told with the next message that goes the other way.
 3. A borrower does not keep more than `MOST_BORROWED` segments, each of which costs a descriptor: what comes then is
    copied, and given back at once. What is larger than `MOST_COPIED_BYTES` is kept all the same.
 4. The owner keeps free segments for later messages: as much as was lent at the same time of late, at least
    `LEAST_KEPT_BYTES`, and never more than `MOST_KEPT_BYTES`, for traffic may end with its largest message. It drops
    the rest, and tells the borrower to forget it.
 5. A model has at most `MOST_SEGMENTS`, lent and free, and waits before it lends more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

MOST_SEGMENTS = 256
MOST_BORROWED = 32
MOST_COPIED_BYTES = 4 << 20
LEAST_KEPT_BYTES = 4 << 20
MOST_KEPT_BYTES = 128 << 20
SMALLEST_BYTES = 256 << 10
_DECAY = 15 / 16
_WASTE = 4  # a free segment is not used for a message this many times smaller
_MOST_NOTES = 4096

# As Linux numbers them: interpreters that were built for old systems do not know all of them.
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_F_SEAL_SHRINK, _F_SEAL_GROW = 2, 4


class Segment:
    """A piece of shared memory, mapped: its number is its name between the two processes. It takes the descriptor of a
    memory file over, and has it until the other end has got it (`passed_on`); then the mapping keeps what it needs."""

    __slots__ = ("descriptor", "memory", "nbytes", "number")

    def __init__(self, number: int, descriptor: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.descriptor: int | None = descriptor
        mapped = False
        try:
            self.memory = mmap.mmap(descriptor, nbytes)
            mapped = True
        finally:
            if not mapped:
                self.passed_on()

    def passed_on(self) -> None:
        """The descriptor is not needed any more."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Give the memory back, now or when the last reference to it is gone."""
        self.passed_on()
        with contextlib.suppress(BufferError):
            self.memory.close()


def create_file(nbytes: int) -> int:
    """A descriptor of a memory file without a name, whose size cannot be changed. OSError if no memory or descriptor is
    left."""
    descriptor = _memory_file()
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trireme", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    descriptor = ctypes.CDLL(None, use_errno=True).memfd_create(b"trireme", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    return int(descriptor)


def capacity_for(nbytes: int) -> int:
    """How large to make a segment: the next quarter of a power of two, so that similar messages fit."""
    step = max(SMALLEST_BYTES, 1 << max(nbytes.bit_length() - 3, 0))
    return -(-nbytes // step) * step


class Lender:
    """The segments that this end owns, of which there may be `most` (rule 5). Callable from any thread. The other end
    is to forget those whose numbers are in `dropped`."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.dropped: list[int] = []
        self._free: list[Segment] = []
        self._lent: dict[int, Segment] = {}
        self._lent_bytes = 0
        self._recent_bytes = 0.0
        self._next = 0
        self._closed = False
        self._lock = threading.Lock()

    @property
    def has_room(self) -> bool:
        """Another segment may be lent."""
        return self._most is None or len(self._lent) < self._most or self._closed

    @property
    def free_bytes(self) -> int:
        """Of segments that are made, and not lent."""
        with self._lock:
            return sum([segment.nbytes for segment in self._free])

    def take(self, nbytes: int) -> Segment:
        """A segment that is large enough, to write a message into and lend. One that is new has a descriptor, which
        is to be passed on. OSError if no memory, or no descriptor, is left; or this end is closed."""
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the connection is closed")
            segment = self._find(nbytes)
            if segment is None:
                if self._most is not None and self._free and len(self._free) + len(self._lent) >= self._most:
                    self._drop_oldest()
                capacity = capacity_for(nbytes)
                segment = Segment(self._next, create_file(capacity), capacity)
                self._next += 1
            self._lent[segment.number] = segment
            self._lent_bytes += segment.nbytes
            self._recent_bytes = max(float(self._lent_bytes), self._recent_bytes * _DECAY)
            return segment

    def _find(self, nbytes: int) -> Segment | None:
        most = max(nbytes * _WASTE, SMALLEST_BYTES)
        fitting = [item for item in self._free if nbytes <= item.nbytes <= most]
        if not fitting:
            return None
        segment = min(fitting, key=lambda item: item.nbytes)
        self._free.remove(segment)
        return segment

    def give_back(self, number: int) -> None:
        """The other end has done with a segment (rule 4)."""
        with self._lock:
            segment = self._lent.pop(number, None)
            if segment is not None:
                self._lent_bytes -= segment.nbytes
                self._free.append(segment)
                wanted = max(self._recent_bytes - self._lent_bytes, LEAST_KEPT_BYTES)
                self._trim(min(wanted, MOST_KEPT_BYTES))

    def discard(self, number: int) -> None:
        """The other end cannot use a segment that it was lent, and knows nothing of it."""
        with self._lock:
            segment = self._lent.pop(number, None)
            if segment is not None:
                self._lent_bytes -= segment.nbytes
                segment.close()

    def _trim(self, keep_bytes: float) -> None:
        """Drop free segments, those that were free longest first, until no more than `keep_bytes` are left."""
        kept = sum([segment.nbytes for segment in self._free])
        while self._free and kept > keep_bytes:
            kept -= self._drop_oldest()

    def _drop_oldest(self) -> int:
        """Drop the segment that was free longest; its bytes."""
        segment = self._free.pop(0)
        self._drop(segment)
        return segment.nbytes

    def _drop(self, segment: Segment) -> None:
        self.dropped.append(segment.number)
        segment.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for segment in [*self._free, *self._lent.values()]:
                segment.close()
            self._free = []
            self._lent = {}


class Borrower:
    """The other end's segments, as this end sees them, of which there may be `most` (rule 5), and which keeps
    `most_borrowed` (rule 3).

    Those whose numbers are in `returned`, filled from any thread (rule 2), are to be given back. `on_returned` is
    called, in any thread, when one has come back of so many that the other end may wait for it, and when many have, or
    some that together have `most_returned_bytes`, that it has not been told of (`returned_bytes`, about)."""

    most_returned_bytes: float = math.inf

    def __init__(self, most: int | None = None, most_borrowed: int = MOST_BORROWED) -> None:
        self._most = most
        self._most_borrowed = most_borrowed
        self.on_returned: Callable[[], object] = lambda: None
        self.returned: deque[int] = deque(maxlen=_MOST_NOTES)
        self.returned_bytes = 0
        self._segments: dict[int, Segment] = {}
        self._borrowed: dict[int, weakref.ref[np.ndarray]] = {}

    def adopt(self, number: int, descriptor: int, nbytes: int) -> None:
        """Map a segment that the other end has made.

        Raises:
            OSError: it cannot be mapped.
            ValueError: it is not as large as the other end says, one too many, or may shrink: who reads from a mapping
                that has become too short is ended by the system.
        """
        reason = self._refusal(descriptor, nbytes)
        if reason:
            os.close(descriptor)
            raise ValueError(reason)
        segment = self._segments[number] = Segment(number, descriptor, nbytes)
        segment.passed_on()

    def _refusal(self, descriptor: int, nbytes: int) -> str:
        """Why a segment is not taken; nothing if it is. Who may have any number is trusted."""
        if os.fstat(descriptor).st_size < nbytes:
            return f"a segment of {nbytes} bytes is smaller than that"
        if self._most is None:
            return ""
        if len(self._segments) >= self._most:
            return f"more than {self._most} segments"
        try:
            sealed = fcntl.fcntl(descriptor, _F_GET_SEALS) & _F_SEAL_SHRINK
        except OSError:  # no memory file
            sealed = 0
        return "" if sealed else "it may shrink"

    def __contains__(self, number: int) -> bool:
        """Whether there is such a segment."""
        return number in self._segments

    def borrow(self, number: int, nbytes: int) -> np.ndarray:
        """The first `nbytes` bytes of a segment, uint8; it is given back when nothing refers to them any more. KeyError
        or ValueError if there is no such segment, or it is smaller."""
        segment = self._segments[number]
        array = np.frombuffer(segment.memory, np.uint8, nbytes)
        most = self._most_borrowed
        if len(self._borrowed) >= most and nbytes <= MOST_COPIED_BYTES:
            array = array.copy()
            self.returned.append(number)
            self.on_returned()
            return array
        # Whatever is made of it (arrays, memory views, views of those) refers to this very array.
        borrowed, returned = self._borrowed, self.returned

        def give_back(_reference: object) -> None:
            borrowed.pop(number, None)
            returned.append(number)
            self.returned_bytes += nbytes
            many = len(returned) % MOST_BORROWED == 0 or self.returned_bytes >= self.most_returned_bytes
            if many or len(borrowed) >= most:
                self.returned_bytes = 0
                self.on_returned()

        borrowed[number] = weakref.ref(array, give_back)
        return array

    def forget(self, number: int) -> None:
        """The other end has dropped a segment."""
        segment = self._segments.pop(number, None)
        if segment is not None:
            segment.close()

    def close(self) -> None:
        self.on_returned = lambda: None
        for number in list(self._segments):
            self.forget(number)
