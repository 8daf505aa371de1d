"""How the interpreter and its memory are set for an event loop that serves many clients."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_GC_THRESHOLD = 5_000
"""Containers that a crowd of clients leaves for one collection, which takes 1 µs for each."""

_MIDDLE_THRESHOLD = 4
"""So many times as many are looked through once more, at once: 50 were 180 ms for all others, while 3,000 clients sent
heads of 1,000 headers."""

_OLDEST_THRESHOLD = 1_250

_SWITCH_INTERVAL_S = 0.0005
"""So long a busy event loop keeps an instance's thread waiting, each time that a batch needs the interpreter. With
Python's own 5 ms a flood of one client delayed another's small batch by 50 ms."""


def switch_often() -> None:
    """Let threads have their turn soon."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def settle_memory() -> None:
    """Take what loading left behind out of the garbage collector's sight.

    A request makes no reference cycles, so there is next to nothing to collect; but collecting means looking through
    every object that numpy, ONNX Runtime and the models brought along, again and again. That took two fifths of the
    time of a small request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, _MIDDLE_THRESHOLD, _OLDEST_THRESHOLD)


# Code that only the start needed: to register hundreds of operators and to look at graphs takes most of ONNX Runtime's
# 30 MiB, requests touch little of it. Its pages are left to the kernel's cache of files, which they come from and which
# brings back those that are needed, in a microsecond each.

_DONTNEED = 4
_MAPPINGS = Path("/proc/self/smaps")
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ ([0-9]+)")


def return_code() -> None:
    """Give the pages of the process's code back; blocks for some milliseconds. Does nothing where it is not Linux."""
    with contextlib.suppress(OSError, AttributeError), _MAPPINGS.open() as lines:
        advise = ctypes.CDLL(None).madvise
        for start, length in list(code_mappings(lines)):
            advise(ctypes.c_void_p(start), ctypes.c_size_t(length), _DONTNEED)


def code_mappings(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Mappings that are nothing but the code of a file, and so can be had from it again: executable, not writable, and
    without a page of the process's own (a library that was changed when it was loaded, or by a debugger).

    Args:
        lines: of ``/proc/PID/smaps``.

    Returns:
        The address and the length of each, in bytes.
    """
    code = None
    for line in lines:
        if found := _HEAD.match(line):
            start, end, access, inode = found.groups()
            code = (int(start, 16), int(end, 16) - int(start, 16)) if access == "r-xp" and inode != "0" else None
        elif code is not None and line.split() == ["Anonymous:", "0", "kB"]:
            yield code
