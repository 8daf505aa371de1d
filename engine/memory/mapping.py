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
 4. Any other fault is met by the handlers that others have installed, the newest first, and in the end by the system.
    Each is called; a fault that is still there when it returns is for the next one.
 5. The handler needs the interpreter's lock. So who touches a mapping holds no lock that a thread may wait for while it
    has the interpreter's.
 6. A mapping is unmapped when nothing refers to its memory any more.
 7. A library in this process may install a handler of its own (``faulthandler.enable()``). `FaultGuard.keep`, which
    comes before each use of a mapping, puts it behind this one.
 8. Until then it is in front. Such a handler puts back the one that it found, says what it has to say, and raises the
    signal again. So a signal that this process has raised is nothing to handle: the thread goes on, and if the fault is
    still there, it comes here.
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
_NO_FUNCTIONS = (None, int(signal.SIG_DFL), int(signal.SIG_IGN))
_CODE_AT, _ADDRESS_AT, _SENDER_AT = 8, 16, 16
"""Where ``siginfo_t`` has what kind of signal it is, and the address at fault, or the process that has sent it; in
bytes, on machines of 64 bits."""

_SI_USER, _SI_TKILL = 0, -6  # a code above 0 is a fault's

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_OtherHandler = ctypes.PYFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)  # called with the lock held


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
        self._handler = _Handler(self._handle)  # must live as long as the process
        self._own = _Action(handler=ctypes.cast(self._handler, ctypes.c_void_p), flags=_SA_SIGINFO)
        self._others: list[_Action] = []  # rule 4, the newest last
        self._met_at, self._met_by = -1, 0  # a fault that others have met, and how many of them
        self.keep()

    def keep(self) -> None:
        """Be the first who handles SIGBUS (rule 7).

        Raises:
            OSError: the system does not let it.
        """
        now = _Action()
        self._act(None, now)
        if now.handler != self._own.handler:
            if all(now.handler != each.handler for each in self._others):
                self._others.append(now)
            self._act(self._own, None)

    def _act(self, new: _Action | None, old: _Action | None) -> None:
        if self._set_action(signal.SIGBUS, new and ctypes.byref(new), old and ctypes.byref(old)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def map(self, descriptor: int, offset: int, nbytes: int) -> Mapping:
        """Map a part of a segment, which need not reach so far.

        Args:
            offset: where the part begins, in bytes; a multiple of the page size.

        Raises:
            OSError: it cannot be mapped.
        """
        self.keep()
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

    def _handle(self, number: int, info: int, context: int) -> None:
        """SIGBUS. Called in the thread at fault, in the midst of whatever it does; it then tries again."""
        code = ctypes.c_int.from_address(info + _CODE_AT).value
        if code <= _SI_USER:
            if code != _SI_TKILL or ctypes.c_int.from_address(info + _SENDER_AT).value != os.getpid():  # else rule 8
                self._leave_to_system()
                os.kill(os.getpid(), number)  # comes when this returns
            return
        handled = False
        try:
            at = ctypes.c_void_p.from_address(info + _ADDRESS_AT).value or 0
            handled = self._fault(at) or self._left_to_others(at, number, info, context)
        finally:
            if not handled:
                self._leave_to_system()

    def _fault(self, at: int) -> bool:
        """Rule 2. Whether the address is in a mapping."""
        for extent in list(self._extents.values()):
            if extent.start <= at < extent.start + extent.nbytes:
                return self._give_up(extent, at)
        return False

    def _left_to_others(self, at: int, number: int, info: int, context: int) -> bool:
        """Rule 4. False: there is none left."""
        self._met_by = self._met_by + 1 if at == self._met_at else 1
        self._met_at = at
        if self._met_by > len(self._others):
            return False
        handler = self._others[-self._met_by].handler
        if handler in _NO_FUNCTIONS:
            return False
        _OtherHandler(handler)(number, info, context)
        return True

    def _leave_to_system(self) -> None:
        self._set_action(signal.SIGBUS, ctypes.byref(_Action()), None)

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
