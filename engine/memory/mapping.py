"""Segments of shared memory, mapped so that a client that cuts one short does not end the process.

From a mapping, a large tensor is copied in a third of the time that the segment's descriptor takes, and a framework can
read and write it in place. But the client owns the segment. A thread that touches a page that is not there any more
gets SIGBUS, which ends a process that does not handle it.

Rules:
 1. The process's `FaultGuard` knows every mapping, from before it is touched until it is unmapped. It handles SIGBUS
    from the first mapping on.
 2. A fault within a mapping is handled in the thread at fault: from that page on, the mapping becomes zeros that belong
    to this process alone, and notes so in `Mapping.intact_bytes`. The thread goes on.
 3. So what was read or written through a mapping counts only if it is `intact` afterwards. A mapping that is not is
    used no more.
 4. Any other fault is met by the handler that was there before.
 5. The handler needs the interpreter's lock. So who touches a mapping holds no lock that a thread may wait for while it
    has the interpreter's.
 6. A mapping is unmapped when nothing refers to its memory any more.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import sys
import threading
import weakref
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_ZEROS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
_FAILED = ctypes.c_void_p(-1).value
_SA_SIGINFO = 4
_MASK_WORDS = 16
_ADDRESS_AT = 16
"""Where ``siginfo_t`` has the address at fault, in bytes, on machines of 64 bits."""

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """``struct sigaction``."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * _MASK_WORDS),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@dataclass(slots=True, eq=False)
class _Extent:
    """Where a mapping is, and how much of it is still the segment's, in bytes."""

    start: int
    nbytes: int
    intact_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
    """A part of a segment.

    Attributes:
        array: its bytes, to be read and written.
    """

    array: np.ndarray
    _extent: _Extent = field(repr=False)

    @property
    def intact_bytes(self) -> int:
        """So many bytes, from the beginning, are the segment's; the rest was lost."""
        return self._extent.intact_bytes

    @property
    def intact(self) -> bool:
        """Whether nothing was lost."""
        return self._extent.intact_bytes >= self._extent.nbytes


class FaultGuard:
    """Maps segments, and handles faults within the mappings. A process has one: `fault_guard`."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._map = libc.mmap
        self._map.restype = ctypes.c_void_p
        self._map.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        self._unmap = libc.munmap
        self._unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._set_action = libc.sigaction
        self._set_action.argtypes = [ctypes.c_int, ctypes.POINTER(_Action), ctypes.POINTER(_Action)]
        self._numbers = itertools.count()
        self._extents: dict[int, _Extent] = {}
        self._handler = _Handler(self._fault)  # must live as long as the process
        self._before = _Action()
        action = _Action(handler=ctypes.cast(self._handler, ctypes.c_void_p), flags=_SA_SIGINFO)
        if self._set_action(signal.SIGBUS, ctypes.byref(action), ctypes.byref(self._before)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def map(self, descriptor: int, offset: int, nbytes: int) -> Mapping:
        """Map a part of a segment, which need not reach so far.

        Args:
            offset: where the part begins, in bytes; a multiple of the page size.

        Raises:
            OSError: it cannot be mapped.
        """
        start = self._map(None, nbytes, _READ_WRITE, mmap.MAP_SHARED, descriptor, offset)
        if start is None or start == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        number = next(self._numbers)
        extent = self._extents[number] = _Extent(start, nbytes, nbytes)
        memory = (ctypes.c_uint8 * nbytes).from_address(start)
        weakref.finalize(memory, self._forget, number).atexit = False
        return Mapping(np.frombuffer(memoryview(memory), np.uint8), extent)

    def _forget(self, number: int) -> None:
        """Rule 6."""
        extent = self._extents.pop(number)
        self._unmap(extent.start, extent.nbytes)

    def _fault(self, _signal: int, info: int, _context: int) -> None:
        """Rules 2 and 4. Called in the thread at fault, in the midst of whatever it does; it then tries again."""
        handled = False
        try:
            at = ctypes.c_void_p.from_address(info + _ADDRESS_AT).value or 0
            for extent in list(self._extents.values()):
                if extent.start <= at < extent.start + extent.nbytes:
                    handled = self._give_up(extent, at)
        finally:
            if not handled:
                self._set_action(signal.SIGBUS, ctypes.byref(self._before), None)

    def _give_up(self, extent: _Extent, at: int) -> bool:
        """Put zeros in the place of a mapping, from the page on in which `at` is."""
        kept = (at - extent.start) // mmap.PAGESIZE * mmap.PAGESIZE
        page = extent.start + kept
        extent.intact_bytes = min(extent.intact_bytes, kept)
        return self._map(page, extent.nbytes - kept, _READ_WRITE, _ZEROS, -1, 0) == page


_making = threading.Lock()
"""Two guards would undo each other: one that does not know a mapping puts back the handler that was there before."""


def fault_guard() -> FaultGuard | None:
    """The process's own, made when first asked for, from any thread; None where this is not known to work."""
    with _making:
        return _make_guard()


@lru_cache(maxsize=1)
def _make_guard() -> FaultGuard | None:
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return None
    return FaultGuard()
