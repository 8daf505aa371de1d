"""Pinned host memory, which a GPU copies from and to by itself. Getting it from the driver takes long, so it is kept.

Rules:
 1. Memory comes in blocks of a few sizes. One that nothing refers to any more is used again for the next array of its
    size, not given back to the driver.
 2. All blocks together, used and unused, are no larger than the limit. Where the limit is in the way, unused ones are
    given back to the driver first.
 3. The limit is one for everybody, but blocks are not: a framework knows only those that it got from the driver itself.
 4. A block goes back when the last view of its array is gone, on whatever thread that happens. That may be anywhere, in
    the middle of this code too: so what goes back only lines up, and the next one who takes sorts it in.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from .device import OutOfDeviceMemoryError

DEFAULT_LIMIT_BYTES = 1 << 28

_SMALLEST_BYTES = 4096


class PinnedBlock(Protocol):
    """Memory of the driver's, which is given back when the object is no more.

    Attributes:
        ptr: its address.
    """

    ptr: int


Allocate = Callable[[int], PinnedBlock]
"""Gets that many bytes from the driver, a framework's way."""
Pinned = Callable[[Sequence[int], np.dtype], np.ndarray]
"""`PinnedPool.take` for one framework."""


class PinnedPool:
    """Callable from any thread.

    Args:
        limit_bytes: see rule 2.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._unused: dict[tuple[Allocate, int], list[PinnedBlock]] = {}
        self._returned: deque[tuple[Allocate, int, PinnedBlock]] = deque()
        self._held_bytes = 0
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that arrays are in."""
        with self._lock:
            self._sort_in()
            return self._used_bytes

    def take(self, allocate: Allocate, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array whose contents are arbitrary.

        Args:
            allocate: where its block is from; always the same object for one framework.

        Raises:
            OutOfDeviceMemoryError: rule 2.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if not nbytes:
            return np.empty(shape, dtype)
        size = _block_size(nbytes)
        with self._lock:
            self._sort_in()
            unused = self._unused.get((allocate, size))
            block = unused.pop() if unused else self._new(allocate, size)
            self._used_bytes += size
        lease = _Lease(block.ptr, nbytes)
        weakref.finalize(lease, self._returned.append, (allocate, size, block)).atexit = False
        return np.asarray(lease).view(dtype).reshape(shape)

    def _new(self, allocate: Allocate, size: int) -> PinnedBlock:
        if self._held_bytes + size > self.limit_bytes:
            self._unused.clear()
            self._held_bytes = self._used_bytes
        if self._held_bytes + size > self.limit_bytes:
            raise OutOfDeviceMemoryError(
                f"the pool of pinned memory has no room for {size} bytes: {self._used_bytes} of its {self.limit_bytes} "
                "bytes are in use"
            )
        block = allocate(size)
        self._held_bytes += size
        return block

    def _sort_in(self) -> None:
        while self._returned:
            allocate, size, block = self._returned.popleft()
            self._unused.setdefault((allocate, size), []).append(block)
            self._used_bytes -= size


class _Lease:
    """What every view of a block's array refers to."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


def _block_size(nbytes: int) -> int:
    """The next size: there are four for every power of two, so at most a quarter is wasted."""
    step = max(1 << max((nbytes - 1).bit_length() - 3, 0), _SMALLEST_BYTES)
    return -(-nbytes // step) * step
