"""The other end's segments, as an end of a link sees them (`child.segments.Borrower`).

Rules:
 1. A segment that cannot be taken over, because there is no descriptor left for it or no memory, is *lost*. The message
    that names it is not: its head is read, and what it asks is refused (`SegmentLostError`).
 2. The owner is told of a lost segment like of one that is given back, with `LOST` added to its number; it drops it.
 3. Segments that are done with are given back with the next message; or without one, when they are many, or together
    have `MOST_RETURNED_BYTES`.
"""

from __future__ import annotations

import numpy as np

from ..python_backend.child.segments import Borrower

LOST = 1 << 63
MOST_RETURNED_BYTES = 16 << 20

_MOST_UNREAD = 1 << 62

NO_DESCRIPTOR = "there is no open file, or no memory, left to receive tensors with; try again later"


class SegmentLostError(Exception):
    """What a message has in a segment cannot be had (rule 1)."""


class LinkBorrower(Borrower):
    """See the module. Arguments as of `Borrower`.

    Attributes:
        used: set when something is borrowed; who sees to what is not given back unsets it.
    """

    def __init__(self, most: int, most_borrowed: int) -> None:
        super().__init__(most, most_borrowed)
        self.most_returned_bytes = MOST_RETURNED_BYTES
        self.used = False
        self._most_lost = most
        self._lost: set[int] = set()

    @property
    def in_use(self) -> bool:
        """Something is borrowed, or to be given back."""
        return bool(self._borrowed or self.returned)

    def adopt(self, number: int, descriptor: int | None, nbytes: int) -> None:
        """See `Borrower.adopt`, which may fail here for want of memory; then it is rule 1's. So it is without a
        descriptor.

        Raises:
            ValueError: as there.
        """
        if descriptor is not None:
            try:
                super().adopt(number, descriptor, nbytes)
                return
            except OSError:
                pass
        if len(self._lost) >= self._most_lost:
            raise ValueError(f"more than {self._most_lost} segments")
        self._lost.add(number)

    def __contains__(self, number: int) -> bool:
        return super().__contains__(number) or number in self._lost

    def borrow(self, number: int, nbytes: int) -> np.ndarray:
        """See `Borrower.borrow`.

        Raises:
            SegmentLostError: rule 1. The segment's number stands for nothing afterwards.
        """
        self.used = True
        if number in self._lost:
            self._lost.discard(number)
            self.returned.append(number | LOST)
            raise SegmentLostError
        return super().borrow(number, nbytes)

    def forget(self, number: int) -> None:
        self._lost.discard(number)
        super().forget(number)


def unread(nbytes: int) -> memoryview:
    """So many bytes that take no memory, in place of those that cannot be had: to be counted and cut, not looked at."""
    return np.broadcast_to(np.zeros(1, np.uint8), min(nbytes, _MOST_UNREAD)).data
