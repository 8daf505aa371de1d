"""Pinned host memory, which a GPU copies from and to by itself. Getting it from the driver takes long, so it is kept.

Rules:
 1. Memory comes in blocks of a few sizes. One that nothing refers to any more is used again for the next array of its
    size, not given back to the driver.
 2. All blocks together, used and unused, are no larger than the limit. Where the limit is in the way, unused ones are
    given back to the driver first. Where that does not suffice, an array is in ordinary memory: copies from and to it
    are slower, and the thread that enqueues them waits for them, but no batch fails because of what others hold.
 3. The limit is one for all, but blocks are not: a framework knows only those that it got from the driver itself.
 4. A block goes back when the last view of its array is gone, on whatever thread that happens. That may be anywhere, in
    the middle of this code too: so what goes back only lines up, and the next one who takes sorts it in.
 5. Answers are views of pinned memory until a client has taken them. When more than half of the limit is in use they
    are copied out of it first (`relieved`), so that slow clients do not hold what all models need; but for large ones,
    since that happens on the event loop.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

_log = logging.getLogger("trireme.gpu")

DEFAULT_LIMIT_BYTES = 1 << 28
LARGEST_COPY_BYTES = 1 << 18
"""Of an answer that is copied out (rule 5): less than a tenth of a millisecond's work."""

_SMALLEST_BYTES = 4096


class PinnedBlock(Protocol):
    """Memory of the driver's, which is given back when the object is no more."""

    ptr: int


AllocatePinned = Callable[[int], PinnedBlock]
"""Gets that many bytes from the driver, a framework's way."""


class PinnedPool:
    """Callable from any thread."""

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._unused: dict[tuple[AllocatePinned, int], list[PinnedBlock]] = {}
        self._returned: deque[tuple[AllocatePinned, int, PinnedBlock]] = deque()
        self._held_bytes = 0
        self._used_bytes = 0
        self._warned = False

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that arrays are in."""
        with self._lock:
            self._sort_in()
            return self._used_bytes

    def take(self, allocate: AllocatePinned, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array whose contents are arbitrary.

        Args:
            allocate: where its block is from; always the same object for one framework.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if not nbytes:
            return np.empty(shape, dtype)
        size = _block_size(nbytes)
        with self._lock:
            self._sort_in()
            unused = self._unused.get((allocate, size))
            block = unused.pop() if unused else self._new(allocate, size)
            if block is None:
                return np.empty(shape, dtype)
            self._used_bytes += size
        lease = _Lease(block.ptr, nbytes)
        weakref.finalize(lease, self._returned.append, (allocate, size, block)).atexit = False
        return np.asarray(lease).view(dtype).reshape(shape)

    def relieved(self, array: np.ndarray) -> np.ndarray:
        """Rule 5: the array, or a copy of it in ordinary memory."""
        if array.nbytes > LARGEST_COPY_BYTES or self.used_bytes * 2 <= self.limit_bytes or not is_pinned(array):
            return array
        return array.copy()

    def _new(self, allocate: AllocatePinned, size: int) -> PinnedBlock | None:
        """None by rule 2."""
        if self._held_bytes + size > self.limit_bytes:
            self._unused.clear()
            self._held_bytes = self._used_bytes
        if self._held_bytes + size > self.limit_bytes:
            if not self._warned:
                _log.warning(
                    "the pool of pinned memory has no room for %d bytes: %d of its %d bytes are in use. While that is "
                    "so, copies to and from GPUs are slower; --pinned-memory-pool-byte-size makes it larger",
                    size,
                    self._used_bytes,
                    self.limit_bytes,
                )
            self._warned = True
            return None
        block = allocate(size)
        self._held_bytes += size
        return block

    def _sort_in(self) -> None:
        while self._returned:
            allocate, size, block = self._returned.popleft()
            self._unused.setdefault((allocate, size), []).append(block)
            self._used_bytes -= size


def is_pinned(array: np.ndarray) -> bool:
    """Whether an array is in a block of a pool."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return isinstance(owner.base, _Lease)


class _Lease:
    """What every view of a block's array refers to."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


def _block_size(nbytes: int) -> int:
    """The next size: there are four for every power of two, so at most a quarter is wasted."""
    step = max(1 << max((nbytes - 1).bit_length() - 3, 0), _SMALLEST_BYTES)
    return -(-nbytes // step) * step


# How much of the GPUs the server may take: the flags about their memory, as plain values
# (docs/reference/command-line.md#flags).
#
# The code that makes a device (`device.Device`) gives it its limits.


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Limits by GPU, by the numbers that CUDA gives them.

    Attributes:
        pinned_pool_bytes: ``--pinned-memory-pool-byte-size``: of pinned host memory that is kept for copies.
        device_pool_bytes: ``--cuda-memory-pool-byte-size``: of device memory for tensors, where it was said.
        load_fractions: ``--model-load-gpu-limit``: while a larger share of a GPU's memory is in use, no instance is
            made there; where it was said.
    """

    pinned_pool_bytes: int = DEFAULT_LIMIT_BYTES
    device_pool_bytes: Mapping[int, int] = field(default_factory=dict)
    load_fractions: Mapping[int, float] = field(default_factory=dict)
